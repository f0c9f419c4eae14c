"""Where new rows of a table belong: their likeliest entities, without looking at all pairs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from keyless.arrays import FloatArray, IntArray, batches
from keyless.block import Block
from keyless.model.joint_model import JointModel
from keyless.pairs.likelihood import approximate_log_ratio, exact_log_ratio, pair_log_ratio

__all__ = ["likeliest"]


_EXACT, _EXACT_PAIRS, _PAIRS_AT_A_TIME = 20, 40_000, 2**22
"""How many of the best reference rows each new row is compared with exactly; pairs up to which all are compared
exactly; and pairs that are compared approximately at a time."""


def likeliest(
    model: JointModel, blocks: Sequence[Block], rows: Sequence[IntArray], *, number: int, fresh: Block, count: int
) -> tuple[IntArray, FloatArray]:
    """Return the likeliest reference rows of new rows of a table, and their probabilities, the likeliest first.

    Args:
        model: of all tables.
        blocks: the tables, the reference first.
        rows: per table, the row that belongs to each reference row, −1 for none.
        number: the number of the table that the new rows belong to.
        fresh: the new rows.
        count: how many reference rows to return for each new row.
    """
    size, new_rows = len(rows[0]), np.arange(len(fresh.values))
    parts = list(model.parts(size))
    if len(parts) == 1:
        known = model.entity_information(blocks, rows, without=number)
        ratios = pair_log_ratio(model.information(number, fresh), known)
        best = np.argsort(-ratios, axis=1, kind="stable")[:, :count]
        probability = _probabilities(ratios, np.full(len(ratios), -np.inf), size)
        return best, np.take_along_axis(probability, best, axis=1)
    # Not all pairs are held at once: some reference rows are looked at at a time, and the best of them are kept.
    kept = _Kept.none(len(new_rows), min(max(count, _EXACT), size))
    for part in parts:
        known = model.entity_information(blocks, [index[part] for index in rows], without=number)
        for some in batches(len(new_rows), _PAIRS_AT_A_TIME // len(known)):
            new = model.information(number, fresh, rows=new_rows[some])
            few = len(new) * len(known) <= _EXACT_PAIRS
            kept.add(some, part, pair_log_ratio(new, known) if few else approximate_log_ratio(new, known))
    # The best by an approximation are looked at again, exactly.
    width = kept.places.shape[1]
    for some in batches(len(new_rows), _EXACT_PAIRS // width):
        places = kept.places[some].ravel()
        known = model.entity_information(blocks, [index[places] for index in rows], without=number)
        new = model.information(number, fresh, rows=new_rows[some])
        ratios = exact_log_ratio(new, known, np.repeat(np.arange(len(new)), width), np.arange(len(places)))
        kept.ratios[some] = ratios.reshape(-1, width)
    order = np.lexsort((kept.places, -kept.ratios), axis=1)[:, :count]
    probability = _probabilities(kept.ratios, kept.rest, size)
    return np.take_along_axis(kept.places, order, axis=1), np.take_along_axis(probability, order, axis=1)


@dataclass(frozen=True, eq=False)
class _Kept:
    """The best reference rows for new rows so far, and what all others weigh together.

    Attributes:
        places: new rows × count, reference rows in no order.
        ratios: their log-likelihood ratios, −∞ where there is none yet.
        rest: per new row, the log of the sum of the others' likelihood ratios.
    """

    places: IntArray
    ratios: FloatArray
    rest: FloatArray

    @classmethod
    def none(cls, rows: int, count: int) -> _Kept:
        """Return what is kept before anything was looked at."""
        return cls(np.zeros((rows, count), dtype=np.int64), np.full((rows, count), -np.inf), np.full(rows, -np.inf))

    def add(self, rows: slice, part: slice, ratios: FloatArray) -> None:
        """Take in the ratios of some new rows and some reference rows."""
        places = np.broadcast_to(np.arange(part.start, part.stop), ratios.shape)
        places, ratios = np.hstack([self.places[rows], places]), np.hstack([self.ratios[rows], ratios])
        width = self.places.shape[1]
        order = np.argpartition(-ratios, width - 1, axis=1)
        best, others = order[:, :width], order[:, width:]
        self.rest[rows] = np.logaddexp(self.rest[rows], logsumexp(np.take_along_axis(ratios, others, axis=1), axis=1))
        self.places[rows] = np.take_along_axis(places, best, axis=1)
        self.ratios[rows] = np.take_along_axis(ratios, best, axis=1)


def _probabilities(ratios: FloatArray, rest: FloatArray, size: int) -> FloatArray:
    """Return how likely each pair is, from log-ratios, the log-sum of those not listed, and the number of all rows.

    Before any number is compared, a new row is as likely to have a partner as to have none, and every reference row is
    as likely as any other.
    """
    total = np.logaddexp(np.logaddexp(logsumexp(ratios, axis=1), rest), np.log(size))
    return np.asarray(np.exp(ratios - total[:, None]), dtype=np.float64)
