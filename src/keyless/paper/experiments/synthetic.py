"""The paper's synthetic tables, its method as released, keyless, and what knowing the model would give.

Every function takes tables and their answer; solvers get the tables alone, and wrong rows are counted afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from keyless.datasets import ShuffledTables, make_shuffled_tables
from keyless.linker import link
from keyless.metrics import normalised_error
from keyless.model.factor_model import Information
from keyless.pairs.likelihood import pair_log_ratio
from keyless.paper import M3O
from keyless.paper.problem import to_problem

__all__ = [
    "FIGURE_ONE",
    "PENALTIES",
    "RELEASED_PENALTY",
    "PresetName",
    "draw",
    "draw_released",
    "keyless_wrong",
    "m3o",
    "m3o_note",
    "m3o_run",
    "match_informed",
    "oracle_wrong",
    "spread",
    "summary",
    "true_information",
    "wrong_rows",
]

PresetName: TypeAlias = Literal["released", "printed"]

FIGURE_ONE: dict[str, Any] = {"n_rows": 100, "column_counts": (60, 40), "rank": 5, "noise": 0.1, "observed": 0.8}
"""The setting of the paper's figure 1, from which its sweeps start."""

RELEASED_PENALTY = 0.55
"""The λ of the authors' script."""

PENALTIES = (0.4, 0.5, 0.55, 0.6)
"""The three λ that the paper chooses from, and the script's: all are shown, none is chosen."""

_QUICK: dict[str, Any] = {"patience": 21, "tolerance": 1e-3, "diffuseness_tolerance": None, "max_iter": 5_000}
"""In the quick form ε is halved after 21 steps (instead of 101) in which the objective did not fall by a thousandth of
itself (instead of a ten-thousandth), and sharper couplings do not count; most runs then end within 1,000 steps."""

_M3O_NOTE = (
    "“Released” is `M3O.released()`, the rule of the authors' script; “printed” is `M3O.printed()`, Algorithm 2 with "
    "the printed settings and λ = 0.5. docs/solvers.md lists the differences. Tables are drawn as the released "
    "generator does: scaled by 2/max(n, m), with the same share missing in every table. M³O as released takes each "
    "row's largest weight for its partner, as in the script."
)


def m3o_note(runs: Sequence[Mapping[str, Any]]) -> str:
    """Say which M³O was run, and whether its runs came to their end.

    Args:
        runs: what `m3o_run` returned.
    """
    ended = sum(run["converged"] for run in runs)
    return (
        f"{_M3O_NOTE} {ended} of {len(runs)} runs of the released rule with λ = {RELEASED_PENALTY} ended within "
        f"the number of steps allowed; steps: {min(run['steps'] for run in runs)} to "
        f"{max(run['steps'] for run in runs)}."
    )


def draw(seed: int, **settings: Any) -> ShuffledTables:
    """Draw tables of the figure-1 setting, changed where `settings` say so, scaled by 2/max(n, m) as released.

    Args:
        seed: of the data set.
        settings: arguments of `make_shuffled_tables`.
    """
    return make_shuffled_tables(**(FIGURE_ONE | settings), scale=True, random_state=seed)


def draw_released(seed: int, **settings: Any) -> ShuffledTables:
    """Draw tables by the law of the authors' generator: as `draw`, but the same share is missing in every table.

    Args:
        seed: of the data set.
        settings: arguments of `make_shuffled_tables`.
    """
    return draw(seed, missing="per_table", **settings)


def m3o(preset: PresetName = "released", *, penalty: float | None = None, quick: bool = False) -> M3O:
    """Return M³O-AS-DE as its authors released it or as they print it.

    Args:
        preset: which.
        penalty: λ; None: the preset's own.
        quick: give up sooner.
    """
    make = M3O.released if preset == "released" else M3O.printed
    solver = make() if penalty is None else make(penalty=penalty)
    return replace(solver, **_QUICK) if quick else solver


def m3o_run(
    made: ShuffledTables,
    start: int | NDArray[np.float64],
    *,
    preset: PresetName = "released",
    penalty: float | None = None,
    quick: bool = False,
) -> dict[str, Any]:
    """Return the wrong rows per table of M³O from one random start, its steps, and whether it came to its end.

    Args:
        made: tables and answer.
        start: seed of the start, or the first estimate.
        preset: as for `m3o`.
        penalty: as for `m3o`.
        quick: as for `m3o`.
    """
    solver, problem = m3o(preset, penalty=penalty, quick=quick), to_problem(made.tables)
    found = solver.solve(problem, random_state=start) if isinstance(start, int) else solver.solve(problem, start=start)
    return {
        "wrong": wrong_rows(found.permutations, made),
        "objective": found.objective,
        "steps": len(found.history),
        "converged": found.status.converged,
    }


def wrong_rows(permutations: Sequence[Any], made: ShuffledTables) -> float:
    """Return the wrong rows per table.

    Args:
        permutations: one per table but the reference, in the order of the tables.
        made: tables and answer.
    """
    return normalised_error(dict(zip(made.truth, permutations, strict=True)), made.truth)


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


def summary(wrong: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    """Return what the tables say of runs: mean±std (min), exact recoveries, and the data sets' means.

    Args:
        wrong: wrong rows per table by data set and start.

    Example:
        >>> summary({(0, 0): 0.0, (0, 1): 2.0, (1, 0): 5.0, (1, 1): 7.0})["means of data sets"]
        '1.0 to 6.0'
    """
    by_data: dict[int, list[float]] = {}
    for (data, _), value in wrong.items():
        by_data.setdefault(data, []).append(value)
    means = [float(np.mean(values)) for values in by_data.values()]
    starts = {len(values) for values in by_data.values()}
    return {
        "wrong rows": spread(list(wrong.values())),
        "exact": f"{sum(value == 0 for value in wrong.values())} of {len(wrong)}",
        "means of data sets": f"{min(means):.1f} to {max(means):.1f}",
        "data sets × starts": f"{len(by_data)} × {max(starts)}",
    }
