"""Known pairs as a test of the map: does a search that is not told some of these pairs foretell them?

If it does, the map is right, whatever chance reaches on these tables. Pairs that the search knows prove nothing: with
as many pairs as factors a map fits all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import gamma

from keyless.arrays import BoolArray, NumpyArray
from keyless.engine.forms import Form
from keyless.engine.matches import matched
from keyless.engine.replicates import averaged_over_replicates
from keyless.engine.search import Search
from keyless.pairs.limits import Limits
from keyless.progress import Deadline, cut_short, is_late

__all__ = ["FEWEST_KNOWN", "Foretold", "far_out", "foretold_by_others"]

FEWEST_KNOWN = 4
"""Known pairs below which none is left out: at least three are needed to lead a search."""

_MATCHED = 0.5
"""Weight of all partners of a row from which it counts as matched: it is likelier to have a partner than none."""

_AGREEING = 0.3
"""Share of matched rows whose first choice must be the same by the searches that left pairs out as by the link, on
average. Otherwise these searches found another map than the link, and what they foretell says nothing about it. Of
right links half of the pairs or more are found again, of wrong ones hardly any (see
`keyless.engine.crossing.FOUND_AGAIN`)."""

_BEFORE = 2.0
"""Pairs that are counted as foretold just as stated, before any left-out pair is looked at; see `Foretold.belief`."""

_FEWEST_LEFT_OUT = 3
"""Pairs below which none is left out, since a single rank among a thousand candidates would seem to prove a map."""

_PROVEN = 1e-3
"""The map is believed if a map that says nothing would foretell known pairs as well with a probability below this."""

_PARTS = 10
"""Into how many parts known pairs are dealt. Each part is left out of one search."""

_FAR_OUT = 0.9
"""Share of the rows of its table that are nearer to the mean than a row that lies far out. Such a row has few possible
partners, which lie far out as well, so a map foretells it that places hardly any other row."""

_HOPELESS, _PARTS_OF_HOPELESS = 0.3, 5
"""If the same probability is above `_HOPELESS` after `_PARTS_OF_HOPELESS` parts, known pairs will hardly prove the map,
and no further parts are tried."""


@dataclass(frozen=True)
class Foretold:
    """How well known pairs are foretold by searches that were not told them.

    Attributes:
        pairs: how many known pairs were left out.
        first: for how many of these pairs the true partner is the first choice.
        expected: for how many of these pairs that was expected, by the probabilities that were stated for these rows.
        chance: how likely these pairs would be foretold as well by a map that says nothing; 1 where none was left out.
        agreement: share of matched rows, known ones aside, whose first choice was the same by these searches as by the
            link.
    """

    pairs: int = 0
    first: int = 0
    expected: float = 0.0
    chance: float = 1.0
    agreement: float = 1.0

    @property
    def proven(self) -> bool:
        """Whether known pairs prove the map."""
        return self.chance < _PROVEN and self.agreement >= _AGREEING

    def belief(self, stated: float) -> float:
        """Return what stated probabilities are to be multiplied by, so that they hold for the pairs left out.

        It is the number of right first choices divided by the expected number, as if two more pairs had been foretold
        just as stated; 1 at the most. Searches that are told fewer pairs may state low probabilities; then as many are
        expected to be right as the link states of its matches.

        Args:
            stated: mean stated probability of the matches.
        """
        more = _BEFORE * max(stated, 1e-12)
        expected = max(self.expected, self.pairs * stated)
        return min(1.0, (self.first + more) / (expected + more))


def foretold_by_others(form: Form, *, limits: Limits, deadline: Deadline | None = None) -> Foretold:
    """Return how well known pairs are foretold by searches that know only the others.

    A part of the known pairs is forgotten, and the map is sought with the others. Among the c partners that a forgotten
    row may have, its true partner has rank r by this map. If the map says nothing, r/c is uniform, and the sum of
    −log(r/c) over m pairs follows a gamma distribution of shape m. Ranks count from 1, so that the test is cautious.

    Pairs of rows far out are never forgotten: that they are foretold says nothing about other rows.

    Args:
        form: factors of both tables.
        limits: which pairs may be matched, with those that are known.
        deadline: when the search under way is given up; the part that it left out does not count.
    """
    sides = form.left.compact, form.right.compact
    far = [far_out(factors)[rows] for factors, rows in zip(sides, limits.known.T, strict=True)]
    telling = limits.known[~(far[0] | far[1])]
    always = limits.known[far[0] | far[1]]
    shares: list[float] = []
    agreement: list[float] = []
    first, expected = 0, 0.0
    if len(limits.known) < FEWEST_KNOWN or len(telling) < _FEWEST_LEFT_OUT:
        return Foretold()
    matching = form.matching
    # Known rows have the same partner by all searches.
    unknown = np.setdiff1d(np.flatnonzero(matching.coupling.sum(axis=1) > _MATCHED), limits.known[:, 0])
    choice = matching.ratios[unknown].argmax(axis=1)
    views = [view for view in form.searched if view.scales == form.scales] or form.searched[:1]
    for part in range(min(_PARTS, len(telling))):
        if is_late(deadline) or (part >= _PARTS_OF_HOPELESS and _chance(shares) > _HOPELESS):
            break
        forgotten = telling[part::_PARTS]
        others = replace(limits, known=np.concatenate([always, np.delete(telling, np.s_[part::_PARTS], axis=0)]))
        start = np.zeros(limits.shape)
        start[others.known[:, 0], others.known[:, 1]] = 1.0
        ratios: Any = None
        with cut_short(deadline):
            search = Search(views, others, starts=[("known pairs", start)], generations=0)
            ratios = averaged_over_replicates(search.run(), limits=others)
        if ratios is None:
            break
        agreement.append(float(np.mean(ratios[unknown].argmax(axis=1) == choice)) if len(unknown) else 1.0)
        chances = matched(ratios, None, crowded=form.crowded)[1].pairs
        for row, column in forgotten:
            expected += float(chances[row, int(np.argmax(ratios[row]))])
            free = ratios[row, np.isfinite(ratios[row])]
            rank = max(int(np.sum(free >= ratios[row, column])), 1)
            first += rank == 1
            shares.append(rank / max(len(free), 1))
    if not shares:
        return Foretold()
    return Foretold(len(shares), first, expected, _chance(shares), float(np.mean(agreement)))


def far_out(factors: NumpyArray) -> BoolArray:
    """Tell which rows lie far out, given their whitened factors."""
    distance = np.sum(factors**2, axis=1)
    return np.asarray(distance > np.quantile(distance, _FAR_OUT))


def _chance(shares: list[float]) -> float:
    """Return how likely ranks as good as these are by a map that says nothing; 1 where there are no ranks.

    Args:
        shares: rank of the true partner of each row, as a share of all partners that it may have.
    """
    return float(gamma.sf(-np.sum(np.log(shares)), len(shares))) if shares else 1.0
