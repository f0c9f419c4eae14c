"""The data set and the starts of the authors' script for synthetic data, drawn with Matlab's random numbers.

The script (`exp_simulate.m`) draws one data set of the first row of the paper's table 1, with a seed that it states,
and ten starts. Here they are drawn again, number by number in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keyless.arrays import FloatArray
from keyless.datasets import ShuffledTables
from keyless.paper.experiments.matlab_random import MatlabRandom

__all__ = ["SCRIPT_SEED", "script_starts", "script_tables"]

SCRIPT_SEED = 256449302
"""Of the data set and of the seeds of the starts."""

_LARGEST_SEED = 10_000_000  # the seed of a start is drawn up to this


def script_tables(
    column_counts: Sequence[int], observed: float, *, n_rows: int = 100, rank: int = 5, noise: float = 0.1
) -> ShuffledTables:
    """Return the tables and their answer as the script draws them.

    Args:
        column_counts: of the reference and of each table.
        observed: share of the entries of every table that are kept.
        n_rows: of the tables.
        rank: of the matrix without noise.
        noise: standard deviation of the noise, before everything is scaled by 2/max(n, m).

    Example:
        >>> made = script_tables((40, 30, 30), 0.4)
        >>> made.tables["table1"].shape, made.tables["reference"].shape
        ((100, 30), (100, 40))
    """
    width = sum(column_counts)
    scale = 2 / max(n_rows, width)
    random = MatlabRandom(SCRIPT_SEED)
    factors = random.randn(n_rows, rank)
    loadings = random.randn(rank, width)
    whole = (factors @ loadings + noise * random.randn(n_rows, width)) * scale
    reference, *others = np.split(whole, np.cumsum(column_counts)[:-1], axis=1)
    complete = {"reference": reference}
    tables = {"reference": _thinned(reference, observed, random)}
    truth = {}
    for number, table in enumerate(others, start=1):
        order = random.randperm(n_rows)
        name = f"table{number}"
        complete[name], truth[name] = table[order], np.argsort(order)
        tables[name] = _thinned(complete[name], observed, random)
    return ShuffledTables(
        tables=tables,
        truth=truth,
        complete=complete,
        clean=factors @ loadings * scale,
        factors=factors,
        loadings=loadings * scale,
        noise=noise * scale,
    )


def script_starts(made: ShuffledTables, *, count: int) -> list[FloatArray]:
    """Return first estimates as the script draws them: zero in the reference, normal numbers in the tables.

    Args:
        made: tables; the numbers are as large as the mean of their entries, missing ones included.
        count: how many; the script has ten.
    """
    size = float(np.abs(np.hstack(list(made.complete.values()))).mean())
    reference, *others = made.complete.values()
    random, found = MatlabRandom(SCRIPT_SEED), []
    for _ in range(count):
        random = MatlabRandom(random.randi(_LARGEST_SEED))
        parts = [size * random.randn(*table.shape) for table in others]
        found.append(np.hstack([np.zeros_like(reference), *parts]))
    return found


def _thinned(table: FloatArray, observed: float, random: MatlabRandom) -> FloatArray:
    """Return a table with a share of its entries removed; entries are counted column by column."""
    flat = table.flatten(order="F")
    flat[random.randperm(flat.size)[: round(flat.size * (1 - observed))]] = np.nan
    return flat.reshape(table.shape, order="F")
