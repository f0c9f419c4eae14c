"""How much a shuffle raises the nuclear norm, against how many rows it moves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keyless.completion import SoftImpute
from keyless.datasets import make_shuffled_tables
from keyless.lowrank import nuclear_norm
from keyless.paper.experiments.base import Experiment, ExperimentRun, Outcome
from keyless.paper.experiments.drawing import finish, legend, panels, ranged
from keyless.paper.theory import nuclear_norm_bounds, predicted_nuclear_increase
from keyless.plots import INK

__all__ = ["EXPERIMENT", "increase", "moved"]


def moved(rows: int, displaced: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return a random permutation that leaves all but `displaced` rows in place: one cycle through these.

    Args:
        rows: how many rows there are.
        displaced: how many of them move; not 1.
        rng: where the choice comes from.
    """
    order = np.arange(rows)
    chosen = rng.choice(rows, displaced, replace=False)
    order[chosen] = np.roll(chosen, 1)
    return order


def increase(
    share: float, observed: float, seed: int, *, n_rows: int = 100, columns: tuple[int, int] = (60, 40), rank: int = 5
) -> dict[str, float]:
    """Return what moving a share of the table's rows does to the nuclear norm and to its lower bound.

    Both are ratios to their value in the true order. Entries are removed before the rows are moved and filled by
    Soft-Impute after, as in the paper. The lower bound is (‖A‖* + ‖B‖*) / ‖[U_A V_Aᵀ, P U_B V_Bᵀ]‖, of the noise-free
    tables, whose column spaces are those of the factors.

    Args:
        share: of rows to move, H/n.
        observed: fraction of all entries.
        seed: of tables, missing entries and moves.
        n_rows: rows.
        columns: of the two tables.
        rank: of both together.

    Example:
        >>> increase(0.0, 0.5, 0, n_rows=20, columns=(8, 6), rank=2)["nuclear norm"]
        1.0
    """
    made = make_shuffled_tables(n_rows, columns, rank=rank, noise=0.1, observed=observed, random_state=seed)
    reference, table = made.tables["reference"], made.tables["table1"][made.truth["table1"]]
    order = moved(n_rows, round(share * n_rows), np.random.default_rng(seed))
    norms = [nuclear_norm(_filled(np.hstack([reference, rows]))) for rows in (table, table[order])]
    first, second = np.split(made.clean, [columns[0]], axis=1)
    bounds = [nuclear_norm_bounds(first, second, rows) for rows in (np.arange(n_rows), order)]
    return {
        "displaced": float(np.mean(order != np.arange(n_rows))),
        "nuclear norm": norms[1] / norms[0],
        "lower bound": bounds[1].lower / bounds[0].lower,
        "predicted": predicted_nuclear_increase(int((order != np.arange(n_rows)).sum()), n_rows),
    }


def _filled(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isnan(matrix).any():
        return matrix
    return np.asarray(SoftImpute(scale=False, random_state=0).fit_transform(matrix), dtype=np.float64)


def _cosine(ratio: float) -> float:
    """Return the largest cosine between column spaces that a ratio of lower bounds stands for: in order it is 1."""
    return 2 / ratio**2 - 1


def _all_moved(rows: list[dict[str, Any]], observed: float) -> float:
    return float(np.mean([r["nuclear norm"] for r in rows if r["observed"] == observed and r["share"] == 1]))


def _run(run: ExperimentRun) -> Outcome:
    seeds = run.count(10, 2)
    shares = run.size(tuple(np.linspace(0, 1, 11).round(2).tolist()), (0.0, 0.25, 0.5, 0.75, 1.0))
    fractions = run.size((1.0, 0.8, 0.6, 0.4, 0.2), (1.0, 0.8, 0.4))
    tasks = [
        (f"observed={observed} share={share} seed={seed}", partial(increase, share, observed, seed))
        for observed in fractions
        for share in shares
        for seed in range(seeds)
    ]
    found = run.cells(tasks)
    rows = [
        {"observed": observed, "share": share, "seed": seed, **found[f"observed={observed} share={share} seed={seed}"]}
        for observed in fractions
        for share in shares
        for seed in range(seeds)
    ]

    def numbers(what: str, observed: float) -> list[list[float]]:
        return [[r[what] for r in rows if r["observed"] == observed and r["share"] == share] for share in shares]

    table: list[dict[str, Any]] = []
    for place, share in enumerate(shares):
        entry: dict[str, Any] = {
            "H/n": f"{share:g}",
            "Remark 2's curve": predicted_nuclear_increase(share * 100, 100),
            "lower bounds, ratio": float(np.mean(numbers("lower bound", fractions[0])[place])),
        }
        for observed in fractions:
            entry[f"nuclear norms, {observed:.0%} observed"] = float(np.mean(numbers("nuclear norm", observed)[place]))
        table.append(entry)

    middle = float(np.mean(numbers("lower bound", fractions[0])[len(shares) // 2]))
    (ax,) = panels(1, width=7.0, height=4.2)
    for number, observed in enumerate(fractions):
        ranged(ax, shares, numbers("nuclear norm", observed), number=number, label=f"‖·‖*, {observed:.0%} observed")
    ranged(ax, shares, numbers("lower bound", fractions[0]), number=5, label="its lower bound")
    curve = np.linspace(0, 1, 101)
    ax.plot(
        curve, [predicted_nuclear_increase(100 * x, 100) for x in curve], color=INK, linewidth=1.6,
        linestyle=(0, (4, 2)), label="(1 − H/2n)^(−1/2)",
    )  # fmt: skip
    finish(
        ax,
        title="A shuffle raises the nuclear norm",
        xlabel="H(π)/n, share of rows moved",
        ylabel="ratio to true order",
    )
    return Outcome(
        table=table,
        rows=rows,
        figure=legend(ax, columns=3),
        settings={"n": 100, "columns": [60, 40], "rank": 5, "noise": 0.1, "data sets": seeds},
        notes=(
            "Remark 2's (1 − H/2n)^(−1/2) is a ratio of lower bounds on nuclear norms, for equal tables and with "
            "U_AᵀPU_A = (1 − H/n)·I, not a ratio of nuclear norms. Both are shown.",
            "The lower bound depends on the largest cosine between the column spaces of A and P·B alone; the "
            f"curve assumes that it is 1 − H/n. At H/n = {shares[len(shares) // 2]:g} it is {_cosine(middle):.2f}.",
            f"When all rows move, the nuclear norm rises to {_all_moved(rows, fractions[0]):.3f} with every entry "
            f"observed and to {_all_moved(rows, fractions[-1]):.3f} with {fractions[-1]:.0%} of them.",
            "Means over data sets; the band in the figure runs from the smallest to the largest.",
        ),
    )


EXPERIMENT = Experiment(
    name="nuclear-norm",
    title="‖[A, PB]‖*/‖M‖* against the share of rows moved",
    paper=(
        "Remark 2 and a figure: the ratio grows with H/n as (1 − H/2n)^(−1/2), and the relation is “gracefully "
        "degraded” with fewer observed entries."
    ),
    leaks="The curve that is printed for the ratio belongs to a lower bound. Theorem 1, from whose proof it "
    "comes, is not true.",
    columns=(
        "H/n",
        "Remark 2's curve",
        "lower bounds, ratio",
        *(f"nuclear norms, {share}% observed" for share in (100, 80, 60, 40, 20)),
    ),
    run=_run,
)
