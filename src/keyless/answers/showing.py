"""Entries, standard errors and probabilities as short pieces of text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from keyless.errors import printable

__all__ = ["shown", "shown_guess", "stated"]

_LONG_NUMBER = re.compile(r"-?\d+([.,])\d{4,}")

_LONGEST = 30
"""Most characters of a text that are shown."""

_CERTAIN = 0.999
"""The highest probability that is stated as a number; a higher one is shown as ">0.999"."""


def stated(probability: float) -> str:
    """Return a probability as text; nothing is stated as certain."""
    return ">0.999" if probability > _CERTAIN else f"{probability:.3f}"


def shown_guess(value: Any, error: float, *, comma: bool, longest: int = _LONGEST) -> str:
    """Return a predicted entry and, where it is known, its standard error.

    The error has two digits, and no exponent where it is short without one.

    Args:
        value: the entry.
        error: its standard error; NaN where there is none.
        comma: whether the table writes numbers of this column with a decimal comma.
        longest: how many characters of a text are shown.
    """
    guess = shown(value, longest)
    if not np.isfinite(error):
        return guess
    rounded = float(f"{error:.2g}")
    written = np.format_float_positional(rounded, trim="-") if 1e-5 <= rounded < 1e7 else f"{rounded:g}"
    return f"{guess} ± {written.replace('.', ',') if comma else written}"


def shown(value: Any, longest: int = _LONGEST) -> str:
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
    if long := _LONG_NUMBER.fullmatch(text):
        # A cell of a text file, with more digits than a reader needs.
        return f"{float(text.replace(',', '.')):.4g}".replace(".", long[1])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
