"""Entries, standard errors and probabilities as short pieces of text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from keyless.errors import printable

__all__ = ["shown", "shown_error", "stated"]

_LONG_NUMBER = re.compile(r"-?\d+\.\d{4,}")

_CERTAIN = 0.999
"""The highest probability that is stated; what is above is told as more than it."""


def stated(probability: float) -> str:
    """Return a probability as text; nothing is stated as certain."""
    return ">0.999" if probability > _CERTAIN else f"{probability:.3f}"


def shown_error(error: float) -> str:
    """Return a standard error with two digits, without an exponent where that is short."""
    rounded = float(f"{error:.2g}")
    return np.format_float_positional(rounded, trim="-") if 1e-5 <= rounded < 1e7 else f"{rounded:g}"


def shown(value: Any, longest: int = 30) -> str:
    """Return an entry as one short piece of text; "missing" where there is none.

    Args:
        value: the entry.
        longest: how many characters of a text are shown.
    """
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "missing"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    text = printable(value)
    if _LONG_NUMBER.fullmatch(text):
        # A cell of a text file, with more digits than a reader needs.
        return f"{float(text):.4g}"
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
