"""The look of all plots: colours, letters, axes, titles and legends."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

__all__ = ["COLOURS", "GRID", "INK", "MUTED", "Picture", "finish", "legend", "named_rows", "new_axes", "short"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK, MUTED, GRID = "#24292f", "#6b7480", "#dfe3e8"

_SIZE, _SMALL = 10.5, 9.5
"""Points of letters: those of labels, and those of ticks and legends."""

_LONGEST_NAME = 22
_NOTEBOOK_DPI = 110
"""Dots per inch of a picture in a notebook: 4.5 inches are about 500 dots wide."""

_OWN = "keyless"
"""Marks figures made here, whose layout makes room for a legend outside the axes."""


class Picture(Axes):
    """Axes that a notebook shows as a picture when they are the last expression of a cell."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        figure = self.get_figure(root=True)
        assert figure is not None
        # On white: a figure without a background is unreadable in a dark notebook.
        figure.savefig(file, format="png", dpi=_NOTEBOOK_DPI, facecolor="white")
        return file.getvalue()


def new_axes(ax: Axes | None, *, height: float = 2.7) -> Axes:
    """Return the axes given, or those of a new figure, 4.5 inches wide."""
    if ax is not None:
        return ax
    figure = Figure(figsize=(4.5, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.set_gid(_OWN)
    figure.patch.set_alpha(0)
    return figure.add_subplot(axes_class=Picture)


def finish(ax: Axes, *, title: str, xlabel: str, ylabel: str = "", grid: str) -> None:
    """Give a plot its title, labels and grid: that of "x", of "y", or of "both"."""
    ax.set_title(title, loc="left", fontsize=_SIZE + 1, color=INK, fontweight="bold", parse_math=False, wrap=True)
    ax.set_xlabel(xlabel, fontsize=_SIZE, color=INK)
    ax.set_ylabel(ylabel, fontsize=_SIZE, color=INK)
    ax.patch.set_alpha(0)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
    ax.tick_params(labelsize=_SMALL, color=MUTED, labelcolor=INK)
    ax.set_axisbelow(True)
    if grid in ("x", "both"):
        ax.xaxis.grid(True, color=GRID, linewidth=0.8)
    if grid in ("y", "both"):
        ax.yaxis.grid(True, color=GRID, linewidth=0.8)


def legend(ax: Axes, *, below: bool = False) -> Axes:
    """Explain the marks: beside the curves, or below where they would hide something."""
    figure = ax.get_figure(root=True)
    style: dict[str, Any] = {"fontsize": _SMALL, "frameon": False, "labelcolor": INK, "handletextpad": 0.5}
    handles, labels = ax.get_legend_handles_labels()
    if below and figure is not None and figure.get_gid() == _OWN:
        made = figure.legend(handles, labels, loc="outside lower center", ncols=3 if len(labels) != 4 else 2, **style)
    else:
        made = ax.legend(handles, labels, loc="best", **style)
    for text in made.get_texts():
        text.set_parse_math(False)
    return ax


def named_rows(ax: Axes, rows: NDArray[Any], names: Sequence[str] | None) -> None:
    """Label the rows; a name is shown as it is, dollar signs too."""
    ax.set_yticks(rows if names is not None else [])
    if names is not None:
        for label in ax.set_yticklabels([short(name) for name in names]):
            label.set_parse_math(False)


def short(name: object) -> str:
    """Return a name as one short line."""
    text = "".join(letter for letter in " ".join(str(name).split()) if letter.isprintable())
    # Matplotlib takes labels that begin with an underscore for private.
    text = f"\u200b{text}" if text.startswith("_") else text
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
