"""Plots as SVG inside the page: its letters, its colours (light, dark, printed), and a text for who cannot see it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes

from keyless.errors import InputError
from keyless.plots import COLOURS, GRID, INK, MUTED
from keyless.report.markup import PageTable

__all__ = ["THEME", "Figure", "figure", "svg"]

THEME: Mapping[str, str] = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    "#ffffff": "paper",
    **{colour: f"c{number}" for number, colour in enumerate(COLOURS)},
}
"""Colours of the plots and the CSS variables that stand for them."""

_FIXED: dict[Any, Any] = {"svg.hashsalt": "keyless", "svg.fonttype": "none"}


@dataclass(frozen=True)
class Figure:
    """A plot of the page.

    Attributes:
        title: what it shows; the caption.
        note: how to read it.
        drawing: the SVG element.
        grid: the numbers behind it, where they are shown.
    """

    title: str
    note: str
    drawing: Markup
    grid: PageTable | None = None


def svg(ax: Axes, *, number: int, alt: str) -> Markup:
    """Return the figure of `ax` as an SVG element for inside HTML, the same every time.

    Args:
        ax: what was drawn.
        number: of the figure on its page, so that no two elements share an id.
        alt: what the picture shows.
    """
    drawing, buffer = ax.get_figure(root=True), io.StringIO()
    if drawing is None:
        raise InputError("ax: must be part of a figure; it was removed from it.")
    with rc_context(_FIXED), warnings.catch_warnings():
        # The reader's own fonts draw the letters; it does not matter which of them matplotlib's font has.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing")
        drawing.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    drawn = buffer.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>\s*", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    # Fonts of the page; sizes as drawn. Older versions of matplotlib write both at once.
    drawn = re.sub(r"font: (?:\w+ )*([\d.]+px) [^;\"]*", r"font-size: \1", drawn)
    drawn = re.sub(r"font-family: [^;\"]*(?:; )?", "", drawn)
    for colour, name in THEME.items():
        drawn = re.sub(rf"((?:fill|stroke): ){colour}\b", rf"\1var(--{name})", drawn)
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", drawn))
    drawn = re.sub(r' id="([^"]*)"', lambda found: f' id="f{number}-{found[1]}"' if found[1] in used else "", drawn)
    drawn = re.sub(r"(url\(|href=\")#", rf"\1#f{number}-", drawn)
    _, box, rest = re.split(r'(viewBox="[^"]*")[^>]*>', drawn, maxsplit=1)
    # Matplotlib escapes the names in its own text.
    return Markup('<svg {box} role="img" aria-label="{alt}">{rest}').format(
        box=Markup(box), alt=alt, rest=Markup(rest.strip())
    )


def figure(ax: Axes, *, number: int, kind: str, note: str = "", grid: PageTable | None = None) -> Figure:
    """Return a plot as a figure whose caption is the plot's title.

    Args:
        ax: what was drawn; its title leaves the drawing.
        number: of the figure on its page.
        kind: what kind of picture it is, for the alternative text.
        note: how to read it.
        grid: the numbers behind it.
    """
    title = ax.get_title(loc="left")
    ax.set_title("", loc="left")
    axes = " and ".join(named for named in (ax.get_xlabel(), ax.get_ylabel()) if named)
    alt = f"{kind}{' of ' + axes if axes else ''}. {title}."
    return Figure(f"{title}.", note, svg(ax, number=number, alt=alt), grid)
