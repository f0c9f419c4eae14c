"""Parts of a saved result, made again from plain values and arrays; each is checked, none is trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from scipy import sparse

from keyless.arrays import FloatArray
from keyless.engine.repeats import RepeatedSide
from keyless.errors import Status
from keyless.evidence import Doubt, Evidence, Verdict
from keyless.model.factor_model import FactorModel
from keyless.model.scales import SCALE_KINDS, Scale
from keyless.saved import checks

__all__ = ["SPARSE_PARTS", "coupling", "evidence", "factors", "record", "scale", "start", "status"]

SPARSE_PARTS = ("data", "indices", "indptr")
"""Arrays of a sparse coupling."""


def evidence(entry: Any) -> Evidence:
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


def coupling(arrays: Mapping[str, Any], shape: tuple[int, int]) -> FloatArray | sparse.csr_array:
    """Return the soft correspondence of a table, dense or sparse."""
    if "coupling" in arrays or "coupling.shape" not in arrays:
        return checks.numbers(arrays["coupling"], "coupling", shape, low=0.0, high=1.0)
    data, indices, indptr = (arrays[f"coupling.{part}"] for part in SPARSE_PARTS)
    if arrays["coupling.shape"].tolist() != list(shape):
        raise ValueError("coupling must have a row for each reference row and a column for each row of the table")
    checks.numbers(data, "coupling", (None,), low=0.0, high=1.0)
    kept = sparse.csr_array((data, indices, indptr), shape=shape)
    kept.check_format(full_check=True)
    return kept


def factors(arrays: Mapping[str, Any]) -> FactorModel:
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


def scale(entry: Any, knots: Any) -> Scale:
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


def status(entry: Any) -> Status:
    """Return how the search ended."""
    made = Status(**checks.mapping(entry, "status"))
    checks.text(made.reason, "status")
    checks.text(made.advice, "status")
    return made


def start(entry: Any) -> Mapping[str, Any]:
    """Return how one start of the search went."""
    made = checks.mapping(entry, "starts")
    checks.text(made["start"], "starts")
    return made | {"pair": _tuples(made["pair"])}


def record(entry: Any) -> Mapping[str, Any]:
    """Return one record of the history. Times are not saved, so that equal runs give equal files."""
    made = checks.mapping(entry, "history")
    checks.text(made["stage"], "history")
    for name in ("step", "total", "objective"):
        checks.number(made[name], "history")
    return made


def _tuples(value: Any) -> Any:
    """Lists, as JSON has them, back to tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
