"""Pictures of a result, from plain arrays. Each function draws on `ax` or on a figure of its own, and returns the axes.

Every title says what to conclude. Colours are told apart by readers who do not see all of them (Okabe and Ito), and no
picture needs colour alone. Nothing here touches pyplot: a figure of its own is `ax.figure`, shown by a notebook and
saved by `ax.figure.savefig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

from keyless.arrays import FloatArray, IntArray
from keyless.errors import InputError
from keyless.plot_style import COLOURS, GRID, INK, MUTED, Picture, finish, legend, named_rows, new_axes, short

__all__ = [
    "BANDS",
    "COLOURS",
    "GRID",
    "INK",
    "MUTED",
    "Picture",
    "calibration",
    "certainty",
    "certainty_counts",
    "correlations",
    "coverage",
    "evidence",
    "factors",
    "objective",
    "starts",
]


BANDS = ("at least 99% sure", "90 to 99%", "50 to 90%", "less than 50%", "no partner")
"""How sure a match is said to be; the last is for rows that have none."""

_BAND_COLOURS = (COLOURS[0], COLOURS[5], COLOURS[4], COLOURS[1], GRID)
_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")
_CURVE_POINTS, _STRIP_POINTS = 300, 40
_CHECKS = frozenset({"chance", "calibration", "matched"})
"""Stages that come after the search, whose objective is another."""


def evidence(
    scores: Sequence[float],
    null_scores: Sequence[Sequence[float]],
    needed: Sequence[float],
    *,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Show what the link of each table reaches beside what chance reaches, in nats a row.

    Args:
        scores: per table, information that the matches carry.
        null_scores: per table, the scores reached where there is nothing to find.
        needed: per table, what it takes to single out a row.
        names: of the tables; without, rows have no label.
        ax: where to draw.

    Example:
        >>> evidence([12.1], [[0.2, 0.3]], [6.3]).get_title(loc="left")
        'Chance reaches 0.3 nats a row; the link reaches 12.1'
    """
    count = len(scores)
    ax = new_axes(ax, height=1.5 + 0.42 * count)
    rows = np.arange(count)[::-1]
    for row, score, nulls, need in zip(rows, scores, null_scores, needed, strict=True):
        last = row == 0
        ax.plot([0, score], [row, row], color=COLOURS[0], linewidth=2, alpha=0.35, zorder=1)
        ax.plot(
            [need, need], [row - 0.32, row + 0.32], color=INK, linewidth=1.4, linestyle=(0, (2, 1.4)), zorder=2,
            label="needed to single out a row" if last else None,
        )  # fmt: skip
        ax.plot(
            nulls, np.full(len(nulls), row), "o", color="none", markeredgecolor=COLOURS[1], markersize=7,
            markeredgewidth=1.5, zorder=3, label="chance" if last else None,
        )  # fmt: skip
        ax.plot(score, row, "D", color=COLOURS[0], markersize=8, zorder=4, label="the link" if last else None)
    # Room for a score below zero, and for markers at the edge.
    reach = [0.0, *scores, *needed, *(value for nulls in null_scores for value in nulls)]
    margin = 0.05 * (max(reach) - min(reach) or 1.0)
    ax.set_xlim(min(reach) - margin, max(reach) + margin)
    ax.set_ylim(-0.6, count - 0.4)
    named_rows(ax, rows, names)
    finish(ax, title=_evidence_title(scores, null_scores), xlabel="nats a row", grid="x")
    return legend(ax, below=True)


def _evidence_title(scores: Sequence[float], null_scores: Sequence[Sequence[float]]) -> str:
    reached = f"{min(scores):.1f}" + (f" to {max(scores):.1f}" if f"{max(scores):.1f}" != f"{min(scores):.1f}" else "")
    noun = "the link reaches" if len(scores) == 1 else "the links reach"
    chance = [value for nulls in null_scores for value in nulls]
    if not chance:
        return f"{noun[0].upper()}{noun[1:]} {reached} nats a row; chance was not measured"
    return f"Chance reaches {max(chance):.1f} nats a row; {noun} {reached}"


def certainty_counts(permutation: ArrayLike, probability: ArrayLike) -> tuple[int, ...]:
    """Return how many reference rows fall in each of `BANDS`.

    Args:
        permutation: the row matched to each reference row, −1 for none.
        probability: how likely that is right.
    """
    matched = np.asarray(permutation) >= 0
    kept = np.asarray(probability, dtype=np.float64)[matched]
    edges = [kept >= 0.99, (kept >= 0.9) & (kept < 0.99), (kept >= 0.5) & (kept < 0.9), ~(kept >= 0.5)]
    return (*(int(inside.sum()) for inside in edges), int((~matched).sum()))


def certainty(
    permutations: Sequence[ArrayLike],
    probabilities: Sequence[ArrayLike],
    *,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Show how many rows are matched with which certainty.

    Args:
        permutations: per table, the row matched to each reference row, −1 for none.
        probabilities: per table, how likely each is right.
        names: of the tables.
        ax: where to draw.

    Example:
        >>> certainty([[1, 0, -1]], [[0.999, 0.95, 0.8]]).get_title(loc="left")
        '2 of 3 rows are matched at 90% or surer'
    """
    counts = np.array([certainty_counts(p, q) for p, q in zip(permutations, probabilities, strict=True)])
    ax = new_axes(ax, height=1.55 + 0.42 * len(counts))
    rows = np.arange(len(counts))[::-1]
    left = np.zeros(len(counts))
    for band, (label, colour) in enumerate(zip(BANDS, _BAND_COLOURS, strict=True)):
        ax.barh(rows, counts[:, band], left=left, height=0.62, color=colour, edgecolor="#ffffff", linewidth=0.8,
                label=label)  # fmt: skip
        left += counts[:, band]
    total, sure = int(counts.sum()), int(counts[:, :2].sum())
    named_rows(ax, rows, names)
    ax.set_xlim(0, max(1.0, float(left.max(initial=0.0))))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    finish(ax, title=f"{sure:,} of {total:,} rows are matched at 90% or surer", xlabel="reference rows", grid="x")
    return legend(ax, below=True)


def coverage(probabilities: Sequence[ArrayLike], *, names: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Show how many matches should be right if only the surest ones are kept.

    What is drawn is the mean stated probability of the kept matches: what to expect, not what was measured.

    Args:
        probabilities: per table, the stated probability of each match.
        names: of the tables.
        ax: where to draw.

    Example:
        >>> coverage([[0.99, 0.97, 0.2]]).get_title(loc="left")
        'Keep the 2 surest of 3 matches, and 98% of them should be right'
    """
    ax = new_axes(ax)
    lowest = 1.0
    stated = [np.asarray(p, dtype=np.float64) for p in probabilities]
    falling = [np.sort(p[~np.isnan(p)])[::-1] for p in stated]
    for number, ordered in enumerate(falling):
        if not ordered.size:
            continue
        expected = _expected(ordered)
        shown = _spaced(ordered.size, _CURVE_POINTS)
        ax.plot(
            shown + 1, expected[shown], color=COLOURS[number % 6], linestyle=_LINES[number % 4], linewidth=2,
            label=None if names is None else short(names[number]),
        )  # fmt: skip
        lowest = min(lowest, float(expected[-1]))
    ax.set_ylim(max(0.0, lowest - 0.08), 1.01)
    ax.set_xlim(left=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    finish(
        ax,
        title=_coverage_title(np.sort(np.concatenate(falling))[::-1]),
        xlabel="matches kept, surest first",
        ylabel="expected right",
        grid="both",
    )
    return legend(ax) if names is not None and len(probabilities) > 1 else ax


def _coverage_title(ordered: FloatArray) -> str:
    if not ordered.size:
        return "Nothing is matched"
    expected = _expected(ordered)
    if expected[-1] >= 0.95:
        return f"Keep all {ordered.size:,} matches, and {_percent(expected[-1])} of them should be right"
    good = int((expected >= 0.95).sum())
    if not good:
        return f"Even the surest match is only {_percent(expected[0])} likely to be right"
    return (
        f"Keep the {good:,} surest of {ordered.size:,} matches, and {_percent(expected[good - 1])} of them should be "
        "right"
    )


def calibration(probability: ArrayLike, right: ArrayLike, *, bins: int = 10, ax: Axes | None = None) -> Axes:
    """Show stated probabilities against how often the matches are right, where the answer is known.

    Args:
        probability: stated probability of each match.
        right: whether each is right.
        bins: how many groups of about equal size; bars are 95% intervals (Wilson).
        ax: where to draw.

    Example:
        >>> calibration([0.9] * 10, [True] * 9 + [False]).get_title(loc="left")
        'Stated 90.0% right on average; 90.0% are'
    """
    stated, outcome = np.asarray(probability, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if stated.shape != outcome.shape or stated.ndim != 1 or not stated.size:
        raise InputError(
            f"right: must have one True or False for each probability, and there must be at least one; found shapes "
            f"{outcome.shape} and {stated.shape}."
        )
    ax = new_axes(ax, height=3.2)
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=1.2, linestyle="--", label="as stated")
    groups = np.array_split(np.argsort(stated, kind="stable"), min(bins, stated.size))
    means, shares = (np.array([values[group].mean() for group in groups]) for values in (stated, outcome))
    sizes = np.array([len(group) for group in groups])
    centre = (shares + 1.92 / sizes) / (1 + 3.84 / sizes)
    half = 1.96 * np.sqrt(shares * (1 - shares) / sizes + 0.96 / sizes**2) / (1 + 3.84 / sizes)
    bars = np.maximum(0, np.stack([shares - centre + half, centre + half - shares]))
    ax.errorbar(
        means, shares, yerr=bars, fmt="o", color=COLOURS[0], ecolor=COLOURS[0], elinewidth=1.2, capsize=3,
        markersize=6, label="matches in groups, 95% interval",
    )  # fmt: skip
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    title = f"Stated {100 * stated.mean():.1f}% right on average; {100 * outcome.mean():.1f}% are"
    finish(ax, title=title, xlabel="stated probability", ylabel="share right", grid="both")
    return legend(ax)


def factors(
    reference: ArrayLike,
    table: ArrayLike,
    *,
    names: Sequence[str] = ("reference", "table"),
    shown: int = 150,
    ax: Axes | None = None,
) -> Axes:
    """Show matched rows of two tables on the two factors that both tables see best, one line between partners.

    Args:
        reference: positions, pairs × 2, of the reference's rows as their own table sees them.
        table: positions of their partners, as the other table sees them.
        names: of the two.
        shown: draw at most this many pairs, evenly spaced in the order given; the title counts all.
        ax: where to draw.

    Example:
        >>> ours = np.array([[0.0, 1.0], [2.0, 0.0], [4.0, 3.0]])
        >>> factors(ours, ours + 0.1).get_title(loc="left")
        'Partners lie 0.04 times as far apart as strangers on the shared factors'
    """
    ours, theirs = (np.asarray(points, dtype=np.float64).reshape(-1, 2) for points in (reference, table))
    ax = new_axes(ax, height=3.3)
    drawn = _spaced(len(ours), shown)
    ends = np.full((3 * len(drawn), 2), np.nan)
    ends[0::3], ends[1::3] = ours[drawn], theirs[drawn]
    ax.plot(ends[:, 0], ends[:, 1], color=MUTED, linewidth=0.7, alpha=0.6, zorder=1)
    for points, colour, marker, name in zip((ours, theirs), COLOURS, ("o", "^"), names, strict=False):
        ax.plot(
            points[drawn, 0], points[drawn, 1], marker, color=colour, markersize=4.6, alpha=0.75, markeredgewidth=0,
            label=short(name), zorder=2,
        )  # fmt: skip
    xlabel = "first shared factor"
    if len(drawn) < len(ours):
        xlabel += f" ({len(drawn)} of {len(ours):,} pairs drawn)"
    finish(ax, title=_factors_title(ours, theirs), xlabel=xlabel, ylabel="second", grid="both")
    return legend(ax, below=True)


def _factors_title(ours: FloatArray, theirs: FloatArray) -> str:
    if len(ours) < 2:
        return "Too few pairs to compare partners with strangers"
    apart = np.linalg.norm(ours - theirs, axis=1).mean()
    # Every other row once: the partners of all rows, moved on by some places.
    shifts = sorted({1 + (len(ours) - 1) * k // 8 for k in range(8)} - {len(ours)})
    strange = np.mean([np.linalg.norm(ours - np.roll(theirs, shift, axis=0), axis=1).mean() for shift in shifts])
    if not strange:
        return "All rows look alike on the shared factors"
    return f"Partners lie {apart / strange:.2f} times as far apart as strangers on the shared factors"


def correlations(values: Sequence[ArrayLike], *, names: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Show the canonical correlations between matched rows.

    Args:
        values: per table, its canonical correlations with the rest, largest first.
        names: of the tables.
        ax: where to draw.

    Example:
        >>> correlations([[0.98, 0.9, 0.2]]).get_title(loc="left")
        '2 of 3 factors agree closely (above 0.8) between matched rows'
    """
    ax = new_axes(ax)
    arrays = [np.asarray(one, dtype=np.float64) for one in values]
    for number, one in enumerate(arrays):
        colour, place = COLOURS[number % 6], np.arange(1, one.size + 1) + 0.12 * (number - (len(arrays) - 1) / 2)
        ax.vlines(place, 0, one, color=colour, linewidth=1.6, alpha=0.5)
        ax.plot(
            place, one, _MARKERS[number % 6], color=colour, markersize=5.5,
            label=None if names is None else short(names[number]),
        )  # fmt: skip
    count = sum(one.size for one in arrays)
    close = sum(int((one > 0.8).sum()) for one in arrays)
    title = f"{close} of {count} factors agree closely (above 0.8) between matched rows" if count else "No factors"
    ax.set_ylim(0, 1.03)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    finish(ax, title=title, xlabel="factor, strongest first", ylabel="canonical correlation", grid="y")
    return legend(ax) if names is not None and len(arrays) > 1 else ax


def objective(history: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Show the objective over a run, stage by stage.

    Args:
        history: records with `stage`, `objective` and, unless steps are to be counted instead, `seconds`, in order.
        ax: where to draw.

    Example:
        >>> run = [{"stage": "search", "seconds": s, "objective": v} for s, v in ((0.5, 1.0), (2.0, 3.5))]
        >>> objective(run).get_title(loc="left")
        'The objective went from 1.0 to 3.5 in 2.0 s'
    """
    ax = new_axes(ax)
    timed = all("seconds" in record for record in history)
    counted = ({"seconds": number} | dict(record) for number, record in enumerate(history, start=1))
    kept = [record for record in counted if np.isfinite(record["objective"])]
    stages = list(dict.fromkeys(record["stage"] for record in kept))
    for number, stage in enumerate(stages):
        of_stage = [record for record in kept if record["stage"] == stage]
        of_stage = [of_stage[k] for k in _spaced(len(of_stage), _CURVE_POINTS)]
        ax.plot(
            [record["seconds"] for record in of_stage], [record["objective"] for record in of_stage],
            color=COLOURS[number % 6], marker=_MARKERS[number % 6], markersize=4, linewidth=1.3, label=short(stage),
        )  # fmt: skip
    title = _objective_title(kept, _duration if timed else _steps)
    finish(ax, title=title, xlabel="seconds" if timed else "steps", ylabel="objective", grid="both")
    return legend(ax, below=True) if kept else ax


def _objective_title(records: Sequence[Mapping[str, Any]], span: Callable[[float], str]) -> str:
    if not records:
        return "No steps were recorded"
    found = [record for record in records if record["stage"] not in _CHECKS] or records
    first, last, end = found[0], found[-1], records[-1]
    title = f"The objective went from {first['objective']:.1f} to {last['objective']:.1f} in {span(last['seconds'])}"
    return title if last is end else f"{title}; with checks the run took {span(end['seconds'])}"


def starts(names: Sequence[str], scores: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Show how far the starts of a search got, one row per kind of start.

    Args:
        names: kind of each start.
        scores: what each reached.
        ax: where to draw.

    Example:
        >>> starts(["3 factors", "3 factors", "4 factors"], [3.0, 2.99, 1.0]).get_title(loc="left")
        '2 of 3 starts end within 5% of the best'
    """
    reached = np.asarray(scores, dtype=np.float64)
    kinds = list(dict.fromkeys(names))
    if len(kinds) > 8:
        frequent = sorted(kinds, key=lambda kind: -max(reached[[n == kind for n in names]]))[:7]
        names = [name if name in frequent else "others" for name in names]
        kinds = [*frequent, "others"]
    ax = new_axes(ax, height=max(1.9, 1.25 + 0.28 * len(kinds)))
    rows, drawn = np.arange(len(kinds))[::-1], 0
    for row, kind in zip(rows, kinds, strict=True):
        inside = np.sort(reached[[name == kind for name in names]])
        inside = inside[_spaced(inside.size, _STRIP_POINTS)]
        drawn += inside.size
        # Spread equal scores over the height of the row, the same way every time.
        offset = 0.5 * ((np.arange(inside.size) * 0.618) % 1 - 0.5) if inside.size > 1 else np.zeros(inside.size)
        ax.plot(inside, row + offset, "o", color=COLOURS[0], alpha=0.6, markersize=5, markeredgewidth=0)
    if reached.size:
        ax.axvline(float(reached.max()), color=INK, linewidth=1, linestyle=(0, (2, 1.4)))
    ax.set_ylim(-0.6, max(1, len(kinds)) - 0.4)
    named_rows(ax, rows, kinds)
    xlabel = "nats a row that a start led to"
    if drawn < reached.size:
        xlabel += f" ({drawn} of {reached.size:,} drawn)"
    finish(ax, title=_starts_title(reached), xlabel=xlabel, grid="x")
    return ax


def _starts_title(reached: FloatArray) -> str:
    if not reached.size:
        return "No starts were recorded"
    best = float(reached.max())
    close = int((reached >= best - 0.05 * abs(best)).sum())
    if reached.size == 1:
        return f"One start sufficed; it reached {best:.1f}"
    return f"{close} of {reached.size} starts end{'s' if close == 1 else ''} within 5% of the best"


def _spaced(count: int, most: int) -> IntArray:
    """Return at most so many of the numbers from 0 to `count` - 1, evenly spaced."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(np.int64))


def _expected(probability: FloatArray) -> FloatArray:
    """Return which share of the first k matches should be right, for each k."""
    return np.asarray(np.cumsum(probability) / np.arange(1, probability.size + 1))


def _percent(share: float) -> str:
    """Return a share in per cent; only all of it is 100%."""
    percent = 100 * share
    return f"{percent:.0f}%" if percent < 99 or percent == 100 else f"{min(percent, 99.9):.1f}%"


def _steps(count: float) -> str:
    return f"{count:.0f} {'step' if count == 1 else 'steps'}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
