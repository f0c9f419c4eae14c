"""A result in one file, and read again: each part is checked, none is trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy import sparse

from keyless.arrays import FloatArray
from keyless.engine.repeats import RepeatedSide
from keyless.errors import InputError, Status
from keyless.evidence import Doubt, Evidence, Verdict
from keyless.model.factor_model import FactorModel
from keyless.model.joint_model import JointModel
from keyless.model.scales import SCALE_KINDS, Scale
from keyless.saved import checks
from keyless.saved.archive import read_archive, write_archive
from keyless.table_link import LinkedTables, TableLink
from keyless.tables.memory import available_memory
from keyless.tables.saving import pack_table, unpack_table

__all__ = ["read_links", "save_links"]

_FACTOR_FIELDS = ("loadings", "offsets", "noise", "spread", "shrinkage")
_LINK_PARTS = ("permutation", "probability", "margin", "correlations", "alone")
_SPARSE_PARTS = ("data", "indices", "indptr")
_SCALE_FIELDS = ("kind", "sign", "offset", "centre", "spread", "lowest", "unit")


def save_links(links: LinkedTables, path: str | Path) -> None:
    """Write links as JSON, plain arrays and frames in Arrow's format."""
    arrays: dict[str, Any] = {f"model.{name}": getattr(links.model.factors, name) for name in _FACTOR_FIELDS}
    files: dict[str, bytes | Path] = {}
    tables = []
    for t, (table, scales) in enumerate(zip(links.tables, links.model.scales, strict=True)):
        document, own_arrays, own_files = pack_table(table)
        arrays |= {f"{t}.{name}": array for name, array in own_arrays.items()}
        files |= {f"{t}.{name}": content for name, content in own_files.items()}
        for k, scale in enumerate(scales):
            if scale.knots is not None:
                arrays[f"{t}.knots.{k}"] = np.stack(scale.knots)
        document["scales"] = [{name: getattr(scale, name) for name in _SCALE_FIELDS} for scale in scales]
        tables.append(document)
    found = {}
    for t, (name, link) in enumerate(links.found.items(), start=1):
        arrays |= {f"{t}.{part}": array for part, array in _link_arrays(link).items()}
        found[name] = vars(link.evidence) | {"null_scores": list(link.evidence.null_scores)}
    whole = {
        "tables": tables,
        "evidence": found,
        "shared": links.model.shared,
        "status": vars(links.status),
        "choices": dict(links.choices),
        "starts": [dict(start) for start in links.starts],
        "seed": links.seed,
        # How long it took differs from run to run, and is no part of the result: see `timings` in run.json.
        "history": [{key: value for key, value in record.items() if key != "seconds"} for record in links.history],
    }
    write_archive(path, whole, arrays, files)


def _link_arrays(link: TableLink) -> dict[str, Any]:
    parts = {part: getattr(link, part) for part in _LINK_PARTS}
    if not sparse.issparse(link.coupling):
        return parts | {"coupling": link.coupling}
    kept = sparse.csr_array(link.coupling)
    stored = {f"coupling.{part}": getattr(kept, part) for part in _SPARSE_PARTS}
    return parts | stored | {"coupling.shape": np.array(kept.shape)}


def read_links(path: str | Path) -> LinkedTables:
    """Return what `save_links` wrote; see `keyless.load`."""
    document, arrays, files = read_archive(path, max_memory=available_memory())
    try:
        return _rebuilt(document, arrays, files)
    except Exception as error:
        # Arrow, pandas, polars and AnnData have errors of their own for what they cannot read.
        said = str(error).removesuffix(".")
        raise InputError(
            f"{path}: must be a saved keyless result; a part of it is missing or wrong ({said})."
        ) from error


def _rebuilt(document: dict[str, Any], arrays: dict[str, Any], files: dict[str, bytes]) -> LinkedTables:
    tables, scales = [], []
    for t, entry in enumerate(checks.sequence(document["tables"], "tables")):
        tables.append(unpack_table(entry, _own(arrays, t), _own(files, t)))
        scales.append(tuple(_scale(scale, arrays.get(f"{t}.knots.{k}")) for k, scale in enumerate(entry["scales"])))
    judged = checks.mapping(document["evidence"], "evidence")
    if len(tables) < 2 or list(judged) != [table.name for table in tables[1:]]:
        raise ValueError("there must be evidence for every table but the first, by their names")
    places = tables[0].block.shape[0]
    choices = checks.mapping(document["choices"], "choices")
    once = not checks.flag(choices.get("repeats", False), "repeats")
    found = {
        name: _table_link(evidence, _own(arrays, t), (places, tables[t].block.shape[0]), once=once)
        for t, (name, evidence) in enumerate(judged.items(), start=1)
    }
    links = LinkedTables(
        tables=tuple(tables),
        found=found,
        model=JointModel(_factors(arrays), tuple(scales), shared=checks.flag(document["shared"], "shared")),
        status=_status(document["status"]),
        choices=choices,
        starts=tuple(_start(start) for start in checks.sequence(document["starts"], "starts")),
        seed=None if document["seed"] is None else checks.number(document["seed"], "seed", low=0, whole=True),
        history=tuple(_record(record) for record in checks.sequence(document["history"], "history")),
    )
    widths = [links._used(table).block.shape[1] for table in tables]
    if [len(of_table) for of_table in scales] != widths or len(links.model.factors.loadings) != sum(widths):
        raise ValueError("the model must have a scale and loadings for every column of every table")
    return links


def _table_link(evidence: Any, arrays: dict[str, Any], shape: tuple[int, int], *, once: bool) -> TableLink:
    return TableLink(
        checks.permutation(arrays["permutation"], "permutation", *shape, once=once),
        checks.numbers(arrays["probability"], "probability", shape[:1], low=0.0, high=1.0),
        checks.numbers(arrays["margin"], "margin", shape[:1], infinite=True),
        _coupling(arrays, shape),
        _evidence(evidence),
        checks.numbers(arrays["correlations"], "correlations", (None,), low=-1.0, high=1.0),
        _alone(arrays.get("alone"), shape[0]),
    )


def _alone(array: Any, places: int) -> FloatArray:
    """Return how likely each reference row has no partner; nothing where that is not known."""
    if array is None or array.size == 0:
        return np.empty(0)
    return checks.numbers(array, "alone", (places,), low=0.0, high=1.0)


def _own(parts: Mapping[str, Any], table: int) -> dict[str, Any]:
    """The parts of one table, by their own names."""
    prefix = f"{table}."
    return {name.removeprefix(prefix): part for name, part in parts.items() if name.startswith(prefix)}


def _evidence(entry: Any) -> Evidence:
    """Return the evidence for one table."""
    known = checks.mapping(entry, "evidence")
    nulls = checks.sequence(known["null_scores"], "null_scores")
    judged = Evidence(**(known | {"null_scores": tuple(checks.number(score, "null_scores") for score in nulls)}))
    checks.one_of(judged.verdict, "verdict", get_args(Verdict))
    checks.one_of(judged.doubt, "doubt", get_args(Doubt))
    checks.one_of(judged.repeated, "repeated", get_args(RepeatedSide))
    for name in ("belief", "foretold"):
        if not 0 <= checks.number(getattr(judged, name), name) <= 1:
            raise ValueError(f"{name} must be a number from 0 to 1")
    for name in ("score", "needed", "sharpness", "agreement", "mirrored", "corroboration"):
        checks.number(getattr(judged, name), name)
    return judged


def _coupling(arrays: Mapping[str, Any], shape: tuple[int, int]) -> FloatArray | sparse.csr_array:
    """Return the soft correspondence of a table, dense or sparse."""
    if "coupling" in arrays or "coupling.shape" not in arrays:
        return checks.numbers(arrays["coupling"], "coupling", shape, low=0.0, high=1.0)
    data, indices, indptr = (arrays[f"coupling.{part}"] for part in _SPARSE_PARTS)
    if arrays["coupling.shape"].tolist() != list(shape):
        raise ValueError("coupling must have a row for each reference row and a column for each row of the table")
    checks.numbers(data, "coupling", (None,), low=0.0, high=1.0)
    kept = sparse.csr_array((data, indices, indptr), shape=shape)
    kept.check_format(full_check=True)
    return kept


def _factors(arrays: Mapping[str, Any]) -> FactorModel:
    """Return the factor model of all columns."""
    loadings = checks.numbers(arrays["model.loadings"], "loadings", (None, None))
    columns, rank = loadings.shape
    return FactorModel(
        loadings,
        checks.numbers(arrays["model.offsets"], "offsets", (columns,)),
        checks.numbers(arrays["model.noise"], "noise", (columns,), low=0.0),
        checks.numbers(arrays["model.spread"], "spread", (columns, rank + 1, rank + 1)),
        checks.numbers(arrays["model.shrinkage"], "shrinkage", (rank + 1,), infinite=True),
    )


def _scale(entry: Any, knots: Any) -> Scale:
    """Return a scale whose every number is one it can have."""
    given = checks.mapping(entry, "scale")
    if knots is not None:
        values, quantiles = checks.numbers(knots, "knots", (2, None))
        if not (np.diff(values) > 0).all() or not (np.diff(quantiles) > 0).all():
            raise ValueError("knots must rise")
        knots = (values, quantiles)
    made = Scale(**given, knots=knots)
    checks.one_of(made.kind, "scale", SCALE_KINDS)
    if (made.kind == "rank") != (knots is not None) and made.spread != 0:
        raise ValueError("a scale by ranks, and no other, must have knots")
    parts = (made.sign, made.offset, made.centre, made.spread, made.lowest, made.unit)
    if not all(math.isfinite(checks.number(part, "scale")) for part in parts) or made.spread < 0 or made.unit <= 0:
        raise ValueError("a scale must have finite numbers, its spread and unit not below 0")
    checks.one_of(made.sign, "sign", (-1.0, 1.0))
    return made


def _status(entry: Any) -> Status:
    """Return how the search ended."""
    made = Status(**checks.mapping(entry, "status"))
    checks.text(made.reason, "status")
    checks.text(made.advice, "status")
    return made


def _start(entry: Any) -> Mapping[str, Any]:
    """Return how one start of the search went."""
    made = checks.mapping(entry, "starts")
    checks.text(made["start"], "starts")
    return made | {"pair": _tuples(made["pair"])}


def _record(entry: Any) -> Mapping[str, Any]:
    """Return one record of the history. Times are not saved, so that equal runs give equal files."""
    made = checks.mapping(entry, "history")
    checks.text(made["stage"], "history")
    for name in ("step", "total", "objective"):
        checks.number(made[name], "history")
    return made


def _tuples(value: Any) -> Any:
    """Lists, as JSON has them, back to tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
