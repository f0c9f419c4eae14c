"""Tables of many rows, complete, with gaps, or with rows that have no partner."""

import numpy as np


def shuffled(rng, case, *, rows):
    """Two tables with gaps, or with 70% of the entities in common, and the right row of each."""
    latents = rng.laplace(size=(2 * rows, 6))
    own = np.r_[: round(0.7 * rows), rows : rows + rows - round(0.7 * rows)] if case == "strangers" else np.arange(rows)
    order = rng.permutation(rows)
    tables = [latents[:rows], latents[own[order]]]
    tables = [
        side @ rng.normal(size=(6, width)) + 0.3 * rng.normal(size=(rows, width))
        for side, width in zip(tables, (20, 16), strict=True)
    ]
    if case == "gaps":
        for table in tables:
            table[rng.random(table.shape) < 0.15] = np.nan
    truth = np.full(2 * rows, -1)
    truth[own[order]] = np.arange(rows)
    return tables, truth[:rows]
