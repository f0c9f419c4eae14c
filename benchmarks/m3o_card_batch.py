"""M³O as released and as printed, many problems at a time: every problem has its own ε, counters and best values.

A step does for every problem what `keyless.paper.M3O.step` does for one, in the same order; a test compares them. All
numbers are doubles. Problems of different widths share a batch: the reference and every table are filled up with
columns of zeros that are never observed, and a problem with fewer tables has tables that are left out.

This module needs numpy and torch alone, so that it runs where keyless is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m3o_card_steps import (
    CHANGE,
    DIFFUSENESS,
    ENTROPIC_COST,
    LARGEST_CHANGE,
    MOST_SWEEPS,
    TRANSPORT_COST,
    couple_,
    eigenvectors,
)

NEVER = 2**31 - 1
"""Steps; for `give_up` where a rule never gives up."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What M³O does, as far as the released and the printed rule differ.

    Attributes:
        penalty: λ.
        hard: whether singular values above λ stay as they are; otherwise they are shrunk by λ.
        released: whether the step sizes are the released ones, `min(max((½(1 − c)^ω + 0.01)(1 − max|ΔP|), 0.01),
            cap) / 2`, and the printed ones, `min((1 − δ)(1 − c)^ω, cap)`, otherwise.
        omega: ω of the step size.
        cap: the largest step size.
        entropic: whether the objective has the reference's misfit and the entropy in it; otherwise it has neither.
        epsilons: the values of ε in turn.
        patience: steps without progress after which ε moves on.
        tolerance: share of the best objective by which it must fall to make progress.
        diffuseness_tolerance: the same of the diffuseness; None: only the objective counts.
        give_up: steps without progress after which the run ends, whatever ε is.
        refilled: whether the start is zero in the reference, and the reference is refilled and the low-rank operator
            applied before the first step.
        sinkhorn_tolerance: bound on the root mean square of the row sums' errors.
        sinkhorn_max_iter: most Sinkhorn iterations.
        max_iter: most steps.
    """

    penalty: float
    hard: bool
    released: bool
    omega: float
    cap: float
    entropic: bool
    epsilons: Sequence[float]
    patience: int
    tolerance: float
    diffuseness_tolerance: float | None
    give_up: int | None
    refilled: bool
    sinkhorn_tolerance: float
    sinkhorn_max_iter: int
    max_iter: int


@dataclass(frozen=True)
class Start:
    """One run: tables, a rule, and standard normal numbers for the first estimate.

    Attributes:
        tables: reference and tables, NaN where missing; all have the same number of rows.
        normals: rows × all columns.
        rule: what to do.
    """

    tables: Sequence[NDArray[np.float64]]
    normals: NDArray[np.float64]
    rule: Rule


def first_estimate(start: Start) -> NDArray[np.float64]:
    """Return the matrix that a run begins with, before the low-rank operator of a rule with `refilled`."""
    observed = np.concatenate([table[~np.isnan(table)] for table in start.tables])
    if not start.rule.refilled:
        return np.sqrt(np.sum(observed**2) / len(observed)) * start.normals
    estimate = np.sum(np.abs(observed)) / len(observed) * start.normals
    width = start.tables[0].shape[1]
    estimate[:, :width] = np.nan_to_num(start.tables[0])
    return estimate


@dataclass
class Batch:
    """The state of many runs; every tensor has one entry per run in front, `couplings` one per run and table.

    `frozen` are the runs that have ended. `R` in the comments is the number of runs, n of rows, T of tables, w of
    columns of the widest table, v of columns of the widest reference.
    """

    index: Tensor  # R; which of the runs given first this is
    reference: Tensor  # R, n, v; of the estimate
    parts: Tensor  # R, T, n, w; of the estimate
    nuclear_norm: Tensor  # R
    couplings: Tensor  # R, T, n, n
    stage: Tensor  # R; which ε
    best_objective: Tensor  # R
    best_diffuseness: Tensor  # R
    stalled: Tensor  # R
    idle: Tensor  # R
    steps: Tensor  # R
    objective: Tensor  # R; of the last step
    step_sizes: Tensor  # R, T; of the last step
    iterations: Tensor  # R, T; Sinkhorn iterations of the last step
    troubles: Tensor  # R; steps in which the rotations did not settle
    frozen: Tensor  # R
    known: Tensor  # R, n, v; where the reference was observed
    own: Tensor  # R, n, v; what was observed there
    masks_and_values: Tensor  # R, T, n, 2w
    squares: Tensor  # R, T, n
    present: Tensor  # R, T; which tables are there
    epsilons: Tensor  # R, number of ε
    penalty: Tensor  # R; and so are all below
    hard: Tensor
    released: Tensor
    omega: Tensor
    cap: Tensor
    entropic: Tensor
    patience: Tensor
    tolerance: Tensor
    diffuseness_tolerance: Tensor
    give_up: Tensor
    sinkhorn_tolerance: Tensor
    sinkhorn_max_iter: int
    max_iter: int

    def __len__(self) -> int:
        return len(self.index)

    def kept(self, which: Tensor) -> Batch:
        """Return some of the runs.

        Args:
            which: numbers of the runs, in the batch.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[which] for name, value in values.items() if isinstance(value, Tensor)})

    def epsilon(self) -> Tensor:
        """Return the ε of each run."""
        return self.epsilons.gather(1, self.stage[:, None])[:, 0]


def begin(starts: Sequence[Start], device: str) -> Batch:
    """Return the state before the first step.

    Args:
        starts: the runs; their rules must have equally many ε and the same limits on steps and Sinkhorn iterations.
        device: where to work, such as `"cuda"`.
    """
    rules = [start.rule for start in starts]
    if len({(len(rule.epsilons), rule.sinkhorn_max_iter, rule.max_iter) for rule in rules}) > 1:
        raise ValueError("rules must have equally many ε and the same limits")
    runs, n = len(starts), len(starts[0].normals)
    most = max(len(start.tables) for start in starts) - 1
    wide_reference = max(start.tables[0].shape[1] for start in starts)
    wide = max(table.shape[1] for start in starts for table in start.tables[1:])
    known, own = np.zeros((runs, n, wide_reference), bool), np.zeros((runs, n, wide_reference))
    masks, values = np.zeros((runs, most, n, wide)), np.zeros((runs, most, n, wide))
    reference, parts = np.zeros_like(own), np.zeros_like(values)
    present = np.zeros((runs, most), bool)
    for run, start in enumerate(starts):
        width = start.tables[0].shape[1]
        known[run, :, :width] = ~np.isnan(start.tables[0])
        own[run, :, :width] = np.nan_to_num(start.tables[0])
        estimate = first_estimate(start)
        reference[run, :, :width] = estimate[:, :width]
        left = width
        for place, table in enumerate(start.tables[1:]):
            width = table.shape[1]
            masks[run, place, :, :width] = ~np.isnan(table)
            values[run, place, :, :width] = np.nan_to_num(table)
            parts[run, place, :, :width] = estimate[:, left : left + width]
            present[run, place] = True
            left += width

    def numbers(name: str, missing: float = 0.0) -> Tensor:
        found = [getattr(rule, name) for rule in rules]
        return tensor([missing if value is None else value for value in found])

    def tensor(array: Any) -> Tensor:
        return torch.as_tensor(np.asarray(array), device=device)

    zeros, counts = torch.zeros(runs, dtype=torch.float64, device=device), tensor(np.zeros(runs, np.int64))
    batch = Batch(
        index=tensor(np.arange(runs)),
        reference=tensor(reference),
        parts=tensor(parts),
        nuclear_norm=zeros.clone(),
        couplings=torch.zeros(runs, most, n, n, dtype=torch.float64, device=device),
        stage=counts.clone(),
        best_objective=torch.full_like(zeros, torch.inf),
        best_diffuseness=torch.ones_like(zeros),
        stalled=counts.clone(),
        idle=counts.clone(),
        steps=counts.clone(),
        objective=zeros.clone(),
        step_sizes=torch.zeros(runs, most, dtype=torch.float64, device=device),
        iterations=torch.zeros(runs, most, dtype=torch.int32, device=device),
        troubles=counts.clone(),
        frozen=tensor(np.zeros(runs, bool)),
        known=tensor(known),
        own=tensor(own),
        masks_and_values=tensor(np.concatenate([masks, values], axis=3)),
        squares=tensor((values**2).sum(axis=3)),
        present=tensor(present),
        epsilons=tensor([list(rule.epsilons) for rule in rules]),
        penalty=numbers("penalty"),
        hard=numbers("hard"),
        released=numbers("released"),
        omega=numbers("omega"),
        cap=numbers("cap"),
        entropic=numbers("entropic"),
        patience=numbers("patience"),
        tolerance=numbers("tolerance"),
        # No diffuseness is lower than 1 − ∞.
        diffuseness_tolerance=numbers("diffuseness_tolerance", float("inf")),
        give_up=numbers("give_up", NEVER),
        sinkhorn_tolerance=numbers("sinkhorn_tolerance"),
        sinkhorn_max_iter=rules[0].sinkhorn_max_iter,
        max_iter=rules[0].max_iter,
    )
    refilled = numbers("refilled")
    whole = tensor([0.0 if start.rule.refilled else np.linalg.norm(first_estimate(start), "nuc") for start in starts])
    cut, norm, _ = _low_rank(batch, batch.reference, batch.parts, ~batch.frozen, "")
    batch.nuclear_norm = torch.where(refilled, norm, whole)
    batch.reference = torch.where(refilled[:, None, None], cut[0], batch.reference)
    batch.parts = torch.where(refilled[:, None, None, None], cut[1], batch.parts)
    return batch


def step_(batch: Batch, *, way: str = "") -> None:
    """Take one step of every run that has not ended; then end those whose rule says so.

    Args:
        batch: changed.
        way: as in `eigenvectors`.
    """
    runs, tables, n, _ = batch.couplings.shape
    moving = ~batch.frozen
    epsilon = batch.epsilon()
    parts = batch.parts
    doubled = torch.cat([parts * parts, -2 * parts], dim=3)
    cost = doubled @ batch.masks_and_values.mT
    cost += batch.squares[:, :, None, :]
    statistics, iterations = couple_(
        cost.view(-1, n, n),
        epsilon.repeat_interleave(tables),
        batch.sinkhorn_tolerance.repeat_interleave(tables),
        (batch.present & moving[:, None]).flatten(),
        batch.couplings.view(-1, n, n),
        max_iter=batch.sinkhorn_max_iter,
    )
    statistics = statistics.view(runs, tables, -1)
    sizes = torch.where(batch.present, _step_sizes(batch, statistics), 0.0)
    products = batch.couplings @ batch.masks_and_values
    width = parts.shape[3]
    gradient = 2 * (parts * products[..., :width] - products[..., width:])
    moved = parts - sizes[:, :, None, None] * gradient
    filled = torch.where(batch.known, batch.own, batch.reference)
    (reference, fresh), norm, troubled = _low_rank(batch, filled, moved, moving, way)

    misfit = torch.where(batch.known, batch.reference - batch.own, 0.0).square().sum(dim=(1, 2))
    rest = batch.penalty * batch.nuclear_norm
    objective = torch.where(
        batch.entropic,
        rest + misfit + statistics[..., ENTROPIC_COST].sum(dim=1),
        rest + statistics[..., TRANSPORT_COST].sum(dim=1),
    )
    diffuseness = statistics[..., DIFFUSENESS].sum(dim=1) / batch.present.sum(dim=1)
    batch.reference = torch.where(moving[:, None, None], reference, batch.reference)
    batch.parts = torch.where(moving[:, None, None, None], fresh, parts)
    batch.nuclear_norm = torch.where(moving, norm, batch.nuclear_norm)
    batch.objective = torch.where(moving, objective, batch.objective)
    batch.step_sizes = torch.where(moving[:, None], sizes, batch.step_sizes)
    batch.iterations = iterations.view(runs, tables)
    batch.troubles += troubled & moving
    batch.steps += moving
    _count_progress_(batch, moving, objective, diffuseness)
    ended = (batch.stalled >= batch.patience) & (batch.stage == batch.epsilons.shape[1] - 1)
    batch.frozen |= ended | (batch.idle >= batch.give_up) | (batch.steps >= batch.max_iter)


def settled(batch: Batch) -> Tensor:
    """Tell which runs came to the end of their rule, and not only to the limit of their steps."""
    finished = (batch.stalled >= batch.patience) & (batch.stage == batch.epsilons.shape[1] - 1)
    return finished | (batch.idle >= batch.give_up)


def _step_sizes(batch: Batch, statistics: Tensor) -> Tensor:
    diffuseness = statistics[..., DIFFUSENESS].clip(0, 1)
    sharp = (1 - diffuseness) ** batch.omega[:, None]
    raw = (0.5 * sharp + 0.01) * (1 - statistics[..., LARGEST_CHANGE])
    cap = batch.cap[:, None]
    released = 0.5 * torch.minimum(raw.clip(min=0.01), cap)
    printed = torch.minimum((1 - statistics[..., CHANGE].clip(0, 1)) * sharp, cap)
    return torch.where(batch.released[:, None], released, printed)


def _low_rank(
    batch: Batch, reference: Tensor, parts: Tensor, active: Tensor, way: str
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Cut or shrink singular values; return the two parts, the nuclear norm, and where the rotations did not settle.

    Rows are no more than columns, so that the Gram matrix of the rows is the smaller one.
    """
    joined = torch.cat([reference, parts.transpose(1, 2).flatten(2)], dim=2)
    values, vectors, sweeps = eigenvectors(joined @ joined.mT, batch.penalty**2, active, way=way)
    singular = values.clip(min=0).sqrt()
    kept = values > (batch.penalty**2)[:, None]
    shrunk = torch.where(batch.hard, 0.0, batch.penalty)[:, None]
    weight = torch.where(kept, (singular - shrunk) / torch.where(kept, singular, 1.0), 0.0)
    cut = (vectors.mT * weight[:, None, :]) @ (vectors @ joined)
    norm = torch.where(kept, singular - shrunk, 0.0).sum(dim=1)
    width, (runs, tables, n, wide) = reference.shape[2], parts.shape
    others = cut[:, :, width:].reshape(runs, n, tables, wide).transpose(1, 2).contiguous()
    return (cut[:, :, :width].contiguous(), others), norm, sweeps >= MOST_SWEEPS


def _count_progress_(batch: Batch, moving: Tensor, objective: Tensor, diffuseness: Tensor) -> None:
    lower = _is_lower(objective, batch.best_objective, batch.tolerance) & moving
    sharper = _is_lower(diffuseness, batch.best_diffuseness, batch.diffuseness_tolerance) & moving
    progress = lower | sharper
    batch.best_objective = torch.where(lower, objective, batch.best_objective)
    batch.best_diffuseness = torch.where(sharper, diffuseness, batch.best_diffuseness)
    batch.stalled = torch.where(moving, torch.where(progress, 0, batch.stalled + 1), batch.stalled)
    batch.idle = torch.where(moving, torch.where(progress, 0, batch.idle + 1), batch.idle)
    # The next ε, if there is one; the entropic objective at another ε is another function.
    onward = moving & (batch.stalled >= batch.patience) & (batch.stage < batch.epsilons.shape[1] - 1)
    batch.best_objective = torch.where(onward & batch.entropic, torch.inf, batch.best_objective)
    batch.stalled = torch.where(onward, 0, batch.stalled)
    batch.stage += onward


def _is_lower(value: Tensor, best: Tensor, share: Tensor) -> Tensor:
    bound = best - share * torch.where(torch.isinf(best), 0.0, best.abs())
    return torch.isinf(best) | (value < bound)


def rules_from(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Rule]:
    """Return rules by name, as they are stored."""
    return {name: Rule(**values) for name, values in settings.items()}
