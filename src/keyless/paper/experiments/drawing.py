"""The look of the experiments' figures: that of `keyless.plots`, several panels beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from keyless.plots import COLOURS, GRID, INK, MUTED

__all__ = ["LINES", "MARKERS", "bars", "finish", "legend", "panels", "ranged"]

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))


def panels(count: int, *, columns: int | None = None, width: float = 4.4, height: float = 3.2) -> list[Axes]:
    """Return the axes of a new figure, in reading order.

    Args:
        count: how many.
        columns: how many beside each other; all unless given.
        width: of each, in inches.
        height: of each.
    """
    across = count if columns is None else columns
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    return [figure.add_subplot(down, across, place + 1) for place in range(count)]


def finish(ax: Axes, *, title: str, xlabel: str, ylabel: str) -> None:
    """Give a panel its words and its grid.

    Args:
        ax: the panel.
        title: what to conclude.
        xlabel: below.
        ylabel: beside.
    """
    ax.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold", wrap=True)
    ax.set_xlabel(xlabel, color=INK)
    ax.set_ylabel(ylabel, color=INK)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
    ax.tick_params(labelsize=9, color=MUTED, labelcolor=INK)
    ax.set_axisbelow(True)
    ax.grid(True, color=GRID, linewidth=0.8)


def legend(ax: Axes, *, columns: int = 4) -> Figure:
    """Explain the marks of one panel below all, and return the figure.

    Args:
        ax: a panel whose marks stand for those of all.
        columns: entries beside each other.
    """
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("the panel has no figure")
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK, fontsize=9.5
    )
    return figure


def ranged(ax: Axes, places: Sequence[float], values: Sequence[Sequence[float]], *, number: int, label: str) -> None:
    """Draw the mean of several numbers at each place, with a band from the smallest to the largest.

    Args:
        ax: where.
        places: horizontally.
        values: the numbers at each place.
        number: which colour, marker and line.
        label: for the legend.
    """
    means, lows, highs = (np.array([f(found) for found in values]) for f in (np.mean, np.min, np.max))
    style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)]}
    ax.fill_between(places, lows, highs, alpha=0.18, linewidth=0, **style)
    ax.plot(
        places, means, marker=MARKERS[number % 7], linestyle=LINES[number % 7], markersize=5, linewidth=1.6,
        label=label, **style,
    )  # fmt: skip


def bars(ax: Axes, names: Sequence[str], series: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Draw groups of horizontal bars with their values beside them.

    Args:
        ax: where.
        names: of the groups, from the top.
        series: label of a bar in each group, and its values.
    """
    rows = np.arange(len(names))[::-1].astype(float)
    height = 0.8 / len(series)
    for number, (label, values) in enumerate(series):
        places = rows + 0.4 - height * (number + 0.5)
        shown = np.nan_to_num(np.asarray(values, dtype=np.float64))
        ax.barh(places, shown, height=height * 0.9, color=COLOURS[number], label=label)
        for place, value, missing in zip(places, shown, np.isnan(np.asarray(values, dtype=np.float64)), strict=True):
            ax.text(value, place, " –" if missing else f" {value:.3g}", va="center", fontsize=8, color=INK)
    ax.set_yticks(rows, names)
