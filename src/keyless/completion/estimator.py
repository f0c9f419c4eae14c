"""Fill the missing entries of one table: Soft-Impute.

The problem is min ½‖P_Ω(X − M)‖² + λ‖M‖_*; how it is solved stands in `sweeps`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from keyless.arrays import (
    Array,
    RandomState,
    as_matrix,
    check_count,
    check_positive,
    is_sparse,
    random_generator,
    safe_unit,
)
from keyless.completion.choosing import PenaltySearch
from keyless.completion.deviations import fitted_noise, leverages
from keyless.completion.observed import ObservedTable, checked_places, entries, observed_entries, stored
from keyless.completion.sweeps import FactorLayout, Settled, head_start, row_pass, solve
from keyless.completion.units import (
    centre,
    level_offsets,
    penalty_in_unit,
    returned,
    spreads,
    warn_of_empty_columns,
)
from keyless.errors import ConvergenceWarning, InputError

__all__ = ["SoftImpute"]

_OFFSETS = ("none", "columns", "rows", "both")

_PATH = ("penalty", "rank_limit", "rank", "validation_error")
"""What is recorded of each fit while penalty and rank are chosen."""


class SoftImpute(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill missing entries: argmin_M ½‖P_Ω(X − offsets − M)‖² + λ‖M‖_*, Ω being the observed entries.

    A dense table marks missing entries with NaN. In a scipy sparse table, entries that are not stored are missing,
    stored zeros are observed, and fitting never forms the dense table; it reads the entries where they are, float32 or
    float64, and adds them up in float64. `transform` and `fit_transform` return a dense array in both cases, observed
    entries untouched; where that would be too large, call `fit` and read entries with `estimate_at`. New rows are
    filled by their best fit to the columns' factors, with the same penalty; for the rows of the fit this gives what the
    fit gave.

    Choosing `penalty` and `rank` takes dozens of fits. On a million rows, choose them on some of the rows, and raise
    the penalty by the root of the ratio of rows.

    Columns of a dense table are divided by their spread, fitted, and multiplied by it again, so that the unit of a
    column does not matter; factors and offsets are given in the columns' units. `scale` says otherwise.

    Args:
        penalty: λ. None chooses it by the error on held-out observed entries along a decreasing path, with the rank.
        rank: the largest rank allowed. None means no limit where `penalty` is given, else that it is chosen too.
        n_penalties: length of the path, which spans four powers of ten.
        validation_fraction: the part of the observed entries held out while choosing.
        scale: whether columns are brought to the same spread. None: those of a dense table, unless rows have offsets,
            which mean the same in every column only where columns have the same unit. Sparse tables are read where
            they are, and not scaled.
        offsets: "columns" gives every column its own level, fitted on the observed entries and not penalised; "rows"
            does so for rows; "both"; or "none". An offset that no entry determines is the mean of the others.
        max_iter: the most sweeps of the final fit.
        tolerance: settled when a sweep lowers the objective by less than this fraction and no direction is missing.
        random_state: seed of the choice of held-out entries.

    Attributes:
        penalty_: the λ used; for scaled columns, as are `singular_values_`, `objective_` and the errors in `path_`.
        scale_: what each column was divided by; ones where they were not.
        noise_: per column, standard deviation of what the fit leaves of an entry; None for a sparse table.
        rank_: rank of M.
        components_: rank × columns, orthonormal rows.
        singular_values_: those of M.
        row_factors_: rows × rank; M = row_factors_ @ column_factors_.T.
        column_factors_: columns × rank, the components rescaled; by the roots of the singular values, once settled.
        row_offsets_: one per row; zeros without row offsets.
        column_offsets_: one per column; zeros without column offsets.
        objective_: after each sweep; it never rises.
        path_: dict of arrays `penalty`, `rank_limit`, `rank`, `validation_error`, one entry per fit while choosing.
        n_iter_: sweeps of the final fit.
        status_: how the final fit ended, with advice.

    Example:
        >>> import numpy as np
        >>> table = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
        >>> table[0, 0] = np.nan
        >>> filled = SoftImpute(penalty=0.01, offsets="none").fit_transform(table)
        >>> round(float(filled[0, 0]), 1)
        1.0
    """

    def __init__(
        self,
        *,
        penalty: float | None = None,
        rank: int | None = None,
        n_penalties: int = 20,
        validation_fraction: float = 0.1,
        scale: bool | None = None,
        offsets: str = "columns",
        max_iter: int = 200,
        tolerance: float = 1e-7,
        random_state: RandomState = 0,
    ) -> None:
        self.penalty = penalty
        self.rank = rank
        self.n_penalties = n_penalties
        self.validation_fraction = validation_fraction
        self.scale = scale
        self.offsets = offsets
        self.max_iter = max_iter
        self.tolerance = tolerance
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> SoftImpute:  # noqa: N803, ARG002
        """Fit offsets and factors to the observed entries of `X`."""
        given, observed = self._read(X, reset=True)
        if self.offsets not in _OFFSETS:
            raise InputError(f"offsets: must be one of {', '.join(_OFFSETS)}; found {self.offsets!r}.")
        if observed.row_counts.sum() == 0:
            raise InputError("X: must have at least one observed entry; found only missing ones.")
        warn_of_empty_columns(observed.column_counts, getattr(self, "feature_names_in_", None))
        self.scale_ = spreads(given, scale=self.scale, offsets=self.offsets)
        observed = observed.scaled(self.scale_)
        self._unit = safe_unit(observed.largest)
        observed = observed.in_unit(self._unit)
        max_iter = check_count(self.max_iter, name="max_iter")
        tolerance = check_positive(self.tolerance, name="tolerance")
        fraction = check_positive(self.validation_fraction, name="validation_fraction")
        if fraction >= 1:
            raise InputError(f"validation_fraction: must be between 0 and 1; found {fraction}.")
        generator = random_generator(self.random_state)
        layout = FactorLayout(0, self.offsets in ("rows", "both"), self.offsets in ("columns", "both"))
        table, rows, columns = centre(observed, layout)
        shortest = min(table.shape)
        limit = shortest if self.rank is None else check_count(self.rank, name="rank", maximum=shortest)
        right = np.repeat([[1.0, 0.0]], table.shape[1], axis=0)
        right = right[:, not layout.row_offsets : 1 + layout.column_offsets]
        path: list[tuple[float, int, int, float]] = []
        if self.penalty is None:
            noise = 1e-12 * observed.energy**0.5 or 1.0  # a residual below this is rounding
            steps = check_count(self.n_penalties, name="n_penalties")
            search = PenaltySearch(table.split(generator, fraction), layout, right, steps, noise)
            if self.rank is None:
                limit = search.limit(limit)
            search.attempt(limit)
            step = search.best(limit)[1]
            _, layout, right = search.fits[limit][step]
            penalty, path = float(search.penalties[step]), search.path
        else:
            penalty = penalty_in_unit(check_positive(self.penalty, name="penalty"), self._unit)
            layout, right = head_start(table, layout, right, penalty, limit=limit, generator=generator)
        found = solve(table, layout, right, penalty, limit=limit, max_iter=max_iter, tolerance=tolerance)
        if not found.status.converged:
            warnings.warn(f"SoftImpute: {found.status.advice}", ConvergenceWarning, stacklevel=2)
        self._keep(found, observed, (rows, columns), penalty, path, dtype=given.dtype)
        self.noise_ = None if is_sparse(given) else self._noise(observed, ~np.isnan(given))
        return self

    def _keep(
        self,
        found: Settled,
        observed: ObservedTable,
        levels: tuple[Array, Array],
        penalty: float,
        path: list[tuple[float, int, int, float]],
        *,
        dtype: Any,
    ) -> None:
        """Set what was fitted, in the units of the columns and the caller's type.

        The fit is of entries divided by `scale_` and `_unit`, of which at least one is 1. What it gave as such is kept
        too, for filling: `_right`, `_levels`, `_row_level` and `_penalty`.
        """
        rank, unit, root = found.layout.rank, self._unit, self._unit**0.5
        self._levels, self._row_level = level_offsets(found, observed, *levels)
        self._right, self._penalty = found.right[:, :rank], penalty
        self.rank_, self.status_, self.n_iter_ = rank, found.status, len(found.history) - 1
        self.column_offsets_ = returned(returned(self._levels, unit), self.scale_, dtype)
        self.column_factors_ = returned(self._right * root, self.scale_[:, None], dtype)
        self.components_ = (self._right / np.linalg.norm(self._right, axis=0)).T.astype(dtype)
        self.singular_values_ = returned(found.singular_values, unit, dtype)
        self.penalty_ = float(returned(np.asarray(penalty), unit))
        self.objective_ = returned(returned(np.asarray(found.history), unit), unit)
        self.path_ = {name: np.asarray([point[place] for point in path]) for place, name in enumerate(_PATH)}
        for name in ("penalty", "validation_error"):
            self.path_[name] = returned(self.path_[name], unit)
        left, row_offsets = self._solve_rows(observed, unit)
        self.row_factors_, self.row_offsets_ = returned(left, root, dtype), returned(row_offsets, unit, dtype)

    def _columns_of(self, layout: FactorLayout) -> Array:
        """The factors of the columns as fitted, and ones where rows have offsets."""
        right = np.ones((len(self._right), layout.width))
        right[:, : self.rank_] = self._right
        return right

    @property
    def _layout(self) -> FactorLayout:
        """What is solved for in a row."""
        return FactorLayout(self.rank_, row_offsets=self.offsets in ("rows", "both"))

    def _solve_rows(self, observed: ObservedTable, unit: float) -> tuple[Array, Array]:
        """For each row, argmin_z ½‖x_Ω − V_Ω z‖² + λ/2‖z‖², offsets taken off or, for rows, solved for as well.

        The entries are scaled and in `unit`, V and λ in the unit of the fit; z and the row offsets are for entries in
        `unit`.
        """
        layout = self._layout
        table, rows, _ = centre(observed, layout, self._levels * (self._unit / unit))
        left = row_pass(table, layout, self._columns_of(layout), self._penalty, columns=False).left
        if layout.row_offsets:
            level = self._row_level * (self._unit / unit)
            rows = np.where(observed.row_counts > 0, rows + left[:, self.rank_], level)
        return left[:, : self.rank_], rows

    def _in_own_unit(self, observed: ObservedTable) -> tuple[ObservedTable, float]:
        """Scaled entries of new rows, and their unit: their own where larger than that of the fit, else the latter."""
        observed = observed.scaled(self.scale_)
        unit = max(safe_unit(observed.largest), self._unit) if observed.largest else self._unit
        return observed.in_unit(unit), unit

    def _noise(self, observed: ObservedTable, seen: Array) -> Array:
        """The noise of each column, from the scaled entries of the fit in its unit; returned in the columns' units."""
        (rows, columns), unit = observed.shape, self._unit
        left = np.column_stack([self.row_factors_ / unit**0.5, self.row_offsets_ / unit, np.ones(rows)])
        residual = observed.residual(left, np.column_stack([self._right, np.ones(columns), self._levels]))
        residual = residual.toarray() if is_sparse(residual) else residual
        noise = fitted_noise(residual, seen, self._leverages(seen), rank=self.rank_)
        return returned(returned(noise, unit), self.scale_)

    def _leverages(self, seen: Array) -> Iterator[tuple[slice, Array]]:
        layout = self._layout
        penalties = np.where(np.arange(layout.width) < self.rank_, self._penalty, 0.0)
        return leverages(self._columns_of(layout), penalties, seen)

    def transform(self, X: Any) -> Array:  # noqa: N803
        """Return `X` as a dense array with its missing entries filled; observed entries are returned untouched."""
        check_is_fitted(self)
        given, observed = self._read(X, reset=False)
        observed, unit = self._in_own_unit(observed)
        left, rows = self._solve_rows(observed, unit)
        filled = left @ self._right.T
        filled += rows[:, None]
        filled += self._levels * (self._unit / unit)
        filled = returned(returned(filled, unit), self.scale_, given.dtype)
        if is_sparse(given):
            given = given.tocoo()
            seen = ~np.isnan(given.data)
            filled[given.row[seen], given.col[seen]] = given.data[seen]
        else:
            np.copyto(filled, given, where=~np.isnan(given))
        return filled

    def standard_errors(self, X: Any) -> Array:  # noqa: N803
        """Return the standard error of each entry that `transform` fills, in the unit of its column; 0 where observed.

        Args:
            X: a dense table, as for `transform`.
        """
        check_is_fitted(self)
        given, _ = self._read(X, reset=False)
        if self.noise_ is None or is_sparse(given):
            raise InputError("X: must be a dense table for standard errors; found a sparse one. Use X.toarray().")
        seen = ~np.isnan(given)
        errors = np.zeros(given.shape, dtype=given.dtype)
        for part, leverage in self._leverages(seen):
            errors[part] = np.where(seen[part], 0.0, returned(np.sqrt(1 + leverage), self.noise_, given.dtype))
        return errors

    def estimate_at(self, rows: Any, columns: Any, *, X: Any = None) -> Array:  # noqa: N803
        """Return single entries of offsets + M, without forming it.

        Args:
            rows: row numbers.
            columns: column numbers; broadcast against `rows`.
            X: the table whose rows are meant, filled as `transform` fills it; None: the fitted one.
        """
        check_is_fitted(self)
        unit, dtype = self._unit, self.row_factors_.dtype
        if X is None:
            left, row_offsets = self.row_factors_ / unit**0.5, self.row_offsets_ / unit
        else:
            given, observed = self._read(X, reset=False)
            dtype = given.dtype
            observed, unit = self._in_own_unit(observed)
            left, row_offsets = (part.astype(dtype) for part in self._solve_rows(observed, unit))
        rows, columns = checked_places(rows, columns, (len(left), len(self._right)))
        found = entries(left, self._right.astype(dtype), rows.ravel(), columns.ravel()).reshape(rows.shape)
        found = found + row_offsets[rows] + self._levels[columns] * (self._unit / unit)
        return returned(returned(found, unit), self.scale_[columns], dtype)

    def _read(self, X: Any, *, reset: bool) -> tuple[Any, ObservedTable]:  # noqa: N803
        """Check the caller's table; return it and its observed entries."""
        if isinstance(X, np.matrix):
            X = np.asarray(X)  # noqa: N806
        try:
            X = validate_data(  # noqa: N806
                self, X, accept_sparse="csr", dtype=(np.float64, np.float32), ensure_all_finite=False, reset=reset
            )
        except ValueError as error:
            raise InputError(f"X: {error}") from error
        if not is_sparse(X):
            as_matrix(X, name="X", allow_missing=True)
            seen = ~np.isnan(X)
            return X, observed_entries(np.where(seen, X, 0.0).astype(np.float64, copy=False), seen)
        return stored(X, name="X")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
