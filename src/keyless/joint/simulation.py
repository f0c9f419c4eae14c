"""Tables like those linked, with the answer known: how often is a match of a stated probability right?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyless.joint.clusters import Cluster, Collection, column_slices, match_table, overall_score, refine, stack
from keyless.joint.joint_link import JointLink
from keyless.joint.knowledge import implied
from keyless.joint.ordering import Arrangement
from keyless.model.factor_model import FactorModel, fit, information, initial_model, posterior
from keyless.pairs.constraints import Constraints

__all__ = ["Simulated", "Simulation"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
ScoreTable = tuple[FloatArray, BoolArray]


@dataclass(frozen=True, eq=False)
class Simulated:
    """What linking simulated tables gave.

    Attributes:
        matches: per table but the first: stated probability of what was found for each reference row (a partner or
            none), and whether it is right.
        score: mean log-likelihood ratio per matched row, as `JointLink.score`.
    """

    matches: list[tuple[FloatArray, BoolArray]]
    score: float


class Simulation:
    """Draws tables from the fitted model, links them from their true order, and compares.

    Every entity keeps the latents the tables give it, within their uncertainty, so that rows that are hard to tell
    apart stay so; noise is drawn anew and the same entries are missing. The model is fitted again on what is drawn:
    that loadings are only estimates is part of what makes stated probabilities too sure.

    Args:
        tables: standard scores (0 where missing) and masks that were linked.
        link: what was found.
        constraints: those it was found under.
    """

    def __init__(
        self, tables: Sequence[ScoreTable], link: JointLink, *, constraints: Constraints | None = None
    ) -> None:
        self.arrangement = Arrangement.of(tables)
        places = zip(self.arrangement.tables, self.arrangement.orders, strict=True)
        self.tables = tuple(order.apply(*tables[number]) for number, order in places)
        self.rows = _standard_entities(link, self.arrangement)
        self.constraints = None if constraints is None else implied(self.arrangement.constraints(constraints))
        self.may_be_alone = link.may_be_alone
        self.values, self.mask = stack(self.tables, self.rows)
        start = initial_model(self.values, self.mask, link.model.rank + 2)
        self.model, _ = fit(self.values, self.mask, start, max_iter=60)

    def run(self, *, seed: int, noise: float = 1.0) -> Simulated:
        """Draw and link once.

        Args:
            seed: of all random numbers.
            noise: factor of the noise variance. A fitted model takes noise for signal, so tables drawn from it as it is
                agree better, once linked, than those it was fitted to.
        """
        rng = np.random.default_rng([seed, 31])
        drawn = _drawn(replace(self.model, noise=noise * self.model.noise), self.values, self.mask, rng)
        simulated = tuple(
            _scattered(drawn[:, part], index, table)
            for part, index, table in zip(column_slices(self.tables), self.rows, self.tables, strict=True)
        )
        collection = Collection(simulated, self.constraints)
        cluster = Cluster(tuple(range(len(simulated))), self.rows, self.model)
        cluster = refine(collection, cluster, may_be_alone=self.may_be_alone, max_rounds=4)
        places = map(self.arrangement.place, range(1, len(simulated)))
        return Simulated(
            [self._compared(collection, cluster, place) for place in places], overall_score(collection, cluster)[0]
        )

    def _compared(self, collection: Collection, cluster: Cluster, place: int) -> tuple[FloatArray, BoolArray]:
        """Return what is stated about each reference row's partner in one table, and whether it is right."""
        reference = self.arrangement.place(0)
        here = self.rows[reference] >= 0
        truth = np.full(len(self.tables[reference][0]), -1)
        truth[self.rows[reference][here]] = self.rows[place][here]
        kept, match, _ = match_table(collection, cluster, place, may_be_alone=self.may_be_alone)
        entities = np.flatnonzero(kept.rows[reference] >= 0)
        chosen, coupling = match.permutation[entities], match.coupling()[entities]
        partner = coupling[np.arange(len(entities)), np.maximum(chosen, 0)]
        stated = np.clip(np.where(chosen >= 0, partner, 1 - coupling.sum(axis=1)), 0.0, 1.0)
        return stated, chosen == truth[kept.rows[reference][entities]]


def _standard_entities(link: JointLink, arrangement: Arrangement) -> tuple[IntArray, ...]:
    """Entities by their rows in standard order, sorted by them."""
    rows = []
    for number, order in zip(arrangement.tables, arrangement.orders, strict=True):
        given = link.rows[number]
        rows.append(np.where(given >= 0, order.standard_rows[np.maximum(given, 0)], -1))
    order_of_entities = np.lexsort(rows[::-1])
    return tuple(index[order_of_entities] for index in rows)


def _drawn(model: FactorModel, values: FloatArray, mask: BoolArray, rng: np.random.Generator) -> FloatArray:
    """All columns of all entities, as the model might have it."""
    means, covariance, _ = posterior(information(model, values, mask))
    latents = means + np.einsum("nab,nb->na", np.linalg.cholesky(covariance), rng.normal(size=means.shape))
    noise = np.sqrt(model.noise) * rng.normal(size=values.shape)
    return np.asarray(latents @ model.loadings.T + model.offsets + noise, dtype=np.float64)


def _scattered(values: FloatArray, rows: IntArray, table: ScoreTable) -> ScoreTable:
    """The drawn columns as a table with the rows and gaps of the one given."""
    scores, mask = table
    drawn = np.zeros_like(scores)
    here = rows >= 0
    drawn[rows[here]] = values[here]
    return np.where(mask, drawn, 0.0), mask
