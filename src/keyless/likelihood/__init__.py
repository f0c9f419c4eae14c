"""How likely rows of different tables are the same entity."""

from keyless.likelihood.pairs import (
    FORBIDDEN,
    approximate_log_ratio,
    best_candidates,
    couple,
    couple_or_nobody,
    exact_log_ratio,
    expected_log_ratio,
    forbid,
    log_z,
    pair_log_ratio,
)
from keyless.likelihood.shared import shared_log_ratio

__all__ = [
    "FORBIDDEN",
    "approximate_log_ratio",
    "best_candidates",
    "couple",
    "couple_or_nobody",
    "exact_log_ratio",
    "expected_log_ratio",
    "forbid",
    "log_z",
    "pair_log_ratio",
    "shared_log_ratio",
]
