"""One run from tables to links: which searches suit the tables, and the result of the best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from keyless.arrays import FloatArray
from keyless.cluster import computing_on
from keyless.engine import tells_by_groups
from keyless.engine.columns import MOST_COLUMNS
from keyless.errors import Status
from keyless.evidence import Evidence
from keyless.findings import Found, Route
from keyless.links import Links, TableLink
from keyless.model.joint_model import JointModel
from keyless.options import Options
from keyless.prepared import rows_of
from keyless.progress import Deadline, cut_short, stopped_by_interrupt
from keyless.searches import Searches, model_without_factors
from keyless.sizes import FEW_ROWS, MOST_SEARCHED_ROWS, has_many_rows
from keyless.tables import Reading, Table

__all__ = ["Linking"]


_SHARP = 0.95
"""Share of matches that are the first choice of models that have not seen them, from which nothing else is tried."""

_STOPPED = Status("stopped", "Stopped when asked to, with the best found so far. Run it again to let it finish.")
_LATE = Status("max_time", "Stopped at the time limit with the best found so far. Raise the time limit.")
_NOTHING_YET = Status("max_time", "Stopped at the time limit before any match was found. Raise the time limit.")

Way = Literal["auto", "pairs", "columns"]


class Linking(Searches):
    """One run from tables to links.

    Args:
        options: the options.
        tables: the tables as read, the reference first.
        way: the one way of linking to take; `"auto"`: the way, or ways, that suit the tables.
        earlier: per table, by name, the coupling of an earlier link whose map was believed; the search begins there.
        deadline: when the best so far is returned; None: after the options' `max_time` from now on.
    """

    def __init__(
        self,
        options: Options,
        tables: Sequence[Table],
        way: Way = "auto",
        *,
        earlier: Mapping[str, FloatArray] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        large = way == "columns" or (way == "auto" and has_many_rows(rows_of(tables)))
        super().__init__(options, tables, large=large, earlier=earlier, deadline=deadline)
        self.way = way
        self.so_far: Route | None = None

    def links(self) -> Links:
        """Run, and return what was found; Ctrl-C returns the best so far."""
        route: Route | None = None
        with stopped_by_interrupt(self.deadline), cut_short(self.deadline, grace=True), computing_on(self.device):
            route = self.route()
        if route is None:
            route = self.nothing_yet() if self.so_far is None else replace(self.so_far, status=_LATE)
        linkable = all(found.evidence.verdict != "unlinkable" for found in route.found)
        return Links(
            tables=self.given,
            found={
                table.name: TableLink(
                    f.permutation,
                    f.stated.probability,
                    f.stated.margin,
                    f.stated.coupling,
                    f.judged,
                    np.sort(f.correlations)[::-1],
                    f.stated.alone,
                )
                for table, f in zip(self.given[1:], route.found, strict=True)
            },
            model=JointModel(route.model, route.scales, shared=linkable),
            status=_STOPPED if self.deadline.asked else route.status,
            choices=self.choices(route),
            starts=route.starts,
            seed=self.random_state,
            history=tuple(self.history),
        )

    def nothing_yet(self) -> Route:
        """Return what is known where time was up before any match was found: nothing about any row."""
        found = []
        for limits in self.limits_of_tables:
            needed = float(np.mean(np.log(np.maximum(limits.choices, 1))))
            unknown = Evidence("uncertain", 0.0, (), needed, 0.0, 0)
            nobody, nothing = np.full(limits.shape[0], -1), sparse.csr_array(limits.shape)
            found.append(Found.of(nobody, nothing, correlations=np.empty(0), evidence=unknown, limits=limits))
        scales = tuple(t.scales for t in self.large_tables) if self.large else self.scales
        return Route("none", found, model_without_factors(sum(map(len, scales))), _NOTHING_YET, (), scales)

    def route(self) -> Route:
        """Choose how the tables are searched.

        Groups inside which rows match give the map by themselves, where they are many. Clean factors that all tables
        share are found most quickly by one model of all columns; it is tried first where tables are narrow and have
        more than a few rows. Otherwise two tables are searched for canonical pairs, which does not ask that the tables
        share all factors, and several tables are joined one by one. From 5,000 rows on the model of all columns is
        tried first as well, and canonical pairs are sought on the rows farthest out.
        """
        if self.shares and not self.large:
            return self.from_pairs()
        numbers = range(1, len(self.tables))
        if self.way == "auto" and all(tells_by_groups(self.limits_with(*self.ends(number))) for number in numbers):
            groups = self.from_pairs(self.many_rows)
            if groups.believed or self.deadline.passed:
                return groups
        if self.large:
            return self.large_route()
        if self.way == "pairs":
            return self.from_pairs()
        return self.small_route()

    def small_route(self) -> Route:
        """Link tables of less than 5,000 rows."""
        if self.options.missingness:
            self.begin_with_values()
        columns: Route | None = None
        if self.way == "auto" and self.narrow and max(rows_of(self.tables)) > FEW_ROWS:
            self.so_far = columns = self.from_columns(thorough=False, deadline=self.deadline.half())
            if _is_sharp(columns) or self.deadline.passed:
                return columns
        self.so_far = pairs = self.from_joined() if len(self.tables) > 2 else self.from_pairs()
        if columns is not None and columns.linked and _expected_right(columns) > _expected_right(pairs):
            return columns
        return pairs

    def begin_with_values(self) -> None:
        """Let the search begin with what values alone lead to.

        Columns that say which entries are observed bring many factors of their own.
        """
        options = replace(self.options, reading=replace(self.options.reading or Reading(), missingness=False))
        values = Linking(options, self.given, self.way, deadline=self.deadline.half()).route()
        for number, found in enumerate(values.found, start=1):
            if found.evidence.believed:
                self.earlier.setdefault((0, number), []).append(("values alone", np.asarray(found.coupling)))

    def large_route(self) -> Route:
        """Link tables of many rows by one model of all columns, and by canonical pairs where that is not sharp.

        The search for canonical pairs begins with the matches of the model of all columns, where its map is believed.
        Where no map is believed, nothing more is searched: canonical growth on the rows farthest out has already been
        tried. Of several tables, each but the first was linked to rows that had been joined before, in part wrongly. So
        where some maps are believed, the other maps are sought again, each between its table and the reference alone.
        """
        self.so_far = columns = self.from_columns()
        believed = [found.evidence.believed for found in columns.found]
        if not any(believed) or _is_sharp(columns) or not self.suits_canonical_pairs or self.deadline.passed:
            return columns
        begun = [found.coupling if clear else None for found, clear in zip(columns.found, believed, strict=True)]
        pairs = self.from_pairs(lambda number: self.many_rows(number, begun[number - 1]))
        return pairs if _expected_right(pairs) > _expected_right(columns) else columns

    @property
    def suits_canonical_pairs(self) -> bool:
        """Whether tables of many rows may be searched for canonical pairs: those whose factors fit in memory.

        Where every row has a partner, another search cannot find rows that have none.
        """
        few = max(rows_of(self.tables)) <= MOST_SEARCHED_ROWS
        return self.way == "auto" and few and self.options.every_row is not True

    @property
    def narrow(self) -> bool:
        """Whether the tables have few enough columns for a model of all of them to be quick."""
        return sum(t.block.shape[1] for t in self.tables) <= MOST_COLUMNS

    def choices(self, route: Route) -> dict[str, Any]:
        """Return what was chosen from the data, and what was set."""
        names = [table.name for table in self.given]
        return {
            "route": route.name,
            "missingness": self.options.missingness,
            "repeats": self.shares,
            "set": self.options.changed,
            "rank": route.model.rank,
            **({"work": route.work} if route.work else {}),
            "scales": {
                name: dict(zip(table.columns, (scale.kind for scale in scales), strict=True))
                for name, table, scales in zip(names, self.tables, route.scales, strict=True)
            },
            "detection_limits": {
                name: {table.columns[k]: list(own.ends) for k, own in limits.items()}
                for name, table, limits in zip(names, self.tables, self.detection_limits, strict=True)
                if limits
            },
            "left_out": {table.name: list(table.left_out) for table in self.given},
            "known_pairs": sum(len(rows) for rows in self.constraints.known.values()),
            "forbidden_pairs": sum(len(rows) for rows in self.constraints.forbidden.values()),
            # Row numbers, so that a later link can start from what was known to this one.
            "told": {
                kind: {names[number]: rows.tolist() for (_, number), rows in pairs.items()}
                for kind, pairs in (("known", self.constraints.known), ("forbidden", self.constraints.forbidden))
                if pairs
            },
            "start_couplings": {
                f"{names[a]}–{names[b]}": [name for name, _ in named] for (a, b), named in self.couplings.items()
            },
        }


def _is_sharp(route: Route) -> bool:
    """Tell whether tables are linked, and nearly every match is the first choice of models that have not seen it."""
    return route.linked and all(found.evidence.sharpness > _SHARP for found in route.found)


def _expected_right(route: Route) -> float:
    """Return how many matches are expected to be right, whether there is a link at all taken into account."""
    return sum(found.expected_right for found in route.found)
