"""What was found for one table, and for all tables together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from keyless.arrays import FloatArray, IntArray
from keyless.block import Block
from keyless.errors import Status, check_among
from keyless.evidence import Evidence, overall
from keyless.model.joint_model import JointModel
from keyless.pairs.expected import ExpectedRight, expected_right
from keyless.tables import Table, with_missingness
from keyless.tables.memory import is_large

__all__ = ["LinkedTables", "TableLink"]


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


@dataclass(frozen=True, eq=False)
class LinkedTables:
    """What was found for all tables. `Links` says what its attributes are, and adds what can be asked of it."""

    tables: tuple[Table, ...]
    found: Mapping[str, TableLink]
    model: JointModel
    status: Status
    choices: Mapping[str, Any] = field(default_factory=dict)
    starts: tuple[Mapping[str, Any], ...] = ()
    seed: int | None = None
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def reference(self) -> str:
        """Name of the table whose row order everything is given in."""
        return self.tables[0].name

    @property
    def repeated(self) -> str | None:
        """Name of the table that seems to hold several rows of one entity; None where none does."""
        for name, link in self.found.items():
            if link.evidence.repeated:
                return self.reference if link.evidence.repeated == "left" else name
        return None

    @property
    def permutations(self) -> dict[str, IntArray]:
        """Per table, the row that belongs to each reference row, −1 for none."""
        return {name: link.permutation for name, link in self.found.items()}

    def coupling(self, name: str) -> FloatArray | sparse.csr_array:
        """Return the soft correspondence of a table: probabilities, reference rows × its rows; sparse for many rows."""
        return self._link(name).coupling

    @property
    def evidence(self) -> Evidence:
        """The evidence over all tables: as weak as that of the weakest."""
        return overall([link.evidence for link in self.found.values()])

    def evidence_for(self, name: str) -> Evidence:
        """Return the evidence that one table can be linked."""
        return self._link(name).evidence

    @property
    def _pandas(self) -> bool:
        """Whether frames of pandas are handed out: for such frames, for arrays and for large files."""
        return self.tables[0].native is None or isinstance(self.tables[0].native, pd.DataFrame)

    @property
    def factors(self) -> FloatArray:
        """Factors of the entity of each reference row, from all that its rows say: rows × rank."""
        blocks, rows = self._placed
        return self.model.factors_of(blocks, rows)

    def _link(self, name: str) -> TableLink:
        check_among("table", name, self.found)
        return self.found[name]

    def _chosen(self, table: str | None) -> list[str]:
        """Names of the tables that are meant: of one, or of all for None."""
        if table is not None:
            self._link(table)
        return list(self.found) if table is None else [table]

    def _rows(self, name: str) -> IntArray:
        if name == self.reference:
            return np.arange(len(self.tables[0].row_ids))
        return self._link(name).permutation

    @property
    def _placed(self) -> tuple[list[Block], list[IntArray]]:
        """The tables as they were linked, and for each the row of each reference row."""
        return [self._used(table).block for table in self.tables], [self._rows(table.name) for table in self.tables]

    @property
    def _large(self) -> bool:
        return any(is_large(*table.block.shape) for table in self.tables)

    def _number(self, name: str) -> int:
        return [table.name for table in self.tables].index(name)

    def _used(self, table: Table, *, like: Table | None = None) -> Table:
        return with_missingness(table, like=like) if self.choices.get("missingness") else table
