"""Find the likeliest rows of another table for rows of one, cell by cell of the space where distance is likelihood.

Every right row is in one cell. The partner of a left row is sought first in the cell that the left row lies in. If it
is not surely found there, the cells behind the nearest borders are searched, one after the other while many rows are
undecided, and then all other cells that may hold a likely partner. Up to `cells.CELL` rows there is one cell. Cells are
made of pieces of the tables' shards, so that no worker holds all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from keyless.arrays import FloatArray, IntArray, SingleArray, batches
from keyless.model.positions import Places
from keyless.model.shards import Sharded, in_batches, sampled, split
from keyless.pairs.cells import CELL, Cells
from keyless.pairs.faiss_index import CellLayout
from keyless.pairs.limits import Part
from keyless.pairs.metric import Metric
from keyless.pairs.neighbours import lay_out, nearest

__all__ = ["HOPELESS", "NearestRows", "find_nearest_rows"]

_CANDIDATES = 5
"""How many candidates a row is given, where all rows have the same precision."""

_ROUGH_CANDIDATES = 12
"""How many candidates a row is given, where the search uses average precisions and exact ratios only rank what it
finds."""

_FURTHER = 50
_CLOSE = 10.0
"""Rows whose last candidate is at most `_CLOSE` nats behind the best are given up to `_FURTHER` candidates."""

_BEYOND_CHANCE = 12.0
"""Nats above the best of all wrong partners from which a row has surely found its own, and the search for it ends."""

HOPELESS = 25.0
"""Pairs so many nats behind the best of their row are no candidates."""

_SAMPLE = 65_536
"""The most points, drawn at random, by which the borders of cells are found."""

_CELL_ON_DEVICE = 2**24
"""The most points of a cell that a graphics card searches: 40 latents of so many points take 3 GB there."""

_FARTHEST = 5.0
"""Standard deviations, across borders of cells, by which a partner may be away from where its row looks for it: a row
does not look into cells that are farther away. With normal noise about one row in a million has its partner there. This
limit is not used where the nearest row matters however far it is, nor where rows have gaps of their own, since the
deviations then are those of an average row."""

_MANY_ASKING = 0.01
"""Rows that search the cell behind the nearest border, as a share of the rows among which they search. From this share
on, those that are still undecided then search the next nearest cell alone: most find their partner there, and need not
search all other cells. Among thirty million rows of 20 factors, a seventh of the partners is in another cell than its
row, and the first step finds four fifths of those. With fewer such rows another step costs more than it saves, since it
goes through all cells again."""

_MOST_LEFT = 0.5
"""Part of the rows of one step that may be left for the next. Where more are left, most have no partner in any cell,
and all other cells are searched at once. So no more than seven steps follow each other before fewer rows are left than
`_MANY_ASKING` says."""

_MOST_CELLS = 16
"""The most cells, the nearest ones, that a row looks into; rows that would have to look into more lower the recall."""


@dataclass(frozen=True, eq=False)
class NearestRows:
    """Pairs of near rows, by number.

    Attributes:
        rows: left row of each pair.
        columns: right row of each pair.
        values: log-likelihood ratio of each pair.
        asked: left rows whose partners were sought.
        best: per row of `asked`, the largest ratio seen, −∞ where there is none.
        evaluations: how many distances were looked at.
        recall: share of sampled rows whose likeliest partner was found.
    """

    rows: IntArray
    columns: IntArray
    values: SingleArray
    asked: IntArray
    best: SingleArray
    evaluations: int
    recall: float


@dataclass(frozen=True, eq=False)
class _How:
    """How near rows are looked for: `asked` rows among `total`; the same for all cells."""

    metric: Metric
    cells: Cells
    asked: int
    total: int
    exact: bool
    further: bool
    lowest: float
    seed: int
    device: Any

    @property
    def candidates(self) -> int:
        """How many candidates a row is given."""
        return _CANDIDATES if self.exact else _ROUGH_CANDIDATES


@dataclass(frozen=True, eq=False)
class _Piece:
    """Rows of one shard or cell: numbers and places; of rows whose partner is sought, offsets and best ratios."""

    numbers: IntArray
    vectors: SingleArray
    offsets: FloatArray
    best: FloatArray

    @classmethod
    def joined(cls, pieces: list[_Piece]) -> _Piece:
        parts = [[getattr(piece, name) for piece in pieces] for name in ("numbers", "vectors", "offsets", "best")]
        return cls(*(part[0] if len(part) == 1 else np.concatenate(part) for part in parts))

    def __getitem__(self, rows: IntArray) -> _Piece:
        return _Piece(self.numbers[rows], self.vectors[rows], self.offsets[rows], self.best[rows])


def find_nearest_rows(
    places: Places,
    part: Part = (None, None),
    *,
    exact: bool = True,
    further: bool = False,
    lowest: float = -np.inf,
    seed: int = 0,
) -> NearestRows:
    """Return for left rows the likeliest right rows.

    Args:
        places: where the rows of both tables stand.
        part: left rows whose partners are sought, each row once, and right rows among which they are sought; None: all.
        exact: whether all rows of a side have the same precision, so that ratios are exact.
        further: whether rows with many close candidates are given more of them.
        lowest: ratio below which no pair is wanted.
        seed: of the random numbers of the search.
    """
    left, right = (each.rows for each in places)
    metric = Metric.between(places[0].precision, places[1].precision)
    asked, total = (len(rows) if some is None else len(some) for rows, some in zip((left, right), part, strict=True))
    device = left.workers.device
    most = CELL if device is None else _CELL_ON_DEVICE
    cells = _cells(right, part[1], metric, -(-total // most), seed)
    how = _How(metric, cells, asked, total, exact, further, lowest, seed, device)
    workers, every = left.workers, range(len(how.cells))
    asking, points = _homes(left, part[0], how, asking=True), _homes(right, part[1], how, asking=False)
    # A cell has at most `most` points, and at most as many rows search it at a time; for that, shards take turns.
    turns = max(1, -(-asked // (most * len(cells))))
    found, layouts = [], []
    for cell in every:
        one, other = _pieces(left, asking, how, cell, asking=True), _pieces(right, points, how, cell, asking=False)
        layouts.append(workers.start(_lay_out, other, how))
        by_turns = [one[k::turns] for k in range(min(turns, len(one)))]
        found += [workers.start(_search, some, other, layouts[cell], cell, how) for some in by_turns]
        del one, other
    again: list[Any] = []
    searching = list(found) if len(every) > 1 else []
    everywhere, before = False, np.inf
    while searching:
        counts = np.array(workers.fetch([workers.start(_counts, each, len(every)) for each in searching]))
        seen: dict[int, list[Any]] = {}
        for cell in np.flatnonzero(counts.any(axis=0)).tolist():
            other = _pieces(right, points, how, cell, asking=False)
            seen[cell] = []
            for some in _turns(counts[:, cell], most):
                one = [workers.start(_going_to, searching[home], cell) for home in some.tolist()]
                seen[cell].append(workers.start(_search_again, one, other, layouts[cell], how))
                del one
            del other
            again += seen[cell]
        if everywhere:
            break
        everywhere = counts.sum() < _MANY_ASKING * total or counts.sum() > _MOST_LEFT * before
        before = counts.sum()
        best = {cell: [workers.start(_best_of, near) for near in all_turns] for cell, all_turns in seen.items()}
        for home, row in enumerate(counts):
            own = [one for cell in np.flatnonzero(row).tolist() for one in best[cell]]
            searching[home] = workers.start(_still_undecided, searching[home], own, how, everywhere)
    cut = sum(workers.fetch([workers.start(_cut, each) for each in searching]))
    near = _merged(workers.fetch([workers.start(_bare, each) for each in found]), workers.fetch(again), len(left), how)
    return replace(near, recall=min(near.recall, 1 - cut / max(len(near.asked), 1)))


def _turns(counts: IntArray, most: int) -> list[IntArray]:
    """Return the cells whose rows search a given cell, some cells at a time, with about `most` rows together."""
    homes = np.flatnonzero(counts)
    turn = (np.cumsum(counts[homes]) - 1) // most
    return np.split(homes, np.flatnonzero(np.diff(turn)) + 1)


def _cells(points: Sharded, chosen: IntArray | None, metric: Metric, count: int, seed: int) -> Cells:
    if count <= 1:
        return Cells.of(np.empty((0, 1), dtype=np.float32), 1)
    total = len(points) if chosen is None else len(chosen)
    rows = sampled(total, _SAMPLE, np.random.default_rng([seed, 59]))
    return Cells.of(metric.points(points.take(rows if chosen is None else chosen[rows])), count)


def _homes(rows: Sharded, chosen: IntArray | None, how: _How, *, asking: bool) -> list[Any]:
    """Begin to sort the rows of each shard by cells, and return what stands for the results."""
    own: list[Any] = [None] * len(rows.shards)
    if chosen is not None:
        own = [chosen[place] - first for place, first in zip(split(chosen, rows.edges), rows.edges[:-1], strict=True)]
    return rows.start(partial(_by_cell, how=how, asking=asking), own)


def _by_cell(
    shard: FloatArray, turn: FloatArray, _first: int, rows: IntArray | None, *, how: _How, asking: bool
) -> list[IntArray]:
    if len(how.cells) == 1:
        return [np.arange(len(shard)) if rows is None else rows]
    place = how.metric.queries if asking else how.metric.points
    some = shard if rows is None else shard[rows]
    home = np.empty(len(some), dtype=np.int32)
    for start, means in in_batches(some, turn):
        home[start : start + len(means)] = how.cells.home(place(means))
    order = np.argsort(home, kind="stable").astype(np.int32)
    edges = np.searchsorted(home[order], np.arange(1, len(how.cells)))
    return np.split(order if rows is None else rows[order], edges)


def _pieces(rows: Sharded, homes: list[Any], how: _How, cell: int, *, asking: bool) -> list[Any]:
    return rows.start(partial(_piece, metric=how.metric, cell=cell, asking=asking), homes)


def _piece(
    shard: FloatArray, turn: FloatArray, first: int, homes: list[IntArray], *, metric: Metric, cell: int, asking: bool
) -> _Piece:
    rows = homes[cell]
    vectors = np.empty((len(rows), metric.to_points.shape[1]), dtype=np.float32)
    offsets = np.empty(len(rows) if asking else 0)
    # All rows in their order need not be copied.
    some = shard if np.array_equal(rows, np.arange(len(shard))) else shard[rows]
    for start, means in in_batches(some, turn):
        here = slice(start, start + len(means))
        vectors[here] = (metric.queries if asking else metric.points)(means)
        if asking:
            offsets[here] = metric.offsets(means)
    # Numbers of 4 bytes are enough for two billion rows, and pairs of row numbers are what the search holds most of.
    numbers: IntArray = first + rows.astype(np.int64)
    if first + len(shard) < 2**31:
        numbers = numbers.astype(np.int32)
    return _Piece(numbers, vectors, offsets, np.empty(0))


@dataclass(frozen=True, eq=False)
class _Found:
    """What the rows of one cell found, and which of them search which other cells next.

    Attributes:
        near: what they found in the cell itself.
        home: the cell.
        undecided: rows that have not surely found their partner, and may find it elsewhere.
        visited: per undecided row, the other cells that were searched for it one by one, or are searched next.
        going: per cell, the rows that search it next, as places among the undecided.
        cut: how many undecided rows would have to search more cells than they may.
    """

    near: NearestRows
    home: int
    undecided: _Piece
    visited: IntArray
    going: dict[int, IntArray]
    cut: int = 0


def _lay_out(points: list[_Piece], how: _How) -> CellLayout | None:
    """Sort the points of a cell for all searches in it."""
    vectors = _Piece.joined(points).vectors
    return lay_out(vectors, len(vectors) * how.asked // how.total, seed=how.seed, device=how.device)


def _search(asking: list[_Piece], points: list[_Piece], layout: CellLayout | None, cell: int, how: _How) -> _Found:
    """Search a cell for the partners of its rows; those that are not sure search the nearest other cell next."""
    queries, others = _Piece.joined(asking), _Piece.joined(points)
    near = _in_cell(queries, others, layout, how)
    if layout is not None:
        near = replace(near, evaluations=near.evaluations + layout.looked)
    queries = replace(queries, best=near.best.astype(np.float64))
    return _to_the_nearest(_Found(near, cell, queries, np.empty((len(queries.best), 0), dtype=np.int64), {}), how)


def _still_undecided(found: _Found, seen: list[tuple[IntArray, FloatArray]], how: _How, everywhere: bool) -> _Found:
    """Return which rows are still undecided, and which cells they search next.

    Args:
        found: what the rows of one cell found so far.
        seen: rows that searched other cells, and the best ratios that they found there.
        how: the same for all.
        everywhere: whether they search all cells that may hold a likely partner, or only the nearest of them.
    """
    pieces, best = found.undecided, found.undecided.best.copy()
    order = np.argsort(pieces.numbers)
    for rows, ratio in seen:
        place = np.minimum(np.searchsorted(pieces.numbers[order], rows), max(len(order) - 1, 0))
        own = pieces.numbers[order[place]] == rows if len(order) else np.zeros(len(rows), dtype=bool)
        np.maximum.at(best, order[place[own]], ratio[own])
    found = replace(found, undecided=replace(pieces, best=best))
    return _to_all(found, how) if everywhere else _to_the_nearest(found, how)


def _to_the_nearest(found: _Found, how: _How) -> _Found:
    """Let undecided rows search the nearest cell next that may hold a likely partner; rows without any are done."""
    nearest_cell = np.full(len(found.visited), -1)
    for rows, distance in _elsewhere(found, how) if len(how.cells) > 1 else ():
        nearest_cell[rows] = np.where(np.isinf(distance).all(axis=1), -1, distance.argmin(axis=1))
    left = np.flatnonzero(nearest_cell >= 0)
    nearest_cell = nearest_cell[left]
    going = {cell: np.flatnonzero(nearest_cell == cell) for cell in np.unique(nearest_cell).tolist()}
    visited = np.column_stack([found.visited[left], nearest_cell])
    return replace(found, undecided=found.undecided[left], visited=visited, going=going)


def _to_all(found: _Found, how: _How) -> _Found:
    """Let undecided rows search all cells next that may hold a likely partner, as far as they may."""
    going: dict[int, list[IntArray]] = {}
    cut, most = 0, _MOST_CELLS - 1 - found.visited.shape[1]
    for rows, distance in _elsewhere(found, how):
        into = np.isfinite(distance)
        many = into.sum(axis=1) > most
        if many.any():
            limit = np.partition(distance[many], most - 1, axis=1)[:, most - 1]
            cut += int(many.sum())
            into[many] &= distance[many] <= limit[:, None]
        for other in np.flatnonzero(into.any(axis=0)).tolist():
            going.setdefault(other, []).append(rows[into[:, other]])
    return replace(found, going={other: np.concatenate(rows) for other, rows in going.items()}, cut=cut)


def _sure(best: FloatArray, how: _How) -> Any:
    """Tell which rows have found a partner that is beyond all chance."""
    return (best >= np.log(max(how.total, 1)) + _BEYOND_CHANCE) & how.exact


def _elsewhere(found: _Found, how: _How) -> Iterator[tuple[IntArray, SingleArray]]:
    """Yield some undecided rows and how far they are from cells that may hold a likely partner, ∞ for the others."""
    queries = found.undecided
    rows = np.flatnonzero(~_sure(queries.best, how))
    # A likely partner is at most `_CLOSE` nats behind the best, and so at most this far away.
    reach = 2 * (queries.offsets - np.maximum(queries.best - _CLOSE, how.lowest))
    if how.exact and how.lowest > -np.inf:
        reach = np.minimum(reach, _FARTHEST**2)
    for part in batches(len(rows), 8_192):
        some = rows[part]
        distance = how.cells.distances(queries.vectors[some])
        distance[:, found.home] = np.inf
        np.put_along_axis(distance, found.visited[some], np.inf, axis=1)
        distance[distance >= reach[some, None]] = np.inf
        yield some, distance


def _search_again(asking: list[_Piece], points: list[_Piece], layout: CellLayout | None, how: _How) -> NearestRows:
    """Search one cell for the partners of rows of other cells."""
    queries, others = _Piece.joined(asking), _Piece.joined(points)
    return _in_cell(queries, others, layout, how, known=queries.best)


def _counts(found: _Found, cells: int) -> list[int]:
    return [len(found.going.get(cell, ())) for cell in range(cells)]


def _going_to(found: _Found, cell: int) -> _Piece:
    return found.undecided[found.going[cell]]


def _best_of(near: NearestRows) -> tuple[IntArray, SingleArray]:
    return near.asked, near.best


def _cut(found: _Found) -> int:
    return found.cut


def _bare(found: _Found) -> NearestRows:
    return found.near


def _merged(first: list[NearestRows], again: list[NearestRows], size: int, how: _How) -> NearestRows:
    """Return what was found in all cells; each row keeps as many pairs as one cell would give it."""
    every = first + again
    rows, columns, values = (
        np.concatenate([getattr(near, name) for near in every]) for name in ("rows", "columns", "values")
    )
    asked, best = (np.concatenate([getattr(near, name) for near in first]) for name in ("asked", "best"))
    if again:
        # For rows that searched several cells, the best ratio of all cells counts.
        place = np.empty(size, dtype=np.int64)
        place[asked] = np.arange(len(asked))
        for near in again:
            at = place[near.asked]
            best[at] = np.maximum(best[at], near.best)
        bar = np.empty(size, dtype=np.float32)
        bar[asked] = best
        # Rows that looked into one cell only have as many pairs as they should.
        several = np.zeros(size, dtype=bool)
        for near in again:
            several[near.asked] = True
        merged = several[rows]
        some = [part[merged] for part in (rows, columns, values)]
        kept = _best_few(some[0], bar[some[0]] - some[2], how)
        rows, columns, values = (
            np.concatenate([part[~merged], own[kept]]) for part, own in zip((rows, columns, values), some, strict=True)
        )
    evaluations, recall = sum(near.evaluations for near in every), min(near.recall for near in every)
    return NearestRows(rows, columns, values, asked, best, evaluations, recall)


def _best_few(rows: IntArray, behind: FloatArray, how: _How) -> IntArray:
    """Return which pairs of several cells are kept: as many as one cell would give.

    Args:
        rows: left row of each pair.
        behind: nats that each pair is behind the best of its row.
        how: the same for all.
    """
    order = np.lexsort((behind, rows))
    rows, behind = rows[order], behind[order]
    first = np.searchsorted(rows, rows)
    place = np.arange(len(rows)) - first
    keep = place < how.candidates
    if how.exact:
        keep &= behind < HOPELESS
    if how.further:
        # Where as many pairs are close as a row is given candidates, the row is given more.
        last = first + how.candidates - 1
        crowded = np.append(rows, -1)[np.minimum(last, len(rows))] == rows
        crowded[crowded] = behind[last[crowded]] < _CLOSE
        close = behind < (_CLOSE if how.exact else HOPELESS)
        keep = np.where(crowded, (place < _FURTHER) & close, keep)
    return order[keep]


def _in_cell(
    asking: _Piece, others: _Piece, layout: CellLayout | None, how: _How, *, known: FloatArray | None = None
) -> NearestRows:
    """Return the likeliest points of each query, without those that are hopeless beside its best, known or new."""
    queries, points, offsets = asking.vectors, others.vectors, asking.offsets
    count = min(how.candidates, len(points))
    # The best of n wrong partners has a ratio above log n + t nats in one of exp(t) cases.
    enough = 2 * (offsets - np.log(max(how.total, 1)) - _BEYOND_CHANCE) if how.exact else None
    # A row less likely than one at random is no partner, nor one far less likely than what was found elsewhere; where
    # every row must have a partner, the nearest always matters.
    limit = None
    if how.exact and how.lowest > -np.inf:
        limit = 2 * (offsets if known is None else offsets - np.maximum(known - _CLOSE, 0.0))
    by = {"layout": layout, "seed": how.seed, "device": how.device}
    found = nearest(points, queries, count, enough=enough, limit=limit, **by)
    ratios = _ratios(points, queries, offsets, found.points)
    evaluations, recall = found.evaluations, found.recall
    best = ratios.max(axis=1, initial=-np.inf)
    bar = best if known is None else np.maximum(best, known)
    # Rows that are given more candidates are searched for anew.
    close = np.zeros(len(queries), dtype=bool)
    if how.further and 0 < count < len(points):
        # After a candidate that is not wanted no further one is wanted. So it is for most rows whose partner is in
        # another cell.
        close = ratios[:, -1] > np.maximum(bar - _CLOSE, how.lowest)
    keep = ~close[:, None] & (found.points >= 0)
    if how.exact:
        keep &= ratios > np.maximum(bar - HOPELESS, how.lowest)[:, None]
    rows, place = np.nonzero(keep)
    columns, values = found.points[rows, place], ratios[keep]
    del found, ratios, keep, place
    if close.any():
        again = np.flatnonzero(close)
        more = nearest(points, queries[again], min(_FURTHER, len(points)), **by)
        ratios = _ratios(points, queries[again], offsets[again], more.points)
        keep = (ratios > bar[again, None] - (_CLOSE if how.exact else HOPELESS)) & (more.points >= 0)
        index, place = np.nonzero(keep)
        rows, columns = np.concatenate([rows, again[index]]), np.concatenate([columns, more.points[index, place]])
        values = np.concatenate([values, ratios[keep]])
        evaluations, recall = evaluations + more.evaluations, min(recall, more.recall)
    numbers = asking.numbers
    return NearestRows(numbers[rows], others.numbers[columns], values, numbers, best, evaluations, recall)


def _ratios(points: SingleArray, queries: SingleArray, offsets: FloatArray, chosen: IntArray) -> SingleArray:
    """Return the log-likelihood ratios of queries and the points chosen for them, −∞ where there is none."""
    ratios = np.empty(chosen.shape, dtype=np.float32)
    for part in batches(len(queries), 8_192):
        near = points[np.maximum(chosen[part], 0)].astype(np.float64)
        ratios[part] = offsets[part, None] - 0.5 * np.square(near - queries[part][:, None, :]).sum(axis=2)
    ratios[chosen < 0] = -np.inf
    return ratios
