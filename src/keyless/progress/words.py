"""The stages of a search in words, as every view of it shows them."""

from __future__ import annotations

__all__ = ["SCORED", "UNSCORED", "in_words"]

_STAGES = {
    "reading": "Reading the tables",
    "tables": "Learning from each table",
    "search": "Trying ways to fit the tables",
    "map": "Trying ways to fit a few rows",
    "joins": "Joining the tables",
    "refine": "Improving the best way",
    "candidates": "Listing likely partners",
    "chance": "Measuring what chance reaches",
    "calibration": "Measuring how sure matches are",
    "matched": "Matching the rows",
    "last steps": "Last steps",
}
"""Stages as the library calls them, in at most 30 characters: the view of a terminal has 80 in a line."""

SCORED = ("search", "refine", "calibration", "matched")
"""Stages of a search whose objective says how well the best way so far fits, in nats a row."""

UNSCORED = frozenset(_STAGES) - set(SCORED)
"""Stages of a search whose objective is something else, which is not shown."""


def in_words(stage: str) -> str:
    """Return what a stage does; a stage of another kind of work keeps its name.

    Args:
        stage: its name, as the callback is told it.

    Example:
        >>> in_words("chance"), in_words("factor 3")
        ('Measuring what chance reaches', 'factor 3')
    """
    return _STAGES.get(stage, stage)
