"""The paper's synthetic tables, its method as released, keyless, and what knowing the model would give.

Every function takes tables and their answer; solvers get the tables alone, and wrong rows are counted afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from keyless.datasets import ShuffledTables, make_shuffled_tables
from keyless.likelihood import pair_log_ratio
from keyless.linker import link
from keyless.metrics import normalised_error
from keyless.model import Information
from keyless.solvers import M3O, DecayingEntropy
from keyless.tables import to_problem

__all__ = [
    "FIGURE_ONE",
    "draw",
    "keyless_wrong",
    "m3o",
    "m3o_note",
    "m3o_run",
    "match_informed",
    "oracle_wrong",
    "spread",
    "true_information",
]

FIGURE_ONE: dict[str, Any] = {"n_rows": 100, "column_counts": (60, 40), "rank": 5, "noise": 0.1, "observed": 0.8}
"""The setting of the paper's figure 1, from which its sweeps start."""

_M3O_NOTE = (
    "“Our M³O” is Algorithm 2 from Gaussian starts as its authors released it: singular values above λ = 0.55 kept "
    "unshrunk, their step rule with ω = 1.5, ε halved from 0.1. The text prints a soft threshold of weight λ and the "
    "best of three λ per setting, without saying by what. Where other forms of M³O end, the printed one and one that "
    "is given the true rank, stands in docs/benchmarks.md."
)


def m3o_note(runs: Sequence[Mapping[str, Any]], *, quick: bool) -> str:
    """Say which M³O was run, and whether its runs came to their end.

    Args:
        runs: what `m3o_run` returned.
        quick: as for `m3o`.
    """
    ended = sum(run["converged"] for run in runs)
    wait = "20 steps, where the paper waits for 100" if quick else "the paper's 100 steps"
    return (
        f"{_M3O_NOTE} "
        f"ε is halved when the objective has not fallen by a ten-thousandth over {wait}. "
        f"{ended} of {len(runs)} runs went through all values of ε and settled, the others were stopped on "
        f"the way; steps: {min(run['steps'] for run in runs)} to {max(run['steps'] for run in runs)}."
    )


def draw(seed: int, **settings: Any) -> ShuffledTables:
    """Draw tables of the figure-1 setting, changed where `settings` say so, scaled by 2/max(n, m) as released.

    Args:
        seed: of the data set.
        settings: arguments of `make_shuffled_tables`.
    """
    return make_shuffled_tables(**(FIGURE_ONE | settings), scale=True, random_state=seed)


def m3o(*, quick: bool = False) -> M3O:
    """Return M³O-AS-DE as released, with room to go through all values of ε.

    An improvement counts from a ten-thousandth on: with less, ε hardly ever falls, and the couplings stay flat.

    Args:
        quick: halve ε after 20 steps without improvement instead of the paper's 100.
    """
    return M3O(
        penalty=0.55,
        prox="hard",
        step_rule="released",
        entropy=DecayingEntropy(initial=0.1),
        patience=20 if quick else 100,
        tolerance=1e-4,
        max_iter=2_000 if quick else 10_000,
    )


def m3o_run(made: ShuffledTables, start: int, *, quick: bool = False) -> dict[str, Any]:
    """Return the wrong rows per table of M³O from one Gaussian start, its steps, and whether it settled.

    Args:
        made: tables and answer.
        start: seed of the start.
        quick: as for `m3o`.
    """
    found = m3o(quick=quick).solve(to_problem(made.tables), random_state=start)
    wrong = normalised_error(dict(zip(made.truth, found.permutations, strict=True)), made.truth)
    return {"wrong": wrong, "steps": len(found.history), "converged": found.status.converged}


def keyless_wrong(made: ShuffledTables, start: int) -> float:
    """Return the wrong rows per table of keyless with nothing set by hand.

    Args:
        made: tables and answer.
        start: seed of keyless.
    """
    return normalised_error(link(made.tables, random_state=start).permutations, made.truth)


def oracle_wrong(made: ShuffledTables) -> float:
    """Return the wrong rows per table when loadings and noise are known, and only the order is not.

    Args:
        made: tables and answer, with noise.
    """
    return normalised_error(match_informed(true_information(made), list(made.truth)), made.truth)


def true_information(made: ShuffledTables) -> list[Information]:
    """Return what each row of each table says about its latents, by the true loadings and noise.

    Args:
        made: tables and answer, with noise.
    """
    edges = np.cumsum([0, *(table.shape[1] for table in made.tables.values())])
    found = []
    for index, table in enumerate(made.tables.values()):
        loadings = made.loadings[:, edges[index] : edges[index + 1]].T
        seen = ~np.isnan(table)
        precision = np.einsum("nk,ka,kb->nab", seen / made.noise**2, loadings, loadings)
        found.append(Information(precision, np.nan_to_num(table) @ loadings / made.noise**2))
    return found


def match_informed(parts: Sequence[Information], names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Match each table to the reference by known information, then each to all the others joined until stable.

    Args:
        parts: information of the rows of each table, the reference first.
        names: of the tables but the reference.
    """
    rows = [np.arange(len(parts[0]))]
    rows += [linear_sum_assignment(-pair_log_ratio(parts[0], part))[1] for part in parts[1:]]
    for _ in range(10 if len(parts) > 2 else 0):
        before = [index.copy() for index in rows]
        for own, part in enumerate(parts):
            others = [other[rows[k]] for k, other in enumerate(parts) if k != own]
            joined = others[0]
            for other in others[1:]:
                joined = joined + other
            rows[own] = linear_sum_assignment(-pair_log_ratio(joined, part))[1]
        if all(np.array_equal(old, new) for old, new in zip(before, rows, strict=True)):
            break
    back = np.argsort(rows[0])
    return {name: index[back] for name, index in zip(names, rows[1:], strict=True)}


def spread(values: Sequence[float] | Mapping[Any, float]) -> str:
    """Return numbers as the paper's tables do: mean±std (min).

    Args:
        values: the numbers.

    Example:
        >>> spread([0.0, 2.0])
        '1.00±1.41 (0.00)'
    """
    numbers = np.asarray(list(values.values()) if isinstance(values, Mapping) else values, dtype=np.float64)
    deviation = numbers.std(ddof=1) if numbers.size > 1 else 0.0
    return f"{numbers.mean():.2f}±{deviation:.2f} ({numbers.min():.2f})"
