"""Every dialect of text through every output: what was there comes back as it was, what was filled looks like it."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import openpyxl
import pandas as pd
import pytest

import keyless
from keyless import runs
from keyless.cli import inputs
from keyless.report.filled import fill_sample, filled_entries
from keyless.runs.dialect import check_format, dialect_of, in_marks
from keyless.tables import Dialect, read_table

ROWS = 40
NAMES = ("Größe", "cost", "share", "balance")
DIALECTS = {
    "plain": (",", ".", "", "utf-8"),
    "german": (";", ",", "", "utf-8"),
    "german with thousands": (";", ",", ".", "cp1252"),
    "english with thousands": (",", ".", ",", "utf-8-sig"),
    "quoted commas": (",", ",", "", "latin-1"),
    "french": ("\t", ",", " ", "utf-16"),
    "swiss": ("|", ".", "'", "utf-8"),
}


def numbers(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = np.random.default_rng(0).normal(size=(ROWS, 2)) @ rng.normal(size=(2, 4)) + 0.1 * rng.normal(
        size=(ROWS, 4)
    )
    return np.round(values * [900, 4000, 10, 3000] + [170, 9000, 50, 0], 2)


def cell(value: float, column: int, decimal: str, thousands: str) -> str:
    """A number as a person of that country writes it; Python's own formatting is the oracle."""
    text = f"{abs(value):,.2f}" if thousands else f"{abs(value):.2f}"
    text = text.replace(",", "\0").replace(".", decimal).replace("\0", thousands)
    if column == 1:
        return f"{'-' if value < 0 else ''}€ {text}"
    if column == 2:
        return f"{'-' if value < 0 else ''}{text} %"
    if column == 3:
        return f"({text})" if value < 0 else text
    return f"{'-' if value < 0 else ''}{text}"


def parsed(text: str, decimal: str) -> float:
    """Read such a cell with nothing of keyless."""
    sign = -1 if "(" in text or "-" in text else 1
    digits = "".join(c for c in text if c.isdigit() or c == decimal)
    return sign * float(digits.replace(decimal, "."))


def write(path, name, values, dialect, gaps):
    separator, decimal, thousands, encoding = dialect
    # Only a euro sign tells cp1252 from latin-1, and only latin-1 has neither.
    sign = "Fr. " if encoding == "latin-1" else "€ "
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(["id", *NAMES, "wörd"])
    for i, row in enumerate(values):
        cells = [cell(value, k, decimal, thousands).replace("€ ", sign) for k, value in enumerate(row)]
        cells = [["", "k.A.", "-", "n/a"][i % 4] if gaps[i, k] else c for k, c in enumerate(cells)]
        writer.writerow([f"{name}-{i:02d}", *cells, ["=übel", "gut"][i % 2]])
    path.write_bytes(text.getvalue().encode(encoding))
    return path


@pytest.fixture(scope="module")
def made(linked_by_hand, tmp_path_factory):
    """For each dialect the links of two files in it, their numbers, gaps and order."""
    folder = tmp_path_factory.mktemp("dialects")
    found = {}
    order = np.random.default_rng(5).permutation(ROWS)
    for name, dialect in DIALECTS.items():
        files, gaps = {}, {}
        for seed, table in enumerate(("clinic", "lab"), start=1):
            values = numbers(seed)
            gaps[table] = np.random.default_rng(seed + 10).random(values.shape) < 0.1
            if table == "lab":
                values, gaps[table] = values[np.argsort(order)], gaps[table][np.argsort(order)]
            ending = "tsv" if dialect[0] == "\t" else "csv"
            files[table] = write(folder / f"{name}-{table}.{ending}", table, values, dialect, gaps[table])
        found[name] = linked_by_hand(files, [order]), gaps, order
    return found


@pytest.fixture(autouse=True)
def page(monkeypatch, request):
    """A page that takes no time, but where the report is what is looked at."""
    if "report" not in request.node.name:
        monkeypatch.setattr(runs.outputs, "_rendered", lambda *_args, **_options: "page")


def cells_of(path, separator, encoding):
    with path.open(encoding=encoding, newline="") as file:
        header, *rows = csv.reader(file, delimiter=separator)
    return pd.DataFrame(rows, columns=header)


def check_numbers(frame, gaps, values, decimal, prefix=""):
    """Observed cells are the numbers they were, and filled ones are near to what was taken out."""
    for k, name in enumerate(NAMES):
        column = frame[prefix + name]
        read = np.array([float(entry) if not isinstance(entry, str) else parsed(entry, decimal) for entry in column])
        np.testing.assert_array_equal(read[~gaps[:, k]], values[~gaps[:, k], k])
        spread = values[:, k].std()
        assert np.isfinite(read).all()
        assert np.abs(read - values[:, k]).max() < 4 * spread


@pytest.mark.parametrize("name", DIALECTS)
def test_the_dialect_of_the_input_is_that_of_the_output(made, tmp_path, name):
    links, gaps, order = made[name]
    separator, decimal, _, encoding = DIALECTS[name]
    runs.write_run(links, tmp_path / "run")
    ending = "tsv" if separator == "\t" else "csv"
    for table, place in (("clinic", np.arange(ROWS)), ("lab", order)):
        values, missing = numbers(1 if table == "clinic" else 2), gaps[table][place]
        completed = cells_of(tmp_path / "run" / "completed" / f"{table}.{ending}", separator, encoding)
        given = links.tables[0 if table == "clinic" else 1].native.iloc[place].reset_index(drop=True)
        for k, column in enumerate(NAMES):
            kept = ~missing[:, k]
            assert completed[column][kept].tolist() == given[column][kept].tolist(), "observed cells are the very text"
        check_numbers(completed, missing, values, decimal)
        marks = cells_of(tmp_path / "run" / "completed" / f"{table}.filled.{ending}", separator, encoding)
        np.testing.assert_array_equal(marks[list(NAMES)].to_numpy() == "1", missing)
        joined = cells_of(tmp_path / "run" / f"joined.{ending}", separator, encoding)
        check_numbers(joined, missing, values, decimal, prefix=f"{table}.")
        assert set(joined[f"{table}.wörd"]) == {"'=übel", "gut"}
    matches = cells_of(tmp_path / "run" / f"matches.{ending}", separator, encoding)
    stated = [parsed(p, decimal) if "e" not in p else float(p.replace(decimal, ".")) for p in matches["probability"]]
    np.testing.assert_array_equal(stated, links.found["lab"].probability)
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert record["formats"][f"joined.{ending}"] == {
        "kind": "text", "separator": separator, "decimal": decimal, "encoding": encoding
    }  # fmt: skip
    assert (tmp_path / "run" / record["tables"]["lab"]["completed"]).is_file()


@pytest.mark.parametrize("name", DIALECTS)
def test_numbers_are_numbers_in_parquet_and_saved_result(made, tmp_path, name):
    links, gaps, order = made[name]
    runs.write_run(links, tmp_path / "run")
    frame = pd.read_parquet(tmp_path / "run" / "joined.parquet")
    for table, place in (("clinic", np.arange(ROWS)), ("lab", order)):
        assert all(frame[f"{table}.{column}"].dtype == np.float64 for column in NAMES)
        check_numbers(frame, gaps[table][place], numbers(1 if table == "clinic" else 2), ".", prefix=f"{table}.")
    again = runs.read_run(tmp_path / "run").links
    assert [table.dialect for table in again.tables] == [table.dialect for table in links.tables]
    runs.write_run(again, tmp_path / "again")
    for path in (tmp_path / "run").rglob("*.[ct]sv"):
        assert (tmp_path / "again" / path.relative_to(tmp_path / "run")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", DIALECTS)
def test_the_report_has_filled_numbers(made, name):
    links, gaps, _ = made[name]
    entries = filled_entries(links, fill_sample(links), most=1000)
    assert len(entries) == sum(int(gap.sum()) for gap in gaps.values())
    for entry in entries:
        spread = numbers(1 if entry.table == "clinic" else 2)[:, NAMES.index(entry.column)].std()
        assert np.isfinite(float(entry.value))
        assert 0 < entry.error < 3 * spread


def test_the_whole_report_of_a_german_file(made, tmp_path):
    links, _, _ = made["german with thousands"]
    runs.write_run(links, tmp_path / "run")
    assert "Some filled entries" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["german with thousands", "french", "plain"])
@pytest.mark.parametrize("out_format", ["csv", "tsv", "xlsx"])
def test_another_format_may_be_asked_for(made, tmp_path, name, out_format):
    links, gaps, order = made[name]
    runs.write_run(links, tmp_path / "run", out_format=out_format)
    assert {path.suffix for path in (tmp_path / "run" / "completed").iterdir()} == {f".{out_format}"}
    joined = tmp_path / "run" / f"joined.{out_format}"
    if out_format == "xlsx":
        header, *rows = openpyxl.load_workbook(joined).active.iter_rows(values_only=True)
        frame = pd.DataFrame(rows, columns=header)
        assert all(isinstance(entry, float | int) for entry in frame["lab.cost"])
    else:
        frame = cells_of(joined, "\t" if out_format == "tsv" else ",", "utf-8")
    for table, place in (("clinic", np.arange(ROWS)), ("lab", order)):
        check_numbers(frame, gaps[table][place], numbers(1 if table == "clinic" else 2), ".", prefix=f"{table}.")


def test_two_dialects_meet_in_that_of_the_reference(linked_by_hand, tmp_path):
    none = np.zeros((ROWS, 4), dtype=bool)
    none[0, 0] = True
    clinic = write(tmp_path / "clinic.csv", "clinic", numbers(1), DIALECTS["german with thousands"], none)
    lab = write(tmp_path / "lab.csv", "lab", numbers(2), DIALECTS["english with thousands"], none)
    links = linked_by_hand({"clinic": clinic, "lab": lab}, [np.arange(ROWS)])
    runs.write_run(links, tmp_path / "run")
    joined = cells_of(tmp_path / "run" / "joined.csv", ";", "cp1252")
    for table, seed in (("clinic", 1), ("lab", 2)):
        check_numbers(joined, none, numbers(seed), ",", prefix=f"{table}.")
    own = cells_of(tmp_path / "run" / "completed" / "lab.csv", ",", "utf-8-sig")
    check_numbers(own, none, numbers(2), ".")
    assert len(joined) == len(own) == ROWS


def test_whole_numbers_stay_the_text_they_were(tmp_path):
    path = tmp_path / "lab.csv"
    path.write_text("a;b;c\n+5;0,5;1,234.5\n007;1,5;-7\n-3;2,25;12\n", encoding="utf-8")
    table = read_table(path, name="lab")
    assert table.dialect == Dialect(separator=";", decimal=",")
    frame = in_marks(table.native, ",", [table])
    assert frame.to_numpy().tolist() == [["+5", "0,5", "1.234,5"], ["007", "1,5", "-7"], ["-3", "2,25", "12"]]
    frame = in_marks(table.native, ".", [table])
    assert frame.to_numpy().tolist() == [["+5", "0.5", "1,234.5"], ["007", "1.5", "-7"], ["-3", "2.25", "12"]]


def test_signs_that_an_encoding_lacks_go_to_utf_8(linked_by_hand, tmp_path):
    none = np.zeros((ROWS, 4), dtype=bool)
    clinic = write(tmp_path / "clinic.csv", "clinic", numbers(1), DIALECTS["german with thousands"], none)
    lab = tmp_path / "lab.csv"
    lab.write_text("id,x\n" + "".join(f"Ω{i},{v}\n" for i, v in enumerate(numbers(2)[:, 0])), encoding="utf-8")
    links = linked_by_hand({"clinic": clinic, "lab": lab}, [np.arange(ROWS)])
    runs.write_run(links, tmp_path / "run")
    matches = cells_of(tmp_path / "run" / "matches.csv", ";", "utf-8-sig")
    assert matches["row_id"].tolist() == [f"Ω{i}" for i in range(ROWS)]
    record = runs.read_run(tmp_path / "run").record
    assert record["formats"]["matches.csv"]["encoding"] == "utf-8-sig"
    assert record["formats"]["completed/clinic.csv"]["encoding"] == "cp1252"


RISKY = ("=1+1", "+cmd", "@x", " =1", "\u200b=1", "\uff1d1")


@pytest.mark.parametrize("raw", [False, True])
def test_a_sheet_never_holds_a_formula(linked_by_hand, tmp_path, raw):
    book = openpyxl.Workbook()
    book.active.append(["id", "x", "seen", "ill", "=name"])
    for i in range(ROWS):
        book.active.append([f"P{i:02d}", i * 1.5, pd.Timestamp(2020, 1, 1) + pd.Timedelta(days=i), i % 3 == 0, None])
        written = book.active.cell(row=i + 2, column=5, value=RISKY[i % len(RISKY)])
        written.data_type = "s"
    book.active["E1"].data_type = "s"
    book.save(tmp_path / "clinic.xlsx")
    links = linked_by_hand({"clinic": tmp_path / "clinic.xlsx", "lab": numbers(2)}, [np.arange(ROWS)])
    runs.write_run(links, tmp_path / "run", raw_cells=raw)
    sheet = openpyxl.load_workbook(tmp_path / "run" / "completed" / "clinic.xlsx").active
    header, *rows = list(sheet.iter_rows())
    assert [c.value for c in header] == ["reference_id", "id", "x", "seen", "ill", "=name"]
    assert all(c.data_type != "f" for row in (header, *rows) for c in row)
    assert [row[-1].value for row in rows] == [RISKY[i % len(RISKY)] for i in range(ROWS)], "the text is exact"
    assert all(row[-1].quotePrefix is (not raw) for row in rows)
    assert [row[2].value for row in rows] == [i * 1.5 for i in range(ROWS)]
    assert rows[3][3].value == pd.Timestamp(2020, 1, 4).to_pydatetime()
    assert [row[4].value for row in rows] == [i % 3 == 0 for i in range(ROWS)]
    assert (tmp_path / "run" / "matches.xlsx").is_file()
    with_text = tmp_path / "plain"
    runs.write_run(links, with_text, raw_cells=raw, out_format="csv")
    cells = cells_of(with_text / "completed" / "clinic.csv", ",", "utf-8")
    assert set(cells.iloc[:, -1]) == ({*RISKY} if raw else {f"'{text}" for text in RISKY})


def test_pairs_are_read_from_every_format(made, tmp_path):
    """What was written as matches is read as known pairs, ids that were made harmless included."""
    for name in ("german with thousands", "french", "plain"):
        links, _, _ = made[name]
        for out_format in ("same", "xlsx"):
            runs.write_run(links, tmp_path / "run", out_format=out_format)
            (path,) = (tmp_path / "run").glob("matches.*")
            pairs = inputs.read_pairs(path, links.tables, option="--known-pairs")
            assert pairs == {"lab": list(zip(links.matches["reference_id"], links.matches["row_id"], strict=True))}


def test_risky_ids_come_back_as_pairs(linked_by_hand, tmp_path):
    frames = {
        name: pd.DataFrame(numbers(seed), index=[f"{sign}{i}x" for i in range(ROWS)])
        for seed, (name, sign) in enumerate((("clinic", "="), ("lab", "@")), start=1)
    }
    links = linked_by_hand(frames, [np.arange(ROWS)])
    runs.write_run(links, tmp_path / "run")
    assert (tmp_path / "run" / "matches.csv").read_text(encoding="utf-8").splitlines()[1].startswith("'=0x,lab,'@0x,")
    pairs = inputs.read_pairs(tmp_path / "run" / "matches.csv", links.tables, option="--known-pairs")
    assert pairs == {"lab": [(f"={i}x", f"@{i}x") for i in range(ROWS)]}


def test_what_a_sheet_cannot_hold_is_refused_before_the_work(made, monkeypatch):
    links, _, _ = made["plain"]
    check_format("xlsx", links.tables)
    monkeypatch.setattr(runs.dialect, "MOST_ROWS", ROWS - 1)
    with pytest.raises(
        keyless.InputError, match=r"xlsx holds at most 39 rows and 16,384 columns; the results would have"
    ):
        check_format("xlsx", links.tables)
    monkeypatch.setattr(runs.dialect, "_has_openpyxl", lambda: False)
    with pytest.raises(keyless.InputError, match=r'Run: pip install "keyless\[excel\]"'):
        check_format("xlsx")
    assert dialect_of(links.tables[0]).kind == "text"
