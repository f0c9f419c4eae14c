"""Tables on comparable scales, and the latent factors behind them."""

from keyless.model.factor_model import (
    ColumnStatistics,
    FactorModel,
    Information,
    column_statistics,
    drop_unsupported,
    em_step,
    fit,
    fit_at_rank,
    fit_table,
    information,
    initial_model,
    moments,
    padded,
    posterior,
    update_columns,
)
from keyless.model.factors import Factors, principal_factors

__all__ = [
    "ColumnStatistics",
    "FactorModel",
    "Factors",
    "Information",
    "column_statistics",
    "drop_unsupported",
    "em_step",
    "fit",
    "fit_at_rank",
    "fit_table",
    "information",
    "initial_model",
    "moments",
    "padded",
    "posterior",
    "principal_factors",
    "update_columns",
]
