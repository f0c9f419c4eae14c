"""A result as a folder of files, and back."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import keyless
from keyless.answers.joining import joined_plan
from keyless.audit import Audit
from keyless.links import Links, load
from keyless.runs.cells import file_names
from keyless.runs.columns import is_for_parquet, parquet_column, write_columns
from keyless.runs.configuration import Fingerprint
from keyless.runs.dialect import OutFormat, dialect_of, ending, text_of, typed, write_table
from keyless.runs.folder import FORMAT, RECORD, VERSION, files_in, read_record, replace_folder, write_file
from keyless.tables import Dialect, Table
from keyless.tables.frames import as_text, free_name, from_records, in_pandas

__all__ = [
    "CONFIGURATION",
    "RESULT",
    "Run",
    "match_records",
    "matches_text",
    "plain",
    "read_run",
    "with_ids",
    "write_parquet",
    "write_report",
    "write_run",
]

RESULT, CONFIGURATION, REPORT = "links.keyless", "config.toml", "report.html"
_PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas")


@dataclass(frozen=True, eq=False)
class Run:
    """A folder written by `write_run`.

    Attributes:
        folder: where it is.
        links: the result.
        record: what `run.json` says.
    """

    folder: Path
    links: Links
    record: Mapping[str, Any]


def write_run(
    links: Links,
    folder: str | Path,
    *,
    configuration: str = "",
    command: str | None = None,
    inputs: Sequence[Fingerprint] = (),
    timings: Mapping[str, float] | None = None,
    warnings: Sequence[str] = (),
    out_format: OutFormat = "same",
    raw_cells: bool = False,
    joining: Mapping[str, Any] | None = None,
    answers: bool = False,
) -> None:
    """Write a result as a folder, in one step: it is the new run afterwards, or what it was before.

    The folder holds `matches.csv`, `joined.csv`, `joined.parquet`, `completed/<table>.csv` and beside each
    `completed/<table>.filled.csv` with 1 where an entry was filled, `report.html`, `run.json`, `config.toml` and
    `links.keyless`, from which all the others can be made again. Tables made of text files have their separator,
    decimal mark and encoding (matches and joined those of the reference), tables made of spreadsheets are .xlsx files.
    Results of large tables (`memory.LARGE_CELLS`) are Parquet files alone, and those with a folder of Parquet files as
    reference are folders with a file for each of its files: see `columns`.

    Args:
        links: the result.
        folder: where to write: free, an empty folder, or an earlier run with nothing else in it.
        configuration: the content of `config.toml`.
        command: the command line that repeats the run.
        inputs: what identifies the input files.
        timings: seconds per stage.
        warnings: what the reader of the result must know.
        out_format: another format of all tables: plain CSV or TSV, .xlsx, or Parquet.
        raw_cells: write text as it is, also where a spreadsheet would run it as a formula; otherwise it gets a `'`.
        joining: options of `Links.joined` for the joined table.
        answers: whether the earlier run may have answers of a review; they are kept.
    """
    in_parquet = out_format == "parquet" or (out_format == "same" and is_for_parquet(links))

    def fill(fresh: Path) -> None:
        formats: dict[str, dict[str, str]] = {}
        if in_parquet and not any(table.form == "cells" for table in links.tables):
            files = write_columns(links, fresh, joining=joining or {})
        else:
            files = tables_as_given(fresh, formats)
        links.save(fresh / RESULT)
        (fresh / CONFIGURATION).write_text(configuration, encoding="utf-8", newline="\n")
        (fresh / REPORT).write_text(_rendered(links, command=command), encoding="utf-8", newline="\n")
        record = _record(links, files) | {
            "formats": formats,
            "command": command,
            "inputs": [{"file": known.file, "size": known.size, "sha256": known.sha256} for known in inputs],
            "timings": dict(timings or {}),
            "warnings": list(warnings),
            "files": sorted({*files_in(fresh), RECORD}),
        }
        text = json.dumps(plain(record), indent=2, ensure_ascii=False, allow_nan=False)
        (fresh / RECORD).write_text(text + "\n", encoding="utf-8", newline="\n")

    def tables_as_given(fresh: Path, formats: dict[str, dict[str, str]]) -> dict[str, str]:
        safe, ids = file_names(table.name for table in links.tables), links.tables[0].row_ids
        dialects = {table.name: dialect_of(table, out_format) for table in links.tables}

        def write(frame: pd.DataFrame, name: str, dialect: Dialect, *tables: Table) -> None:
            if in_parquet:
                write_parquet(typed(frame, tables), fresh / f"{name}.parquet")
                return
            file = f"{name}{ending(dialect)}"
            formats[file] = write_table(frame, fresh / file, dialect, tables=tables, raw_cells=raw_cells)

        main = dialects[links.reference]
        write(_matches(links), "matches", main)
        joined = _joined(links, joining or {})
        write(joined, "joined", main, *links.tables)
        if not in_parquet:
            write_parquet(typed(joined, links.tables), fresh / "joined.parquet")
        (fresh / "completed").mkdir()
        for table in links.tables:
            completed = _pandas(links.completed[table.name], columns=table.all_columns)
            filled = _filled(links, table)
            base, dialect = f"completed/{safe[table.name]}", dialects[table.name]
            write(with_ids(completed, ids), base, dialect, table)
            write(with_ids(filled, ids), f"{base}.filled", dialect)
        endings = {name: ".parquet" if in_parquet else ending(dialect) for name, dialect in dialects.items()}
        return {name: f"completed/{safe[name]}{endings[name]}" for name in dialects}

    replace_folder(Path(folder), fill, answers=answers)


def _joined(links: Links, options: Mapping[str, Any]) -> pd.DataFrame:
    """The joined table, with the reference's ids in front; empty for rows that the reference does not have."""
    which = {name: value for name, value in options.items() if name in ("how", "min_probability")}
    labels = links.tables[0].row_ids
    ids = ["" if row < 0 else labels[row] for row in joined_plan(links, **which)[1][0].tolist()]
    return with_ids(_pandas(links.joined(**options)), ids)


def read_run(folder: str | Path) -> Run:
    """Read a folder written by `write_run`."""
    folder = Path(folder)
    record = read_record(folder)
    return Run(folder, load(folder / RESULT), record)


def _rendered(links: Links, *, redact: bool = False, command: str | None = None, audit: Audit | None = None) -> str:
    from keyless.report import render  # noqa: PLC0415 — it brings matplotlib, which only a report needs

    return render(links, redact=redact, command=command, audit=audit)


def write_report(
    links: Links, path: Path, *, redact: bool = False, command: str | None = None, audit: Audit | None = None
) -> None:
    """Write the report to a file, which is replaced in one step.

    Args:
        links: the result.
        path: where.
        redact: leave out ids and values.
        command: the command line that repeats the run.
        audit: who could be singled out before a release; None leaves the section out.
    """
    page = _rendered(links, redact=redact, command=command, audit=audit)
    write_file(path, lambda fresh: fresh.write_text(page, encoding="utf-8", newline="\n"))


def matches_text(
    links: Links, *, out_format: OutFormat = "same", raw_cells: bool = False, min_probability: float | None = None
) -> str:
    """Return `matches.csv` as text.

    Args:
        links: the result.
        out_format: plain CSV or TSV instead of the separator and decimal mark of the reference.
        raw_cells: leave text as it is, also where a spreadsheet would run it as a formula.
        min_probability: leave out lines of matches that are less likely.
    """
    lines = _matches(links, min_probability=min_probability)
    return text_of(lines, dialect_of(links.tables[0], out_format), raw_cells=raw_cells)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: numpy's numbers become Python's, and numbers that are not finite null.

    Args:
        value: mappings, sequences, text, numbers, in each other.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | np.ndarray):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _record(links: Links, files: Mapping[str, str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "keyless": keyless.__version__,
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "seed": links.seed,
        "verdict": links.evidence.verdict,
        "status": {"reason": links.status.reason, "advice": links.status.advice},
        "evidence": {name: vars(found.evidence) for name, found in links.found.items()},
        "reference": links.reference,
        "tables": {
            table.name: {
                "rows": table.block.shape[0],
                "columns_used": table.block.shape[1],
                "observed": float(table.block.mask.mean()),
                "completed": files[table.name],
            }
            for table in links.tables
        },
        "choices": dict(links.choices),
    }


def match_records(links: Links, *, min_probability: float | None = None) -> list[dict[str, Any]]:
    """Return the lines of `matches.csv`: ids as text, exactly as given; None where there is no partner.

    Args:
        links: the result.
        min_probability: leave out matches that are less likely.
    """
    lines = _matches(links, min_probability=min_probability)
    return [dict(zip(lines.columns, line, strict=True)) for line in lines.itertuples(index=False, name=None)]


def _matches(links: Links, *, min_probability: float | None = None) -> pd.DataFrame:
    """The lines of `matches.csv` as a frame, made column by column: there can be millions of them."""
    reference, *others = links.tables
    found = [links.found[table.name] for table in others]
    partners = [
        str(table.row_ids[row]) if row >= 0 else None
        for table, link in zip(others, found, strict=True)
        for row in link.permutation.tolist()
    ]
    texts = {
        "reference_id": [str(label) for label in reference.row_ids] * len(others),
        "table": [table.name for table in others for _ in reference.row_ids],
        "row_id": partners,
    }
    lines = pd.DataFrame({name: pd.Series(entries, dtype=object) for name, entries in texts.items()})
    for name in ("probability", "margin"):
        lines[name] = np.concatenate([getattr(link, name) for link in found])
    if min_probability is None:
        return lines
    return lines[lines["row_id"].isna() | (lines["probability"] >= min_probability)]


def with_ids(frame: pd.DataFrame, ids: Sequence[Any], *, name: str = "reference_id") -> pd.DataFrame:
    """Return a frame with ids, as text, in front.

    Args:
        frame: any frame.
        ids: one for each row.
        name: of the column; where there is one of that name already, with a `_` before it.
    """
    name = free_name(name, list(map(str, frame.columns)))
    column = pd.Series([str(label) for label in ids], name=name, dtype=object)
    return pd.concat([column, frame.reset_index(drop=True)], axis=1)


def _filled(links: Links, table: Table) -> pd.DataFrame:
    """1 where an entry of the completed table was not in the table as given, else 0."""
    rows = np.arange(table.block.shape[0]) if table.name == links.reference else links.permutations[table.name]
    return _pandas(table.marked(rows), columns=table.all_columns).astype(np.int64)


def _pandas(frame: Any, *, columns: Sequence[Any] = ()) -> pd.DataFrame:
    """Return the caller's kind of frame or array as pandas."""
    if isinstance(frame, pd.DataFrame):
        return frame
    if isinstance(frame, list):
        return from_records(frame)
    if hasattr(frame, "toarray"):  # a sparse matrix
        frame = frame.toarray()
    if isinstance(frame, np.ndarray):
        return pd.DataFrame(frame, columns=list(columns))
    if hasattr(frame, "to_df"):  # an AnnData
        made: pd.DataFrame = frame.to_df()
        return made
    whole = nw.from_native(frame)
    if isinstance(whole, nw.LazyFrame):
        whole = whole.collect()
    return pd.DataFrame({name: in_pandas(whole.get_column(name)) for name in whole.columns})


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame; columns of several types become text."""
    columns = {}
    for place, name in enumerate(frame.columns):
        columns[as_text(name)] = parquet_column(frame.iloc[:, place])
    pq.write_table(pa.table(columns), path)
