"""The rule of the authors' released M³O for synthetic data, written again in plain numpy, to be compared with.

    python benchmarks/released_m3o.py          # writes tests/data/m3o_released.npz

Nothing of keyless is used to run the rule, so that it is an independent check of `keyless.paper.M3O.released()`: a
test holds the solver to the stored trajectory. It is vectorised, as one would first write it: whole-matrix log-domain
Sinkhorn and one full SVD a step. `bench_m3o_released.py` times both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]

PENALTY = 0.55
FIRST_EPSILON, LAST_EPSILON = 0.1, 1e-6
OMEGA = 1.5
SMALLEST_STEP, LARGEST_STEP = 0.01, 0.5
PATIENCE = 100
PROGRESS = 0.9999
SINKHORN_TOLERANCE, SINKHORN_CHECK, SINKHORN_MAX = 0.01, 10, 10_000

TRAJECTORY = Path(__file__).parents[1] / "tests" / "data" / "m3o_released.npz"
TRAJECTORY_STEPS = 300


@dataclass(frozen=True)
class Step:
    """What one step of the rule saw and chose; step sizes are for the gradient without its factor 2."""

    objective: float
    epsilon: float
    step_sizes: tuple[float, ...]
    diffuseness: tuple[float, ...]
    couplings: tuple[Matrix, ...]
    estimate: Matrix


def first_tables(shapes: Sequence[tuple[int, int]], mean_size: float, rng: np.random.Generator) -> list[Matrix]:
    """Draw the tables' part of the first estimate."""
    return [mean_size * rng.standard_normal(shape) for shape in shapes]


def released_steps(reference: Matrix, tables: Sequence[Matrix], first: Sequence[Matrix]) -> Iterator[Step]:
    """Run the rule until it ends.

    Args:
        reference: the reference, NaN where missing.
        tables: the others, NaN where missing.
        first: the tables' part of the first estimate.
    """
    known = ~np.isnan(reference)
    own = np.where(known, reference, 0.0)
    seen = [(~np.isnan(table)).astype(float) for table in tables]
    values = [np.nan_to_num(table) for table in tables]
    edges = np.cumsum([reference.shape[1], *(table.shape[1] for table in tables)])
    parts = list(first)
    gradients = [np.zeros_like(part) for part in parts]
    couplings = [np.zeros((len(part), len(part))) for part in parts]
    sizes = [0.0] * len(parts)
    epsilon, best, sharpest = FIRST_EPSILON, np.inf, 1.0
    waiting = since_progress = 0
    while True:
        waiting, since_progress = waiting + 1, since_progress + 1
        own = np.where(known, reference, own)
        moved = [part - size * gradient for part, size, gradient in zip(parts, sizes, gradients, strict=True)]
        left, singular, right = np.linalg.svd(np.hstack([own, *moved]), full_matrices=False)
        kept = int((singular > PENALTY).sum())
        estimate = (left[:, :kept] * singular[:kept]) @ right[:kept]
        own, *parts = np.split(estimate, edges[:-1], axis=1)
        objective = PENALTY * float(singular[:kept].sum())
        diffuseness = [0.0] * len(parts)
        for index, (part, mask, value) in enumerate(zip(parts, seen, values, strict=True)):
            cost = part**2 @ mask.T - 2 * part @ value.T + (value**2).sum(axis=1)
            coupling = _sinkhorn(cost, epsilon)
            gradients[index] = part * (coupling @ mask) - coupling @ value
            objective += float((cost * coupling).sum())
            diffuseness[index] = float(np.abs(coupling.max(axis=1) - 1).mean())
            moving = float(np.abs(coupling - couplings[index]).max())
            raw = (0.5 * (1 - diffuseness[index]) ** OMEGA + 0.01) * (1 - moving)
            sizes[index] = min(max(raw, SMALLEST_STEP), LARGEST_STEP)
            couplings[index] = coupling
        yield Step(objective, epsilon, tuple(sizes), tuple(diffuseness), tuple(couplings), estimate)
        if np.mean(diffuseness) < PROGRESS * sharpest:
            sharpest, waiting, since_progress = float(np.mean(diffuseness)), 0, 0
        if objective <= PROGRESS * best:
            best, waiting, since_progress = objective, 0, 0
        if since_progress > 5 * PATIENCE or epsilon < LAST_EPSILON:
            return
        if waiting > PATIENCE:
            waiting, epsilon = 0, epsilon / 2


def _sinkhorn(cost: Matrix, epsilon: float) -> Matrix:
    alpha, beta = np.zeros(len(cost)), np.zeros(len(cost))
    for count in range(1, SINKHORN_MAX + 1):
        alpha = alpha + _soft_minimum(cost - alpha[:, None] - beta, epsilon, axis=1)
        beta = beta + _soft_minimum(cost - alpha[:, None] - beta, epsilon, axis=0)
        if count % SINKHORN_CHECK == 0:
            coupling: Matrix = np.exp((alpha[:, None] + beta - cost) / epsilon)
            if np.linalg.norm(coupling.sum(axis=1) - 1) < SINKHORN_TOLERANCE:
                break
    return coupling


def _soft_minimum(matrix: Matrix, epsilon: float, *, axis: int) -> Matrix:
    lowest = matrix.min(axis=axis, keepdims=True)
    found: Matrix = lowest.squeeze(axis) - epsilon * np.log(np.exp((lowest - matrix) / epsilon).sum(axis=axis))
    return found


def small_problem() -> tuple[Matrix, list[Matrix], list[Matrix]]:
    """Return a reference, two tables with missing entries and rows in unknown order, and a first estimate."""
    rng = np.random.default_rng(1)
    rows, columns, rank = 24, (12, 6, 6), 3
    whole = rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, sum(columns)))
    # Smaller than the script's 2/max(shape), so that ε is halved within the steps that are kept.
    whole = (whole + 0.1 * rng.standard_normal(whole.shape)) * 1.4 / max(whole.shape)
    mean_size = float(np.abs(whole).mean())
    pieces = np.split(whole, np.cumsum(columns)[:-1], axis=1)
    pieces = [pieces[0], *(piece[rng.permutation(rows)] for piece in pieces[1:])]
    pieces = [np.where(rng.random(piece.shape) < 0.8, piece, np.nan) for piece in pieces]
    return pieces[0], pieces[1:], first_tables([piece.shape for piece in pieces[1:]], mean_size, rng)


def main() -> None:
    """Write the problem and its trajectory."""
    reference, tables, first = small_problem()
    steps = []
    for step in released_steps(reference, tables, first):
        steps.append(step)
        if len(steps) == TRAJECTORY_STEPS:
            break
    TRAJECTORY.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        TRAJECTORY,
        reference=reference,
        **{f"table{index}": table for index, table in enumerate(tables, start=1)},
        **{f"first{index}": part for index, part in enumerate(first, start=1)},
        objective=[step.objective for step in steps],
        epsilon=[step.epsilon for step in steps],
        step_sizes=[step.step_sizes for step in steps],
    )
    changes = len({step.epsilon for step in steps}) - 1
    print(f"{len(steps)} steps, ε changed {changes} times, written to {TRAJECTORY.name}")


if __name__ == "__main__":
    main()
