"""What a route from tables to matches says, whichever it was, and how that is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from keyless.errors import Status
from keyless.evidence import Evidence
from keyless.likelihood import FORBIDDEN
from keyless.model.factor_model import FactorModel
from keyless.model.scales import Scale
from keyless.pairs.posterior import largest, pair_places

__all__ = ["Found", "Route", "canonical_correlations", "listed_margins", "stated_probability"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

_HALF_SURE = 0.5
"""What is stated about a match at most where it is uncertain whether there is a link at all."""


@dataclass(frozen=True, eq=False)
class Found:
    """What one route says about one table.

    Attributes:
        permutation: as in `TableLink`, like coupling, margin and correlations.
        coupling: dense, or sparse where most pairs were never looked at.
        probability: of each match, if the tables are linked at all.
        correlations: of the factors of matched rows.
        evidence: whether they are.
        margin: of each match.
        choices: how many rows each reference row could be matched to.
        log_ratios: of all pairs, where all were looked at.
    """

    permutation: IntArray
    coupling: Any
    probability: FloatArray
    correlations: FloatArray
    evidence: Evidence
    margin: FloatArray
    choices: FloatArray
    log_ratios: FloatArray | None = None

    @classmethod
    def among_all(cls, link: tuple[IntArray, FloatArray, FloatArray], **rest: Any) -> Found:
        """Return what is known when all pairs of rows were looked at: permutation, coupling and log-ratios of all."""
        permutation, coupling, log_ratios = link
        choices = np.maximum((log_ratios > FORBIDDEN).sum(axis=1), 1)
        margin = _margins(permutation, log_ratios)
        return cls(permutation, coupling, margin=margin, choices=choices, log_ratios=log_ratios, **rest)


@dataclass(frozen=True, eq=False)
class Route:
    """What one route says about all tables.

    Attributes:
        name: of the route.
        found: per table.
        model: of all tables.
        status: how it ended.
        starts: what was tried.
        scales: per table, the scale of each column.
        work: what it took, where that is told.
    """

    name: str
    found: list[Found]
    model: FactorModel
    status: Status
    starts: tuple[Mapping[str, Any], ...]
    scales: tuple[tuple[Scale, ...], ...]
    work: Mapping[str, Any] = field(default_factory=dict)

    @property
    def linked(self) -> bool:
        """Whether every table is."""
        return all(found.evidence.verdict == "linked" for found in self.found)


def stated_probability(found: Found) -> FloatArray:
    """Return the probability of each match, whether there is a link at all taken into account.

    What simulation calibrates is how likely a match is right if the tables are linked. Where they are not, it is right
    as often as a guess.
    """
    if found.evidence.verdict == "linked":
        return found.probability
    if found.evidence.verdict == "uncertain":
        return np.minimum(found.probability, _HALF_SURE)
    return np.where(found.permutation >= 0, np.minimum(found.probability, 1 / found.choices), found.probability)


def _margins(permutation: IntArray, log_ratios: FloatArray) -> FloatArray:
    """Return the log-likelihood ratio of each match against the best alternative of its row; ∞ where there is none."""
    rows = np.arange(len(permutation))
    ratios = np.where(log_ratios <= FORBIDDEN, -np.inf, log_ratios).astype(np.float64)
    matched = permutation >= 0
    own = np.where(matched, ratios[rows, np.maximum(permutation, 0)], 0.0)
    ratios[rows[matched], permutation[matched]] = -np.inf
    best = ratios.max(axis=1)
    return np.where(np.isneginf(best), np.inf, own - best)


def listed_margins(permutation: IntArray, log_ratios: sparse.csr_array) -> FloatArray:
    """Return the same where only listed pairs were looked at."""
    rows, columns = pair_places(log_ratios)
    own = permutation[rows] == columns
    value = np.zeros(len(permutation))
    value[rows[own]] = log_ratios.data[own]
    best = largest(rows[~own], log_ratios.data[~own], len(permutation))
    return np.where(np.isneginf(best), np.inf, value - best)


def canonical_correlations(first: FloatArray, second: FloatArray, *, rank: int) -> FloatArray:
    """Return the canonical correlations of latents of the same entities; none of too few."""
    if len(first) <= rank + 1:
        return np.empty(0)
    sides = (np.linalg.qr(side - side.mean(axis=0))[0] for side in (first, second))
    left, right = sides
    return np.clip(np.linalg.svd(left.T @ right, compute_uv=False), 0.0, 1.0)
