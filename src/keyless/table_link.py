"""What was found for one table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from keyless.arrays import FloatArray, IntArray
from keyless.evidence import Evidence
from keyless.pairs.expected import ExpectedRight, expected_right

__all__ = ["TableLink"]


@dataclass(frozen=True, eq=False)
class TableLink:
    """What was found for one table.

    Attributes:
        permutation: `permutation[i]` is the row that belongs to reference row i, −1 for none.
        probability: how likely that is right; for −1, how likely it is that there is no partner. The doubt whether
            there is a map at all is included; where tables are unlinkable, it is that of a guess.
        margin: log of how many times likelier that is than the likeliest other answer for the reference row, in nats.
        coupling: `coupling[i, j]` is the probability that reference row i and row j are the same entity; an array, or a
            `scipy.sparse.csr_array` of the pairs that were looked at where rows are many.
        evidence: whether the table can be linked at all.
        correlations: canonical correlations between the matched rows of the reference and of the table, falling; none
            where too few rows are matched.
        alone: how likely each reference row has no partner.
    """

    permutation: IntArray
    probability: FloatArray
    margin: FloatArray
    coupling: FloatArray | sparse.csr_array
    evidence: Evidence
    correlations: FloatArray = field(default_factory=lambda: np.empty(0))
    alone: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def expected_right(self) -> ExpectedRight:
        """How many matches are expected right, with an interval. Trust it only where `evidence.believed`."""
        return expected_right(self.probability[self.permutation >= 0])

    def __repr__(self) -> str:
        matched = int((self.permutation >= 0).sum())
        return f"TableLink: {self.evidence.verdict}; {matched:,} of {len(self.permutation):,} rows matched"
