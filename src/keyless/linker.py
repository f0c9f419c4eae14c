"""The staircase: tables → scales → joint model or pairwise search → evidence → links."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from keyless.arrays import check_count, check_positive
from keyless.embedding.factor_model import FactorModel, fit, initial_model
from keyless.embedding.joint_model import JointModel
from keyless.embedding.scales import Scale, ScaleName, scale_table
from keyless.errors import InputError, Status
from keyless.evidence import Evidence, calibrate, judge, judge_joint, match_probabilities
from keyless.joint import JointLink, link_tables
from keyless.joint.clusters import stack
from keyless.knowledge import read_constraints, start_couplings
from keyless.likelihood import FORBIDDEN
from keyless.links import Links, TableLink
from keyless.search import PairLink, SearchOptions, link_two_tables
from keyless.tables import Table, read_tables, with_missingness

__all__ = ["TableLinker", "link"]

FloatArray = np.ndarray[Any, np.dtype[Any]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
Callback = Callable[[str, int, int, float], object]

_FEW_GAPS = 0.95
"""Above this observed share the pairwise search, which fills gaps first, loses little by doing so."""


def link(
    tables: Mapping[str, Any] | Iterable[Any],
    *,
    reference: str | None = None,
    known_pairs: Any = None,
    forbid: Any = None,
    within: str | Sequence[str] | None = None,
    shared: Any = "auto",
    strangers: bool | None = None,
    scales: ScaleName = "auto",
    method: Literal["auto", "joint", "pairs"] = "auto",
    missingness: bool = False,
    null_searches: int = 3,
    options: SearchOptions | None = None,
    random_state: int | None = None,
    n_jobs: int = 1,
    max_time: float | None = None,
    callback: Callback | None = None,
) -> Links:
    """Find which rows of the tables are the same entity, how sure that is, and whether it can be told at all.

    Args:
        tables: two or more arrays (NaN is missing) or frames about the same things, by name or in order.
        reference: name of the table whose row order the answer is given in; the first unless given.
        known_pairs: a few sure matches: pairs (reference id, row id), per table name when there are several tables.
        forbid: pairs known to be wrong, likewise.
        within: column, or columns, of all tables that must agree; rows match inside a group only.
        shared: numeric columns two tables both have: `"auto"` goes by name (frames), a list names them, None ignores
            them.
        strangers: whether rows may have no partner; None: decided from the data.
        scales: how columns are scaled: `"auto"` chooses for each among identity, log and root; or one for all.
        method: `"joint"` fits one model to all tables, `"pairs"` searches table by table for canonical pairs;
            `"auto"` takes the joint answer when it convinces and else the better of the two.
        missingness: let which entries are observed count as information about the entity.
        null_searches: how often the link is destroyed and searched for, to know what chance reaches.
        options: what the pairwise search may spend.
        random_state: seed; the same seed gives the same answer.
        n_jobs: how many candidates are worked on at a time; the answer does not depend on it.
        max_time: seconds after which the best so far is returned, with a status that says so.
        callback: called with stage, step, total and objective.

    Returns:
        The links; see `Links`.

    Example:
        >>> from keyless.datasets import make_shuffled_tables
        >>> tables, truth = make_shuffled_tables(60, (20, 15), rank=3, random_state=0)
        >>> links = link(tables, random_state=0)
        >>> links.evidence.verdict, int((links.permutations["table1"] == truth["table1"]).sum())
        ('linked', 60)
    """
    linker = TableLinker(
        reference=reference,
        known_pairs=known_pairs,
        forbid=forbid,
        within=within,
        shared=shared,
        strangers=strangers,
        scales=scales,
        method=method,
        missingness=missingness,
        null_searches=null_searches,
        options=options,
        random_state=random_state,
        n_jobs=n_jobs,
        max_time=max_time,
        callback=callback,
    )
    return linker.fit(tables).links_


class TableLinker(BaseEstimator):  # type: ignore[misc]
    """`link` as a scikit-learn style estimator; the options are those of `link`.

    Attributes:
        links_: the result, after `fit`.
        n_features_in_: columns used of each table, by name.
    """

    def __init__(
        self,
        *,
        reference: str | None = None,
        known_pairs: Any = None,
        forbid: Any = None,
        within: str | Sequence[str] | None = None,
        shared: Any = "auto",
        strangers: bool | None = None,
        scales: ScaleName = "auto",
        method: Literal["auto", "joint", "pairs"] = "auto",
        missingness: bool = False,
        null_searches: int = 3,
        options: SearchOptions | None = None,
        random_state: int | None = None,
        n_jobs: int = 1,
        max_time: float | None = None,
        callback: Callback | None = None,
    ) -> None:
        self.reference = reference
        self.known_pairs = known_pairs
        self.forbid = forbid
        self.within = within
        self.shared = shared
        self.strangers = strangers
        self.scales = scales
        self.method = method
        self.missingness = missingness
        self.null_searches = null_searches
        self.options = options
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.max_time = max_time
        self.callback = callback

    def fit(self, tables: Mapping[str, Any] | Iterable[Any], y: Any = None) -> TableLinker:
        """Link the tables.

        Args:
            tables: two or more arrays or frames, by name or in order.
            y: ignored.
        """
        del y
        if self.method not in ("auto", "joint", "pairs"):
            raise InputError(f"method: must be 'auto', 'joint' or 'pairs'; found {self.method!r}.")
        if self.scales not in get_args(ScaleName):
            raise InputError(
                f"scales: must be one of {', '.join(map(repr, get_args(ScaleName)))}; found {self.scales!r}."
            )
        for name, value in (("strangers", self.strangers), ("missingness", self.missingness)):
            if not isinstance(value, bool | np.bool_) and not (name == "strangers" and value is None):
                raise InputError(f"{name}: must be True or False; found {value!r}.")
        if self.method == "pairs" and self.strangers:
            raise InputError("strangers: must not be True with method='pairs', which gives every row a partner.")
        check_count(self.n_jobs, name="n_jobs")
        check_count(self.null_searches, name="null_searches")
        if self.max_time is not None:
            check_positive(self.max_time, name="max_time")
        read, _ = read_tables(tables, reference=self.reference)
        self.links_ = _Staircase(self, read).links()
        self.n_features_in_ = {table.name: table.block.shape[1] for table in read}
        return self

    def transform(self, rows: Any, *, table: str, candidates: int = 5) -> Any:
        """Place new rows of a known table among the reference's entities.

        Args:
            rows: new rows with the columns of that table.
            table: name of the table they are of.
            candidates: how many reference rows to return for each.

        Returns:
            A frame with row, reference_id and probability, the likeliest reference rows first.
        """
        check_is_fitted(self, "links_")
        return self.links_.place(rows, table=table, candidates=candidates)

    def score(self, tables: Mapping[str, Any] | Iterable[Any], y: Any = None) -> float:
        """Return how well entries missing at `fit` and given now were filled: R² on the columns' standard scores."""
        del y
        check_is_fitted(self, "links_")
        return self.links_.held_out_score(tables)


@dataclass(frozen=True, eq=False)
class _Found:
    """What one route says about one table."""

    permutation: IntArray
    coupling: FloatArray
    log_ratios: FloatArray
    probability: FloatArray
    evidence: Evidence


@dataclass(frozen=True, eq=False)
class _Route:
    """What one route says about all tables."""

    name: str
    found: list[_Found]
    model: FactorModel
    status: Status
    starts: tuple[Mapping[str, Any], ...]

    @property
    def linked(self) -> bool:
        """Whether every table is."""
        return all(found.evidence.verdict == "linked" for found in self.found)


class _Staircase:
    """One run from tables to links."""

    def __init__(self, linker: TableLinker, tables: Sequence[Table]) -> None:
        self.linker, self.given = linker, tuple(tables)
        self.deadline = None if linker.max_time is None else time.monotonic() + linker.max_time
        # The generator is made once, here; every stage gets its seed.
        given = linker.random_state
        if isinstance(given, np.random.Generator):
            given = given.integers(2**31)
        self.random_state = None if given is None else _whole(given)
        self.seed = 0 if given is None else int(np.random.default_rng(self.random_state).integers(2**31))
        self.tables = [with_missingness(table) for table in tables] if linker.missingness else list(tables)
        self.constraints = read_constraints(
            tables, known_pairs=linker.known_pairs, forbid=linker.forbid, within=linker.within
        )
        self.couplings = start_couplings(tables, self.constraints, linker.shared)
        scored = [scale_table(t.block.values, t.block.mask, kind=linker.scales) for t in self.tables]
        self.scores = [(scores, t.block.mask) for (scores, _), t in zip(scored, self.tables, strict=True)]
        self.scales: tuple[tuple[Scale, ...], ...] = tuple(scales for _, scales in scored)

    def links(self) -> Links:
        route = self.route()
        shared = all(found.evidence.verdict != "unlinkable" for found in route.found)
        return Links(
            tables=self.given,
            found={
                table.name: TableLink(f.permutation, f.probability, _margins(f), f.coupling, f.evidence)
                for table, f in zip(self.given[1:], route.found, strict=True)
            },
            model=JointModel(route.model, self.scales, shared=shared),
            status=route.status,
            choices=self.choices(route),
            starts=route.starts,
            seed=self.random_state,
        )

    def route(self) -> _Route:
        """Choose between one joint model of all tables and a search for canonical pairs, table by table.

        Where entries are missing or tables are several the joint model goes first: its likelihood is exact there. Two
        complete tables are searched for canonical pairs first, which does not ask that the tables share all factors.
        The other route is tried when the first does not end in a link.
        """
        equal = len({t.block.shape[0] for t in self.tables}) == 1
        if self.linker.method == "pairs":
            return self.from_pairs(None)
        if self.linker.method == "joint" or self.linker.strangers or not equal:
            return self.from_joint(self.joint())
        complete = np.mean([t.block.mask.mean() for t in self.tables]) >= _FEW_GAPS
        if complete and len(self.tables) == 2:
            pairs = self.from_pairs(None)
            if pairs.linked or self.late():
                return pairs
            joint = self.joint()
            return self.from_joint(joint) if joint.convincing else pairs
        joint = self.joint()
        if joint.convincing or self.late():
            return self.from_joint(joint)
        pairs = self.from_pairs(joint)
        return pairs if pairs.linked else self.from_joint(joint)

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def joint(self) -> JointLink:
        return link_tables(
            self.scores,
            strangers=self.linker.strangers,
            constraints=None if self.constraints.trivial else self.constraints,
            start_couplings={pair: named[0][1] for pair, named in self.couplings.items()},
            callback=self.linker.callback,
            deadline=self.deadline,
        )

    def pair(self, number: int, joint: JointLink | None) -> PairLink:
        reference, table = self.tables[0].block, self.tables[number].block
        first = [] if joint is None else [("joint model", joint.couplings[number - 1])]
        return link_two_tables(
            reference.values,
            table.values,
            reference_mask=reference.mask,
            table_mask=table.mask,
            scales=self.linker.scales,
            allowed=self.constraints.allowed(0, number),
            start_couplings=[*self.couplings.get((0, number), []), *first],
            options=self.linker.options,
            n_jobs=self.linker.n_jobs,
            seed=self.seed,
            callback=self.linker.callback,
            deadline=self.deadline,
        )

    def from_joint(self, joint: JointLink) -> _Route:
        evidences = judge_joint(
            self.scores,
            joint,
            constraints=None if self.constraints.trivial else self.constraints,
            repeats=self.linker.null_searches,
            seed=self.seed,
            deadline=self.deadline,
        )
        found = []
        for permutation, coupling, ratios, evidence in zip(
            joint.permutations, joint.couplings, joint.log_ratios, evidences, strict=True
        ):
            matched = permutation >= 0
            rows = np.arange(len(permutation))
            stated = coupling[rows, np.maximum(permutation, 0)]
            probability = np.clip(np.where(matched, stated, 1 - coupling.sum(axis=1)), 0.0, 1.0)
            found.append(_Found(permutation, coupling, ratios, probability, evidence))
        starts = tuple({"route": "joint", "pair": s.pair, "start": s.name, "score": s.score} for s in joint.starts)
        return _Route("joint", found, joint.model, joint.status, starts)

    def from_pairs(self, joint: JointLink | None) -> _Route:
        pairs = [self.pair(number, joint) for number in range(1, len(self.tables))]
        found, starts = [], []
        for number, pair in enumerate(pairs, start=1):
            evidence = judge(pair, repeats=self.linker.null_searches, n_jobs=self.linker.n_jobs, deadline=self.deadline)
            probability = match_probabilities(pair, calibration=calibrate(pair, seed=self.seed))
            alone = pair.permutation < 0
            probability[alone] = np.clip(1 - pair.coupling[alone].sum(axis=1), 0.0, 1.0)
            found.append(_Found(pair.permutation, pair.coupling, pair.log_ratios, probability, evidence))
            starts += [
                {"route": "pairs", "pair": (0, number), "start": s.name, "stage": s.stage, "score": s.score}
                for s in pair.starts
            ]
        rows = [np.arange(len(self.scores[0][0])), *(pair.permutation for pair in pairs)]
        values, mask = stack(self.scores, rows)
        rank = max(1, min(40, min(values.shape) // 2))
        model, _ = fit(values, mask, initial_model(values, mask, rank))
        worst = min((pair.status for pair in pairs), key=lambda status: status.converged)
        return _Route("pairs", found, model, worst, tuple(starts))

    def choices(self, route: _Route) -> dict[str, Any]:
        names = [table.name for table in self.given]
        return {
            "route": route.name,
            "missingness": self.linker.missingness,
            "rank": route.model.rank,
            "scales": {
                name: dict(zip(table.columns, (scale.kind for scale in scales), strict=True))
                for name, table, scales in zip(names, self.tables, self.scales, strict=True)
            },
            "left_out": {table.name: list(table.left_out) for table in self.given},
            "known_pairs": sum(len(rows) for rows in self.constraints.known.values()),
            "forbidden_pairs": sum(len(rows) for rows in self.constraints.forbidden.values()),
            "start_couplings": {
                f"{names[a]}–{names[b]}": [name for name, _ in named] for (a, b), named in self.couplings.items()
            },
        }


def _whole(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"random_state: must be None, a whole number from 0 or a numpy Generator; found {seed!r}.")
    return int(seed)


def _margins(found: _Found) -> FloatArray:
    """Return the log-likelihood ratio of each match against the best alternative of its row; ∞ where there is none."""
    rows = np.arange(len(found.permutation))
    ratios = np.where(found.log_ratios <= FORBIDDEN, -np.inf, found.log_ratios).astype(np.float64)
    matched = found.permutation >= 0
    own = np.where(matched, ratios[rows, np.maximum(found.permutation, 0)], 0.0)
    ratios[rows[matched], found.permutation[matched]] = -np.inf
    best = ratios.max(axis=1)
    return np.where(np.isneginf(best), np.inf, own - best)
