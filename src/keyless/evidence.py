"""Is there a link at all?

What chance can reach is found by the same search where there is nothing to find: between matched rows and the partners
of other rows, or with the link destroyed. A score above that proves little by itself, since two tables may share
structure without sharing entities. So the verdict also asks that the matching be sharp and that no mirror image of it
be as good; and where it is not far above chance, that a search of half of the rows find its pairs again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import sparse

from keyless.arrays import BoolArray, FloatArray, IntArray
from keyless.engine.by_columns import ColumnLink
from keyless.engine.crossing import FOUND_AGAIN, SOMEWHAT_ABOVE, Crossing
from keyless.engine.pair import PairLink
from keyless.engine.refine import Refinement
from keyless.engine.repeats import RepeatedSide
from keyless.engine.symmetry import MIRRORED, mirrored_share
from keyless.errors import InputError
from keyless.pairs.constraints import Constraints
from keyless.pairs.limits import Limits

__all__ = [
    "Doubt",
    "Evidence",
    "Verdict",
    "judge_columns",
    "judge_pair",
    "judged_rows",
    "overall",
]

Verdict = Literal["linked", "uncertain", "unlinkable"]
Doubt = Literal["none", "rows", "repeats", "map"]

_NO_BETTER = 0.2
"""Nats above chance below which a link is no better than chance, however well partners stand out."""

_CHANCE = 0.7
"""Part of the required nats above chance (`Crossing.clear`): a link that reaches less, and is not found again, is no
better than a link of strangers."""

_MOST = 0.5
"""Share of the matches. If more than this are expected to be right, and more than this are the first choice of their
partners, most rows can be told apart."""

_EVENS = 0.5
"""Belief in a map that is just as clear of chance as it must be, but in doubt for another reason."""

_OF_A_GUESS = 0.1
"""Belief in a map that is no better than chance, as a part of the probability that a guess is right. Such small
probabilities say nothing, but they keep the order of candidates: on real tables with too little information that order
is better than none."""

_HARDLY_AGAIN = 0.3
"""Share of pairs that a search of half the rows finds again, below which a link is in doubt."""

_STANDS_OUT = 0.85
"""Part of `Evidence.needed` that the score must exceed where chance was told by shuffled factors, as it is for few
rows."""

_STANDS_OUT_FULLY = 0.9
"""Part of `Evidence.needed` above which a link is believed that is above chance, but not clear of it.

Half of the rows tell chance, and of 60 rows chance finds nearly as much as there is to find. Links of strangers of 120
to 1,000 rows reach 0.89 of what is needed at most, and those that reach 0.8 of it are at most 0.3 nats above chance
(300 unrelated pairs of benchmarks/bench_verdict.py)."""

_FEWEST_ROWS = 12
"""Matched rows below which numbers alone tell nothing: the best of few matchings looks right by chance."""

_WEAKEST_FIRST: tuple[Verdict, ...] = ("unlinkable", "uncertain", "linked")


@dataclass(frozen=True)
class Evidence:
    """The verdict on a correspondence, with everything it rests on.

    Attributes:
        verdict: `"linked"`: the score is clear of the nulls, the matching sharp, found again in half of the rows where
            it is not far above chance, and no mirror image of it as good; `"unlinkable"`: no clearer than chance;
            `"uncertain"`: everything between these two.
        score: information that the matches carry, in nats per row that could be matched.
        null_scores: the scores the search reaches where there is nothing to find.
        needed: nats per row that it takes to single out a row, the logarithm of how many there are to choose from.
        sharpness: share of matched rows that are the first choice of their partner by models that never saw them,
            averaged over both directions.
        agreement: how many first maps of the search led to this correspondence. The verdict does not depend on it.
        mirrored: how well partners stand out in the best mirror image of the correspondence, as a share of how well
            they do in the correspondence itself. Near 1, rows come in mirror images and nothing in the numbers tells
            them apart; a few known pairs do. 0 where no mirror image was looked at.
        doubt: what is in doubt: `"none"`; `"rows"`: the map between the tables is believed, but many rows are too alike
            to be told apart; `"repeats"`: the map is believed, but one of the tables seems to hold several rows of one
            entity, of which one at the most is matched; `"map"`: the map itself.
        belief: what probabilities of matches are multiplied by: how likely the map is right. 1 where it is believed,
            next to 0 where it is no better than chance, 0 where known pairs contradict it; where known pairs were left
            out and foretold, the number of right first choices divided by the expected number.
        foretold: how likely known pairs that the search was not told would be foretold as well by a map that says
            nothing: a p-value. 1 where fewer than four pairs are known.
        repeated: which table seems to hold several rows of one entity: `"left"`, the reference; `"right"`, the other
            table; or neither.
        corroboration: logarithm of how many times as much the directions of the map say about each other as by chance;
            each direction is asked about partners that the others chose. 0 where that was not looked at.
    """

    verdict: Verdict
    score: float
    null_scores: tuple[float, ...]
    needed: float
    sharpness: float
    agreement: int
    mirrored: float = 0.0
    doubt: Doubt = "map"
    belief: float = 0.0
    repeated: RepeatedSide = ""
    foretold: float = 1.0
    corroboration: float = 0.0

    @property
    def above_chance(self) -> float:
        """Nats above chance, by how well partners stand out and by what directions say about each other."""
        return self.excess + self.corroboration

    @property
    def believed(self) -> bool:
        """Whether the map is believed; then probabilities of matches are those that were shown to hold."""
        return self.verdict == "linked" or self.doubt == "rows"

    @property
    def ambiguous(self) -> bool:
        """Whether a mirror image of the correspondence is nearly as good as itself."""
        return self.mirrored >= MIRRORED

    def candidates_left(self, candidates: int) -> float:
        """Return how many candidates of a row stay possible, by what matches carry beyond the highest null; 1 or more.

        Args:
            candidates: how many rows there are to choose from.
        """
        beyond = max(self.score - max(self.null_scores, default=0.0), 0.0)
        return max(candidates * math.exp(-beyond), 1.0)

    @property
    def excess(self) -> float:
        """Score above the mean of the nulls, in nats per row; the whole score where there are none."""
        return self.score - (float(np.mean(self.null_scores)) if self.null_scores else 0.0)


def overall(evidences: Sequence[Evidence]) -> Evidence:
    """Return the evidence of the weakest table: the worst verdict, and among equal verdicts the least excess."""
    if not evidences:
        raise InputError("evidences: must hold at least one; found none.")
    return min(evidences, key=lambda evidence: (_WEAKEST_FIRST.index(evidence.verdict), evidence.excess))


def judge_pair(link: PairLink, *, limits: Limits, shared: bool = False) -> Evidence:
    """Return the verdict on what `keyless.engine.link_pair` found.

    The score is how well partners stand out among all rows, by maps that have not seen them. Chance is what the search
    reaches between the same tables with the link crossed; see `keyless.engine.crossing`.

    Args:
        link: the correspondence.
        limits: which pairs might be matched. Known pairs settle which of several mirror images is right, if images give
            their rows other partners.
        shared: whether both tables have columns in common, which settle it always.
    """
    matching = link.form.matching
    rows = np.flatnonzero(link.permutation >= 0)
    evidence = Evidence(
        "uncertain",
        matching.identification,
        tuple(matching.identification - one.excess for one in link.crossings),
        float(np.mean(np.log(np.maximum(limits.choices, 1)))),
        link.sharpness,
        link.agreement,
        belief=_EVENS,
        foretold=link.foretold.chance,
        corroboration=float(np.mean([one.corroboration for one in link.crossings])) if link.crossings else 0.0,
    )
    # Most matches must be right by their own probabilities, and the first choice of maps that have not seen them.
    stated = float(link.probability[rows].mean()) if rows.size else 0.0
    sharp = min(evidence.sharpness, stated) > _MOST
    proven = bool(rows.size) and link.foretold.proven
    if proven and not (link.crossings and _is_clear(link.crossings, evidence)):
        # Known pairs prove the map, and tell what share of first choices is right.
        belief = link.foretold.belief(stated)
        return replace(_judged(evidence, believed=True, sharp=sharp and stated * belief > _MOST), belief=belief)
    if proven:
        return _judged(evidence, believed=True, sharp=sharp)
    if not link.crossings:
        return evidence
    first, above = link.crossings[0], evidence.above_chance
    again, clear = _share_again(link.crossings), _is_clear(link.crossings, evidence)
    found_again = [one.again for one in link.crossings if one.again is not None]
    share_again = float(np.mean(found_again)) if found_again else 1.0
    if first.halved:
        fully = evidence.excess > _NO_BETTER and evidence.score > _STANDS_OUT_FULLY * evidence.needed
        proven = bool(found_again) and share_again >= FOUND_AGAIN and above > SOMEWHAT_ABOVE
        chance = above < 0 or (above < _CHANCE * first.clear and again < _HARDLY_AGAIN)
        clear, chance = clear or fully or proven, chance and not fully
    else:
        # Shuffling tears clusters apart. In clusters directions confirm each other, so that by itself corroboration
        # says nothing here.
        chance = above < first.clear or evidence.excess < _NO_BETTER or rows.size < _FEWEST_ROWS
        # It is easy to be clear of shuffled factors: partners must stand out almost fully, and not among a few rows.
        clear &= evidence.score > _STANDS_OUT * evidence.needed
    if chance or not rows.size:
        return _refused(evidence)
    own = Refinement(*(side.compact for side in link.factors), limits=limits.reordered(*link.orders))
    if own.contradicted(matching.coupling):
        # Whatever partners stand out, they are not those that the caller knows.
        return replace(evidence, belief=0.0)
    if not shared and not first.by_groups:
        scores = [side.scores[np.argsort(order)] for side, order in zip(link.factors, link.orders, strict=True)]
        # Of many rows only those farthest out are turned, whatever their groups.
        allowed = None if sparse.issparse(link.pairs) else replace(limits, known=limits.known[:0]).mask()
        mirrored = _mirrored(scores[0], scores[1], link.permutation, allowed, limits.known[:, 0])
        evidence = replace(evidence, mirrored=mirrored)
    # Directions that say less about each other than by chance confirm nothing: rows stand out by one of them alone.
    sound = evidence.corroboration >= 0 and not evidence.ambiguous
    believed, searched_again = clear and sound, sound and first.halved and bool(found_again)
    judged = _judged(evidence, believed=believed, sharp=sharp, clear=first.clear, again=share_again)
    if searched_again and not believed:
        # Nothing else is in doubt, so what was found again from nothing tells how likely the map is right.
        judged = replace(judged, belief=_by_pairs_found_again(share_again))
    return judged


def _share_again(crossings: Sequence[Crossing]) -> float:
    """Return the mean share of pairs that were found again.

    Some comparisons do not ask whether the pairs are found again, since they are clear by themselves. They count as 1
    if they are above chance, and as 0 otherwise.
    """
    return float(np.mean([float(one.above_chance > 0) if one.again is None else one.again for one in crossings]))


def _is_clear(crossings: Sequence[Crossing], evidence: Evidence) -> bool:
    """Tell whether a link is clear of chance, and enough of its pairs are found again."""
    return evidence.above_chance > crossings[0].clear and _share_again(crossings) >= _HARDLY_AGAIN


def _refused(evidence: Evidence) -> Evidence:
    """Return the evidence of a link that is no better than chance."""
    return replace(evidence, verdict="unlinkable", belief=_OF_A_GUESS * math.exp(-evidence.needed))


def _by_pairs_found_again(again: float) -> float:
    """Return how likely a map is right, by the share of its pairs that was found again in half of the rows.

    Of right pairs about half are found again, of wrong ones hardly one.
    """
    return min(again / FOUND_AGAIN, 1.0)


def _judged(
    evidence: Evidence, *, believed: bool, sharp: bool, clear: float = 1.0, again: float = FOUND_AGAIN
) -> Evidence:
    """Return the evidence with its verdict, once it is known to be better than chance.

    Args:
        evidence: what it rests on.
        believed: whether the map is believed.
        sharp: whether most matched rows can be told apart.
        clear: nats above chance from which a link is believed.
        again: share of the pairs that were found again.
    """
    if not believed:
        above = float(np.clip(evidence.above_chance / clear, 0.0, 1.0))
        return replace(evidence, belief=_EVENS * above**2 * _by_pairs_found_again(again))
    doubt: Doubt = "none" if sharp else "rows"
    return replace(evidence, verdict="linked" if sharp else "uncertain", doubt=doubt, belief=1.0)


def judged_rows(evidence: Evidence, probability: FloatArray) -> Evidence:
    """Return the evidence on a map that is believed, with the verdict that its matches deserve.

    Args:
        evidence: on the map.
        probability: of each match.
    """
    sharpness = float(probability.mean()) if len(probability) else 0.0
    return _judged(replace(evidence, sharpness=sharpness), believed=True, sharp=sharpness > _MOST)


def judge_columns(link: ColumnLink, *, sizes: Sequence[int], constraints: Constraints | None = None) -> list[Evidence]:
    """Return the verdict on each table of what `keyless.engine.by_columns.ColumnSearch` found.

    The score is that of rows the model was not fitted to; it is compared with what the same search reaches where the
    link is destroyed, and a map counts only where rows that had no part in it confirm it.

    Args:
        link: what was found.
        sizes: rows of each table, the reference first.
        constraints: what the caller knew when it was found.
    """
    evidences = []
    told = constraints is not None and bool(constraints.known)
    for number, (found, test, chance) in enumerate(zip(link.maps, link.tests, link.chance, strict=True), start=1):
        choices = np.log(np.maximum(Limits.of_tables(constraints, number, sizes).choices, 1)).mean()
        # Rows of the smaller table choose among those of the larger.
        choices += max(np.log(sizes[0] / sizes[number]), 0.0)
        evidence = Evidence(
            "uncertain",
            test.score,
            chance,
            test.share * float(choices),
            test.sharpness,
            found.agreement,
            0.0 if told else _mirrored(*test.latents, np.arange(len(test.latents[0]))),
        )
        settled = found.convincing and test.share > 0.01
        evidences.append(_verdict(evidence, settled=settled))
    return evidences


def _mirrored(
    reference: FloatArray,
    table: FloatArray,
    permutation: IntArray,
    allowed: BoolArray | None = None,
    known: IntArray | None = None,
) -> float:
    """Return `mirrored_share` of the matched rows, given any factors of all rows; 0 where they are too few to tell."""
    rows = np.flatnonzero(permutation >= 0)
    if len(rows) < 2 * max(reference.shape[1], table.shape[1]):
        return 0.0
    pairs = None if allowed is None else allowed[np.ix_(rows, permutation[rows])]
    told = None if known is None else np.flatnonzero(np.isin(rows, known))
    return mirrored_share(reference[rows], table[permutation[rows]], allowed=pairs, known=told)


def _verdict(evidence: Evidence, *, settled: bool) -> Evidence:
    """Return the evidence with its verdict, compared with the nulls.

    Args:
        evidence: what it rests on.
        settled: whether the search agreed on one correspondence of enough rows.
    """
    if not evidence.null_scores:
        return replace(evidence, belief=_EVENS)
    nulls = np.asarray(evidence.null_scores)
    clear = 3 * float(nulls.std() + 0.05 * nulls.mean() + 0.1)
    if evidence.excess <= clear:
        return _refused(evidence)
    believed = settled and not evidence.ambiguous
    sharp = evidence.sharpness > _MOST and evidence.score > evidence.needed
    return _judged(evidence, believed=believed, sharp=sharp, clear=clear)
