"""What a run begins with: the tables on their scales, what the caller knows of rows, and the seed of all stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from keyless.arrays import BoolArray, FloatArray
from keyless.block import Block
from keyless.engine import Side
from keyless.engine.joined import Joined, side_by_side
from keyless.engine.side import MAX_RANK
from keyless.errors import InputError
from keyless.knowledge import read_constraints, shared_pairs, start_couplings
from keyless.model.detection_limits import DetectionLimits, limits_of_columns, scales_of_limits, within_limits
from keyless.model.scales import Scale, kinds_of_columns, scale_table
from keyless.model.scored_tables import ScoredTable
from keyless.options import Options
from keyless.pairs.limits import Limits
from keyless.search_options import ScaleName
from keyless.tables import Table, with_missingness
from keyless.tables.on_disk import NumbersOnDisk

__all__ = ["Prepared", "rows_of"]


class Prepared:
    """Tables that are ready to be searched.

    Args:
        options: the options.
        tables: the tables as read, the reference first.
        large: whether they have too many rows to look at all pairs.
    """

    def __init__(self, options: Options, tables: Sequence[Table], *, large: bool) -> None:
        self.options, self.given, self.large = options, tuple(tables), large
        # Where the reference is the table that repeats entities, each of its rows is matched for itself.
        self.shares = options.repeats == tables[0].name
        # The generator is made once, here; every stage gets its seed.
        given = options.random_state
        if isinstance(given, np.random.Generator):
            given = int(given.integers(2**31))
        self.random_state = None if given is None else _whole(given)
        self.seed = 0 if given is None else int(np.random.default_rng(self.random_state).integers(2**31))
        self.tables = [with_missingness(table) for table in tables] if options.missingness else list(tables)
        self.detection_limits = [self._limits_of_columns(table) for table in self.tables]
        self.tables = [
            _without_limits(table, limits) for table, limits in zip(self.tables, self.detection_limits, strict=True)
        ]
        self.constraints = read_constraints(
            tables, known_pairs=options.known_pairs, forbid=options.forbid, within=options.within, shares=self.shares
        )
        self.limits = None if self.constraints.trivial else self.constraints
        self.kinds = [
            kinds_of_columns(kinds, table.block.shape[1], scales_of_limits(limits))
            for kinds, table, limits in zip(
                _kinds_of_scales(options.scales, self.tables), self.tables, self.detection_limits, strict=True
            )
        ]

    def _limits_of_columns(self, table: Table) -> dict[int, DetectionLimits]:
        """Return where values of columns are cut off; nowhere if numbers are on disk.

        For numbers on disk, the marks of all missing entries would have to be held in memory.
        """
        if isinstance(table.keeps, NumbersOnDisk):
            return {}
        return limits_of_columns(table.block.values, table.block.mask, np.random.default_rng([self.seed, 5]))

    @cached_property
    def couplings(self) -> dict[tuple[int, int], list[tuple[str, FloatArray]]]:
        """First couplings, from what is known of rows and from columns that tables share; none where rows are many."""
        return {} if self.large else start_couplings(self.given, self.constraints, self.options.shared)

    @cached_property
    def shared(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Columns that two tables have in common, by the numbers of the tables."""
        return shared_pairs(self.given, self.options.shared)

    @cached_property
    def limits_of_tables(self) -> list[Limits]:
        """Which rows of the reference and of each other table may be matched."""
        sizes = rows_of(self.tables)
        found = [Limits.of_tables(self.limits, number, sizes) for number in range(1, len(sizes))]
        return [replace(limits, shares=self.shares) for limits in found]

    @cached_property
    def scored(self) -> list[tuple[FloatArray, tuple[Scale, ...]]]:
        """Every table on its scales, and the scales."""
        return [
            scale_table(t.block.values, t.block.mask, kind=kind)
            for t, kind in zip(self.tables, self.kinds, strict=True)
        ]

    @property
    def scores(self) -> list[tuple[FloatArray, BoolArray]]:
        """Standard scores and masks."""
        return [(scores, t.block.mask) for (scores, _), t in zip(self.scored, self.tables, strict=True)]

    @cached_property
    def large_tables(self) -> list[ScoredTable]:
        """The tables, their scales chosen by a sample of rows and nothing copied."""
        rng = np.random.default_rng([self.seed, 3])
        return [
            ScoredTable.scaled(
                t.block.values,
                t.block.mask,
                kinds=kind,
                rng=rng,
            )
            for t, kind in zip(self.tables, self.kinds, strict=True)
        ]

    @property
    def scales(self) -> tuple[tuple[Scale, ...], ...]:
        """Per table, the scale of each column, chosen by all rows."""
        return tuple(scales for _, scales in self.scored)

    def ends(self, number: int) -> tuple[Joined, Joined]:
        """Return the reference and another table, each by itself."""
        sizes = rows_of(self.tables)
        return Joined.alone(0, sizes[0]), Joined.alone(number, sizes[number])

    def sides(self, left: Joined, right: Joined) -> tuple[Side, Side]:
        """Return tables as the engine sees them, columns that both sides have first."""
        leading: tuple[list[int], list[int]] = ([], [])
        for first, start in zip(left.numbers, self.edges(left), strict=True):
            for second, other_start in zip(right.numbers, self.edges(right), strict=True):
                for pair in self.shared.get((min(first, second), max(first, second)), []):
                    one, two = pair if first < second else pair[::-1]
                    if start + one not in leading[0] and other_start + two not in leading[1]:
                        leading[0].append(start + one)
                        leading[1].append(other_start + two)
        return self.side(left, leading[0]), self.side(right, leading[1])

    def edges(self, group: Joined) -> list[int]:
        """Return the place of each table's first column where the tables stand side by side."""
        widths = [self.tables[number].block.shape[1] for number in group.numbers]
        return [sum(widths[:k]) for k in range(len(widths))]

    def side(self, group: Joined, leading: Sequence[int]) -> Side:
        """Return one table, or several side by side, as the engine sees them."""
        blocks = [self.tables[number].block for number in group.numbers]
        tables, kind = [(block.values, block.mask) for block in blocks], self.options.scales
        if isinstance(kind, Mapping):
            # Columns whose scales are given are put on them beforehand.
            tables, kind = [self.scores[number] for number in group.numbers], "identity"
        values, mask = tables[0] if len(tables) == 1 else side_by_side(tables, group.rows)
        rank = MAX_RANK if self.options.rank is None else self.options.rank
        name = " and ".join(self.tables[number].name for number in group.numbers)
        chosen = {
            start + k: scale
            for number, start in zip(group.numbers, self.edges(group), strict=True)
            for k, scale in scales_of_limits(self.detection_limits[number]).items()
        }
        return Side(values, mask, scales=kind, max_rank=rank, leading=leading, chosen=chosen, name=name)

    def limits_with(self, left: Joined, right: Joined) -> Limits:
        """Return which entities of tables may be matched.

        The search matches a row once at the most. Where rows share partners, a known pair must not keep its partner
        from other rows. So the search only begins with known pairs, and the answer contains them.
        """
        limits = Limits.between(self.limits, (left.numbers, left.rows), (right.numbers, right.rows))
        return replace(limits, shares=True, known=limits.known[:0]) if self.shares else limits


def _without_limits(table: Table, limits: Mapping[int, DetectionLimits]) -> Table:
    """Return the table with values at a limit of detection missing."""
    if not limits:
        return table
    block = table.block
    inside = within_limits(block.values, block.mask, limits)
    return replace(table, block=Block(block.values, inside, block.name, block.columns, block.row_ids))


def rows_of(tables: Sequence[Table]) -> list[int]:
    """Return how many rows each table has."""
    return [table.block.shape[0] for table in tables]


def _kinds_of_scales(
    scales: ScaleName | Mapping[str, ScaleName], tables: Sequence[Table]
) -> list[ScaleName | list[ScaleName]]:
    """Return per table the kind of scale of all its columns, or of each."""
    if not isinstance(scales, Mapping):
        return [scales for _ in tables]
    known = {name for table in tables for column in table.columns for name in (column, f"{table.name}:{column}")}
    for name in scales:
        if name not in known:
            raise InputError(f"scales: must name columns that are used as numbers; found {name!r}.")
    return [
        [scales.get(f"{table.name}:{column}", scales.get(column, "auto")) for column in table.columns]
        for table in tables
    ]


def _whole(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"random_state: must be None, a whole number from 0 or a numpy Generator; found {seed!r}.")
    return int(seed)
