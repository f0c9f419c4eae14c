"""Tables as factor models: every column is a linear look at a few latent factors of each entity, plus noise.

    value[i, k] ~ N(offset_k + loading_k · latent_i, noise_k),    latent_i ~ N(0, I)

Only observed entries count. Loadings and offsets get a Gaussian posterior and a prior whose width is learnt from the
data, so that factors the data do not support fade away and can be dropped: that is how the rank is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyless.arrays import Array, BoolArray, FloatArray, IntArray, array_like, namespace, on_device, to_numpy
from keyless.cluster import device_for
from keyless.progress import check_time, in_time

__all__ = [
    "ColumnStatistics",
    "FactorModel",
    "Information",
    "advanced",
    "column_statistics",
    "drop_unsupported",
    "em_step",
    "evidence",
    "fit",
    "fit_at_rank",
    "fit_steps",
    "fit_table",
    "information",
    "initial_model",
    "model_from_directions",
    "moments",
    "padded",
    "posterior",
    "update_columns",
]

Rows = slice | IntArray | BoolArray
"""Which rows, or columns."""

_WORTH_A_CARD = 2**17
"""From so many rows × (factors + 1)² on, a graphics card takes a step of EM more quickly than one processor core."""

_OF_COLUMNS = ("loadings", "offsets", "noise", "spread")
"""Parts of a model that have one entry per column."""
_TINY = 1e-12
_MINIMUM_NOISE = 1e-5
"""Noise variance of standardised columns is never estimated below this."""


@dataclass(frozen=True, eq=False)
class FactorModel:
    """A factor model of some columns.

    Attributes:
        loadings: columns × rank, how strongly each column shows each factor.
        offsets: what each column shows when all factors are 0.
        noise: noise variance of each column.
        spread: columns × (rank + 1) × (rank + 1), posterior covariance of a column's loadings and, last, its offset.
        shrinkage: prior precision of the rank factors' loadings and, last, of the offsets.
    """

    loadings: FloatArray
    offsets: FloatArray
    noise: FloatArray
    spread: FloatArray
    shrinkage: FloatArray

    def __repr__(self) -> str:
        return f"FactorModel: {self.rank} factors of {len(self.loadings):,} columns"

    @property
    def rank(self) -> int:
        """Number of latent factors."""
        return int(self.loadings.shape[1])

    def columns(self, chosen: Rows) -> FactorModel:
        """Return the same model seen through some of its columns (a slice or column numbers)."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _OF_COLUMNS})

    def rotated(self, rotation: FloatArray) -> FactorModel:
        """Return the same model for latents `latent @ rotation`, with an orthogonal rotation."""
        full = _with_offset(rotation)
        return replace(self, loadings=self.loadings @ rotation, spread=full.T @ self.spread @ full)

    def joined(self, other: FactorModel) -> FactorModel:
        """Return one model of both sets of columns, which must have the same factors."""
        parts = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _OF_COLUMNS}
        return FactorModel(**parts, shrinkage=0.5 * (self.shrinkage + other.shrinkage))


@dataclass(frozen=True, eq=False)
class Information:
    """What each row says about its latents z: log-density −½ zᵀ·precision·z + zᵀ·shift, up to a constant.

    Information of independent rows about the same entity adds up.
    """

    precision: FloatArray
    shift: FloatArray

    @property
    def rank(self) -> int:
        """Number of latent factors."""
        return int(self.shift.shape[-1])

    def __getitem__(self, rows: Rows) -> Information:
        return Information(self.precision[rows], self.shift[rows])

    def __add__(self, other: Information) -> Information:
        return Information(self.precision + other.precision, self.shift + other.shift)

    def __len__(self) -> int:
        return len(self.shift)

    def gathered(self, rows: IntArray) -> Information:
        """Return the information of the listed rows; nothing is known where the row number is −1."""
        present = rows >= 0
        taken = self[np.maximum(rows, 0)]
        return Information(taken.precision * present[:, None, None], taken.shift * present[:, None])

    def rotated(self, rotation: FloatArray) -> Information:
        """Return the information about `latent @ rotation`, with an orthogonal rotation."""
        return Information(rotation.T @ self.precision @ rotation, self.shift @ rotation)


def information(model: FactorModel, values: Array, mask: Array) -> Information:
    """Return what each row of a table says about its latents, in arrays of the table's library.

    With ⟨·⟩ the mean over the posterior of loadings e and offsets, and Ω the observed columns of a row:

        precision = Σ_{k∈Ω} ⟨e_k e_kᵀ⟩ / noise_k,    shift = Σ_{k∈Ω} (value_k·⟨e_k⟩ − ⟨offset_k e_k⟩) / noise_k

    Args:
        model: a model of the table's columns.
        values: the table, 0 where missing.
        mask: True where observed.
    """
    rank = model.rank
    weight = 1.0 / model.noise
    outer = model.loadings[:, :, None] * model.loadings[:, None, :] + model.spread[:, :rank, :rank]
    cross = model.offsets[:, None] * model.loadings + model.spread[:, :rank, rank]
    xp = namespace(values)
    seen = xp.astype(mask, xp.float64)
    flat = (outer * weight[:, None, None]).reshape(len(weight), rank * rank)
    weights = flat, model.loadings * weight[:, None], cross * weight[:, None]
    of_pairs, of_values, of_offsets = (array_like(part, seen) for part in weights)
    precision = (seen @ of_pairs).reshape(len(values), rank, rank)
    return Information(precision, values @ of_values - seen @ of_offsets)


def posterior(info: Information) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return each row's latent mean, latent covariance, and log Z = −½ log det(I+G) + ½ hᵀ(I+G)⁻¹h.

    G is the row's precision, h its shift.
    """
    xp = namespace(info.shift)
    system = info.precision + array_like(np.eye(info.rank), info.shift)
    covariance = _symmetric_inverse(system)
    means = xp.einsum("nab,nb->na", covariance, info.shift)
    _, logdet = xp.linalg.slogdet(system)
    return means, covariance, 0.5 * (xp.einsum("na,na->n", means, info.shift) - logdet)


def moments(means: FloatArray, covariance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return ⟨z̃⟩ and ⟨z̃ z̃ᵀ⟩ per row, with z̃ = (z, 1)."""
    xp, (rows, rank) = namespace(means), means.shape
    first = xp.concat([means, array_like(np.ones((rows, 1)), means)], axis=1)
    second = first[:, :, None] * first[:, None, :]
    second[:, :rank, :rank] += covariance
    return first, second


@dataclass(frozen=True, eq=False)
class ColumnStatistics:
    """Sums over the observed rows of each column, with z̃ = (latents, 1).

    Attributes:
        second: Σ ⟨z̃ z̃ᵀ⟩.
        cross: Σ value·⟨z̃⟩.
        square: Σ value².
        count: number of observed rows.
    """

    second: FloatArray
    cross: FloatArray
    square: FloatArray
    count: FloatArray


def column_statistics(values: Array, mask: Array, first: Array, second: Array) -> ColumnStatistics:
    """Return the sums that a column's posterior depends on, from the moments of each row's latents; in main memory."""
    size, xp = first.shape[1], namespace(values)
    total = (xp.astype(mask.T, xp.float64) @ second.reshape(len(second), size * size)).reshape(-1, size, size)
    sums = total, values.T @ first, (values**2).sum(axis=0), xp.astype(mask.sum(axis=0), xp.float64)
    return ColumnStatistics(*(to_numpy(part) for part in sums))


def update_columns(model: FactorModel, statistics: ColumnStatistics, *, noise_prior_rows: float = 3.0) -> FactorModel:
    """Return the posterior of loadings and offsets, then the best noise, then the best shrinkage.

    Args:
        model: gives noise and shrinkage to start from.
        statistics: see `column_statistics`.
        noise_prior_rows: the noise of each column is mixed with that of all columns, which counts as this many rows.
    """
    system = statistics.second / model.noise[:, None, None] + np.diag(model.shrinkage)
    spread = _symmetric_inverse(system)
    weights = np.einsum("kab,kb->ka", spread, statistics.cross) / model.noise[:, None]
    outer = weights[:, :, None] * weights[:, None, :] + spread
    explained = 2 * np.einsum("ka,ka->k", weights, statistics.cross)
    misfit = np.maximum(statistics.square - explained + np.einsum("kab,kab->k", outer, statistics.second), 0.0)
    pooled = misfit.sum() / max(statistics.count.sum(), 1.0)
    noise = (misfit + noise_prior_rows * pooled) / np.maximum(statistics.count + noise_prior_rows, _TINY)
    shrinkage = len(weights) / np.maximum(np.einsum("kaa->a", outer), _TINY)
    # The offsets keep theirs: all are near 0 in standardised tables, and a prior learnt from that would hold them at 0.
    shrinkage[-1] = model.shrinkage[-1]
    return FactorModel(weights[:, :-1], weights[:, -1], np.maximum(noise, _MINIMUM_NOISE), spread, shrinkage)


def em_step(
    values: FloatArray, mask: BoolArray, model: FactorModel, *, noise_prior_rows: float = 3.0
) -> tuple[FactorModel, float]:
    """Take one step of variational EM; return the new model and the evidence of the one given.

    The evidence is a lower bound of the log-likelihood of the observed entries. With `noise_prior_rows=0` and noise
    above its smallest value no step lowers it; the evidence of a model whose `spread` is 0 is −∞.
    """
    means, covariance, log_z = posterior(information(model, values, mask))
    first, second = moments(means, covariance)
    check_time()
    statistics = column_statistics(values, mask, first, second)
    bound = evidence(model, float(log_z.sum()), statistics)
    average = to_numpy(second[:, :-1, :-1].mean(axis=0))
    return advanced(model, statistics, average, noise_prior_rows=noise_prior_rows), bound


def advanced(
    model: FactorModel, statistics: ColumnStatistics, average_second: FloatArray, *, noise_prior_rows: float = 3.0
) -> FactorModel:
    """Return the model after one step of EM, its latents brought to unit second moment.

    Args:
        model: the model that the statistics were computed with.
        statistics: see `column_statistics`.
        average_second: mean over rows of ⟨z zᵀ⟩.
        noise_prior_rows: as for `update_columns`.
    """
    return _normalised(update_columns(model, statistics, noise_prior_rows=noise_prior_rows), average_second)


def fit(
    values: FloatArray,
    mask: BoolArray,
    model: FactorModel,
    *,
    max_iter: int = 100,
    tolerance: float = 1e-5,
    prune: bool = True,
) -> tuple[FactorModel, float]:
    """Fit a factor model to the observed entries by variational EM; a graphics card, if any, sums over many rows.

    Args:
        values: the table, 0 where missing.
        mask: True where observed.
        model: where to start, such as `initial_model`.
        max_iter: stop after so many steps.
        tolerance: stop when the evidence changes by less than this per observed entry.
        prune: drop factors the data do not support.

    Returns:
        The model, and the evidence of the last model looked at.
    """
    device = device_for(len(values) * (model.rank + 1) ** 2, least=_WORTH_A_CARD)
    if device is not None:
        values, mask = on_device(values, device), on_device(mask, device)
    return fit_steps(
        lambda current: em_step(values, mask, current),
        model,
        entries=float(mask.sum()),
        max_iter=max_iter,
        tolerance=tolerance,
        prune=prune,
    )


def fit_steps(
    step: Callable[[FactorModel], tuple[FactorModel, float]],
    model: FactorModel,
    *,
    entries: float,
    max_iter: int,
    tolerance: float,
    prune: bool,
    expired: Callable[[], bool] | None = None,
) -> tuple[FactorModel, float]:
    """Repeat a step of EM until its evidence settles; the loop of `fit`.

    Args:
        step: from a model to the next one and the evidence of the one given.
        model: where to start.
        entries: number of observed entries.
        max_iter: as for `fit`.
        tolerance: as for `fit`.
        prune: as for `fit`.
        expired: asked before every step whether to end with the model there is.
    """
    enough = tolerance * max(entries, 1.0)
    last = bound = -np.inf
    for iteration in range(max_iter):
        if iteration and expired is not None and expired():
            break
        check_time()
        updated, bound = step(model)
        # The first evidence belongs to the model that was given; only later ones can be compared.
        bound = bound if iteration else -np.inf
        if iteration and abs(bound - last) <= enough:
            break
        last, model = bound, updated
        if prune and iteration >= 5:
            pruned = drop_unsupported(model)
            last = -np.inf if pruned.rank < model.rank else last
            model = pruned
    return model, bound


def initial_model(values: FloatArray, mask: BoolArray, rank: int, *, noise: float = 0.03) -> FactorModel:
    """Return the leading right singular vectors of a table, its missing entries at the mean, as a model.

    Args:
        values: the table, 0 where missing.
        mask: True where observed.
        rank: how many factors; no more than the table has rows or columns are made.
        noise: noise variance to start from; low starts keep weak factors alive.
    """
    share = max(float(mask.mean()), 1e-6)
    _, singular, right = in_time(lambda: np.linalg.svd(values / np.sqrt(len(values)), full_matrices=False))
    rank = min(rank, len(singular))
    return model_from_directions((right[:rank] * singular[:rank, None]).T / share, noise=noise)


def model_from_directions(loadings: FloatArray, *, noise: float) -> FactorModel:
    """Return a model without spread that has these loadings, made smaller if too large for a standardised column.

    Args:
        loadings: columns × rank.
        noise: noise variance of all columns.
    """
    columns, rank = loadings.shape
    size = np.sqrt((loadings**2).sum(axis=1))
    loadings = loadings * np.minimum(1.0, 0.95 / np.maximum(size, _TINY))[:, None]
    shrinkage = np.append(columns / np.maximum((loadings**2).sum(axis=0), 1e-6), 10.0)
    spread = np.zeros((columns, rank + 1, rank + 1))
    return FactorModel(loadings, np.zeros(columns), np.full(columns, noise), spread, shrinkage)


def drop_unsupported(model: FactorModel) -> FactorModel:
    """Drop factors whose loadings are smaller than their own posterior spread; one factor always stays."""
    signal = (model.loadings**2).sum(axis=0)
    blur = np.einsum("kaa->a", model.spread[:, :-1, :-1])
    keep = np.flatnonzero(signal > blur)
    if len(keep) == model.rank:
        return model
    return _with_factors(model, keep if len(keep) else np.argmax(signal, keepdims=True))


def fit_table(values: FloatArray, mask: BoolArray, *, largest_rank: int = 40, max_iter: int = 200) -> FactorModel:
    """Fit a factor model to one standardised table; its rank is found by dropping unsupported factors.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> values = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 12)) + 0.1 * rng.normal(size=(200, 12))
        >>> values = (values - values.mean(axis=0)) / values.std(axis=0)
        >>> fit_table(values, np.ones(values.shape, dtype=bool)).rank
        3
    """
    rank = max(1, min(largest_rank, min(values.shape) - 1))
    return fit(values, mask, initial_model(values, mask, rank), max_iter=max_iter)[0]


def fit_at_rank(values: FloatArray, mask: BoolArray, rank: int, *, held_noise: float | None = None) -> FactorModel:
    """Fit a plain factor model at a given rank, for tables with few entries per unknown.

    All columns have one noise, all factors one shrinkage, rank/(1 − noise), and loadings have no spread. Of two fits,
    one with noise that falls from 0.3 and one with a factor too many that is dropped, the one of less noise is kept.

    Args:
        values: the standardised table, 0 where missing.
        mask: True where observed.
        rank: number of factors; factors beyond what the table can hold stay empty.
        held_noise: noise variance to use instead of estimating it; saturated tables drift to high noise.
    """
    if held_noise is not None:
        start = initial_model(values, mask, rank, noise=held_noise)
        return padded(_fit_common(values, mask, start, [held_noise] * 60), rank)
    falling = np.repeat(np.geomspace(0.3, 0.003, 10), 10).tolist()
    narrow = _fit_common(values, mask, initial_model(values, mask, rank, noise=0.3), [*falling, *[None] * 60])
    wide = _fit_common(values, mask, initial_model(values, mask, rank + 1), [0.03] * 60)
    cut = _with_factors(wide, np.arange(min(rank, wide.rank)))
    cut = _fit_common(values, mask, cut, [None] * 60)
    return padded(narrow if narrow.noise[0] <= cut.noise[0] else cut, rank)


def padded(model: FactorModel, rank: int) -> FactorModel:
    """Return the same model with empty factors appended up to `rank`."""
    extra = rank - model.rank
    if extra <= 0:
        return model
    spread = np.zeros((len(model.loadings), rank + 1, rank + 1))
    order = np.append(np.arange(model.rank), rank)
    spread[:, order[:, None], order[None, :]] = model.spread
    shrinkage = np.concatenate([model.shrinkage[:-1], np.full(extra, 1e6), model.shrinkage[-1:]])
    return replace(model, loadings=np.pad(model.loadings, ((0, 0), (0, extra))), spread=spread, shrinkage=shrinkage)


def _symmetric_inverse(system: Array) -> Array:
    xp = namespace(system)
    inverse = xp.linalg.inv(system)
    return 0.5 * (inverse + xp.matrix_transpose(inverse))


def _fit_common(
    values: FloatArray, mask: BoolArray, model: FactorModel, schedule: Sequence[float | None]
) -> FactorModel:
    """Take steps of EM with one noise and one shrinkage for all; `schedule` has each step's noise, None: estimated."""
    noise = float(model.noise.mean())
    for held in schedule:
        check_time()
        model = _made_common(model, noise if held is None else held)
        means, covariance, _ = posterior(information(model, values, mask))
        first, second = moments(means, covariance)
        statistics = column_statistics(values, mask, first, second)
        model = advanced(model, statistics, second[:, :-1, :-1].mean(axis=0), noise_prior_rows=1e6)
        noise = float(np.clip(model.noise.mean(), 1e-4, 0.95))
    last = schedule[-1]
    return _made_common(model, noise if last is None else last)


def _made_common(model: FactorModel, noise: float) -> FactorModel:
    """Return the model with one noise, the shrinkage that goes with it, and loadings without spread."""
    shrinkage = np.append(np.full(model.rank, model.rank / (1 - noise)), model.shrinkage[-1])
    return replace(
        model, noise=np.full_like(model.noise, noise), spread=np.zeros_like(model.spread), shrinkage=shrinkage
    )


def _with_factors(model: FactorModel, keep: IntArray) -> FactorModel:
    """Return the model with some of its factors only."""
    wide = np.append(keep, model.rank)
    spread, shrinkage = model.spread[:, wide][:, :, wide], model.shrinkage[wide]
    return replace(model, loadings=model.loadings[:, keep], spread=spread, shrinkage=shrinkage)


def _with_offset(transform: FloatArray) -> FloatArray:
    """Return a transform of latents as one of (latents, 1)."""
    full = np.eye(len(transform) + 1)
    full[:-1, :-1] = transform
    return full


def _normalised(model: FactorModel, average_second: FloatArray) -> FactorModel:
    """Reparametrise so that latents have unit second moment and loadings are uncorrelated, strongest factor first.

    This never lowers the evidence, and saves EM most of its steps.
    """
    scale = np.linalg.cholesky(average_second + 1e-10 * np.eye(model.rank))
    outer = model.loadings.T @ model.loadings + model.spread[:, :-1, :-1].sum(axis=0)
    _, vectors = np.linalg.eigh(scale.T @ outer @ scale)
    full = _with_offset(scale @ vectors[:, ::-1])
    loadings = model.loadings @ full[:-1, :-1]
    spread = full.T @ model.spread @ full
    size = (loadings**2).sum(axis=0) + np.einsum("kaa->a", spread[:, :-1, :-1])
    shrinkage = np.append(len(loadings) / np.maximum(size, _TINY), model.shrinkage[-1])
    return replace(model, loadings=loadings, spread=spread, shrinkage=shrinkage)


def evidence(model: FactorModel, log_z: float, statistics: ColumnStatistics) -> float:
    """Return the lower bound of the log-likelihood, the latents at their posterior given `model`.

    Args:
        model: the model.
        log_z: Σ log Z over all rows, see `posterior`.
        statistics: see `column_statistics`.
    """
    offset_square = model.offsets**2 + model.spread[:, -1, -1]
    square = statistics.square - 2 * statistics.cross[:, -1] * model.offsets + statistics.count * offset_square
    misfit = statistics.count * np.log(2 * np.pi * model.noise) + square / model.noise
    return float(log_z - 0.5 * misfit.sum() - _prior_divergence(model))


def _prior_divergence(model: FactorModel) -> float:
    """Kullback–Leibler divergence of the loadings' and offsets' posterior from their prior."""
    weights = np.concatenate([model.loadings, model.offsets[:, None]], axis=1)
    diagonal = np.einsum("kaa->ka", model.spread) + weights**2
    _, logdet = np.linalg.slogdet(model.spread)
    return float(0.5 * (diagonal @ model.shrinkage - weights.shape[1] - logdet - np.log(model.shrinkage).sum()).sum())
