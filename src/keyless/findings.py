"""What a route from tables to matches finds, in the same form for all routes, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from keyless.arrays import FloatArray, IntArray
from keyless.engine.repeats import Rivals, repeated_side
from keyless.errors import Status
from keyless.evidence import Evidence
from keyless.model.factor_model import FactorModel
from keyless.model.scales import Scale
from keyless.pairs.limits import Limits
from keyless.pairs.stated import Stated, stated, with_known_pairs

__all__ = ["Found", "Route", "canonical_correlations"]


@dataclass(frozen=True, eq=False)
class Found:
    """What one route says about one table.

    Attributes:
        permutation: as in `TableLink`.
        coupling: probabilities of pairs if the map is right: dense, or sparse where most pairs were never looked at.
        correlations: of the factors of matched rows, as in `TableLink`.
        evidence: whether there is a map.
        limits: which pairs may be matched.
        rivals: how well the best other candidate of each row fits, by which repeated entities are noticed; see
            `keyless.engine.best_rivals`. None where several rows may have the same partner, or no map is believed.
    """

    permutation: IntArray
    coupling: FloatArray | sparse.csr_array
    correlations: FloatArray
    evidence: Evidence
    limits: Limits
    rivals: Rivals | None = None

    @classmethod
    def of(cls, permutation: IntArray, coupling: FloatArray | sparse.csr_array, **rest: Any) -> Found:
        """Return what was found, with known pairs among the matches, whatever the route found for their rows."""
        return cls(*with_known_pairs(permutation, coupling, rest["limits"]), **rest)

    @cached_property
    def stated(self) -> Stated:
        """What is said about each row, the doubt about the map included."""
        return stated(self.permutation, self.coupling, limits=self.limits, belief=self.evidence.belief)

    @property
    def judged(self) -> Evidence:
        """The evidence; tables that seem to repeat entities are not linked row by row, however clear the map is."""
        side = "" if self.rivals is None else repeated_side(self.permutation, self.stated.probability, self.rivals)
        if not side:
            return self.evidence
        return replace(self.evidence, verdict="uncertain", doubt="repeats", repeated=side)

    @property
    def expected_right(self) -> float:
        """How many matches are expected to be right."""
        return float(self.stated.probability[self.permutation >= 0].sum())


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
        work: how much work it took, where the route counts that.
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
        """Whether every table is linked."""
        return all(found.evidence.verdict == "linked" for found in self.found)

    @property
    def believed(self) -> bool:
        """Whether the map of every table is believed, though rows may be too alike to be told apart."""
        return all(found.evidence.believed for found in self.found)


def canonical_correlations(first: FloatArray, second: FloatArray, *, rank: int) -> FloatArray:
    """Return the canonical correlations of latents of the same entities; none if the entities are too few."""
    if len(first) <= rank + 1:
        return np.empty(0)
    sides = (np.linalg.qr(side - side.mean(axis=0))[0] for side in (first, second))
    left, right = sides
    return np.clip(np.linalg.svd(left.T @ right, compute_uv=False), 0.0, 1.0)
