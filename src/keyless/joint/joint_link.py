"""Linking any number of tables at once: the entry point and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyless.arrays import Array, as_matrix, to_numpy
from keyless.errors import CONVERGED, InputError, Status
from keyless.joint.clusters import Cluster, Collection, alone, match_table, overall_score
from keyless.joint.knowledge import implied
from keyless.joint.linking import Task, decide_alone, finish, link_all
from keyless.joint.ordering import Arrangement
from keyless.joint.watch import Start, Watch
from keyless.model.factor_model import FactorModel, fit_table
from keyless.pairs.constraints import Constraints
from keyless.progress import Callback, Deadline

__all__ = ["JointLink", "link_tables"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class JointLink:
    """Tables linked to a reference, the first of them.

    Attributes:
        permutations: per other table, the row that belongs to each reference row, −1 for none.
        couplings: per other table, reference rows × its rows: the probability that they are the same entity, given the
            model and how the other tables are joined. Rows sum to less than 1 where there may be no partner.
        log_ratios: likewise, the log-likelihood ratio of "same entity" against "two entities", every table against all
            the others joined; `keyless.likelihood.FORBIDDEN` for pairs that are not allowed.
        rows: per table, reference included, the row of every entity, −1 where it has none. The first entities are the
            rows of the reference, in order.
        model: factor model over the columns of all tables, side by side in the given order.
        convincing: whether every join on the way scored what right ones score.
        score: mean log-likelihood ratio per matched row, each table against all the others, known pairs left out; 0
            where none is matched.
        expected_score: what the model expects it to be when all matches are right.
        may_be_alone: whether rows were allowed to have no partner.
        status: how the search ended.
        starts: what was tried, in order.
    """

    permutations: tuple[IntArray, ...]
    couplings: tuple[FloatArray, ...]
    log_ratios: tuple[FloatArray, ...]
    rows: tuple[IntArray, ...]
    model: FactorModel
    convincing: bool
    score: float
    expected_score: float
    may_be_alone: bool
    status: Status
    starts: tuple[Start, ...]


def link_tables(
    tables: Sequence[tuple[Array, Array]],
    *,
    rank: int | None = None,
    may_be_alone: bool | None = None,
    thorough: bool = True,
    constraints: Constraints | None = None,
    start_couplings: Mapping[tuple[int, int], Array] | None = None,
    callback: Callback | None = None,
    deadline: Deadline | None = None,
) -> JointLink:
    """Find which rows of all tables are the same entity: the matching under which one factor model fits all best.

    Clusters of tables are joined, the most convincing pair first; after every join the model is refitted and each table
    matched anew against all the others, until nothing moves. The result does not depend on the order of tables, rows
    and columns, nor on the signs of columns.

    Args:
        tables: standard scores (0 where missing) and masks (True where observed), the reference first.
        rank: the most factors there are; None: found from the data.
        may_be_alone: whether rows may have no partner. None: decided from the data (yes, if the sizes differ).
        thorough: look again, and long, where no join convinces at first.
        constraints: which rows may, must or must not be the same entity.
        start_couplings: per pair of tables, rows of the one × rows of the other: a correspondence to try first.
        callback: called with stage (`"tables"`, `"starts"`, `"joins"`), step, total (0 where it is not known
            beforehand) and objective (for tables the rank, else the mean log-likelihood ratio per row).
        deadline: when to stop and return the best so far.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> whole = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 20)) + 0.05 * rng.normal(size=(60, 20))
        >>> whole = (whole - whole.mean(axis=0)) / whole.std(axis=0)
        >>> order = rng.permutation(60)
        >>> halves = whole[:, :10], whole[order, 10:]
        >>> found = link_tables([(half, np.ones(half.shape, dtype=bool)) for half in halves])
        >>> bool((order[found.permutations[0]] == np.arange(60)).all())
        True
    """
    given = _checked_tables(tables)
    sizes = tuple(len(values) for values, _ in given)
    if constraints is not None and constraints.sizes != sizes:
        raise InputError(f"constraints: must be about tables of {sizes} rows; found {constraints.sizes}.")
    arrangement = Arrangement.of(given)
    watch = Watch(callback, deadline)
    placed = tuple(
        order.apply(*given[number]) for number, order in zip(arrangement.tables, arrangement.orders, strict=True)
    )
    task = Task(
        Collection(placed, None if constraints is None else implied(arrangement.constraints(constraints))),
        arrangement.couplings(_checked_couplings(start_couplings or {}, sizes)),
        watch,
        largest_rank=40 if rank is None else rank,
        thorough=thorough,
    )
    clusters = []
    for place, (values, mask) in enumerate(placed):
        clusters.append(alone(place, len(values), fit_table(values, mask, largest_rank=task.largest_rank)))
        watch.report("tables", place + 1, len(placed), float(clusters[-1].model.rank))
    if may_be_alone is None and len(set(sizes)) > 1:
        may_be_alone = True
    cluster, sure = link_all(task, clusters, may_be_alone=may_be_alone)
    if may_be_alone is None:
        partial = any(np.any(index < 0) for index in cluster.rows)
        cluster, may_be_alone = decide_alone(task, cluster)
        if partial and not may_be_alone and not watch.expired():
            # Some join left rows alone that turn out to have partners: it may have been a wrong one.
            cluster, sure = link_all(task, clusters, may_be_alone=False)
    cluster = finish(task, cluster, may_be_alone=may_be_alone)
    return _result(task, cluster, arrangement, may_be_alone=may_be_alone, sure=sure)


def _checked_tables(tables: Sequence[tuple[Array, Array]]) -> list[tuple[FloatArray, BoolArray]]:
    if len(tables) < 2:
        raise InputError(f"tables: must be at least two, the reference first; found {len(tables)}.")
    checked = []
    for number, (scores, mask) in enumerate(tables):
        values = to_numpy(as_matrix(scores, name=f"tables[{number}], scores")).astype(np.float64)
        seen = to_numpy(mask)
        if seen.shape != values.shape or seen.dtype.kind != "b":
            raise InputError(
                f"tables[{number}], mask: must be booleans of shape {values.shape}, as the scores; found "
                f"{seen.dtype} of shape {seen.shape}."
            )
        checked.append((np.where(seen, values, 0.0), seen))
    return checked


def _checked_couplings(
    couplings: Mapping[tuple[int, int], Array], sizes: tuple[int, ...]
) -> dict[tuple[int, int], FloatArray]:
    checked = {}
    for (first, second), coupling in couplings.items():
        name = f"start_couplings[{first}, {second}]"
        if first == second or not all(0 <= number < len(sizes) for number in (first, second)):
            raise InputError(f"{name}: must be about two different tables from 0 to {len(sizes) - 1}.")
        matrix = to_numpy(as_matrix(coupling, name=name)).astype(np.float64)
        if matrix.shape != (sizes[first], sizes[second]):
            raise InputError(f"{name}: must be {sizes[first]} × {sizes[second]}; found shape {matrix.shape}.")
        checked[first, second] = matrix
    return checked


def _result(task: Task, cluster: Cluster, arrangement: Arrangement, *, may_be_alone: bool, sure: bool) -> JointLink:
    """The cluster of the tables in standard order, as the answer about the tables as given."""
    collection = task.collection
    reference = arrangement.place(0)
    couplings, log_ratios = [], []
    for number in range(1, len(arrangement.tables)):
        place = arrangement.place(number)
        kept, found, log_ratio = match_table(collection, cluster, place, may_be_alone=may_be_alone)
        entities = np.argsort(arrangement.orders[reference].given_rows(kept.rows[reference]), kind="stable")
        entities = entities[np.count_nonzero(kept.rows[reference] < 0) :]
        columns = arrangement.orders[place].standard_rows
        couplings.append(found.coupling()[np.ix_(entities, columns)])
        log_ratios.append(log_ratio[np.ix_(entities, columns)])
    rows = _given_entities(cluster, arrangement)
    size = len(collection.tables[reference][0])
    score, expected = overall_score(collection, cluster)
    return JointLink(
        permutations=tuple(index[:size] for index in rows[1:]),
        couplings=tuple(couplings),
        log_ratios=tuple(log_ratios),
        rows=rows,
        model=arrangement.given_model(cluster.model),
        convincing=sure,
        score=score,
        expected_score=expected,
        may_be_alone=may_be_alone,
        status=_status(task.watch, cluster, sure=sure),
        starts=tuple(_given_start(start, arrangement) for start in task.watch.starts),
    )


def _given_entities(cluster: Cluster, arrangement: Arrangement) -> tuple[IntArray, ...]:
    """Rows as given of every entity, per table as given; entities in the order of the reference's rows, then others."""
    rows = [
        arrangement.orders[place].given_rows(cluster.rows[place])
        for place in map(arrangement.place, range(len(arrangement.tables)))
    ]
    keys = [np.where(index >= 0, index, np.iinfo(np.int64).max) for index in rows]
    order = np.lexsort(keys[::-1])
    return tuple(index[order] for index in rows)


def _given_start(start: Start, arrangement: Arrangement) -> Start:
    first, second = (tuple(arrangement.tables[place] for place in side) for side in start.pair)
    return replace(start, pair=(first, second))


def _status(watch: Watch, cluster: Cluster, *, sure: bool) -> Status:
    if watch.stopped:
        return Status("max_time", "Stopped at the time limit with the best found so far. Raise the time limit.")
    if not sure:
        return Status(
            "unconvincing",
            "No start led to rows that agree as well as right ones would. The tables may not describe the same "
            "entities or share too little; add columns, known pairs or groups.",
        )
    if not cluster.settled:
        return Status("max_iter", "Some rows still moved when the refinement ended; look at their probabilities.")
    return CONVERGED
