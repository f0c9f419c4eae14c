"""Make the pictures of docs/how-it-works.md and docs/limits.md, and print the figures their text states.

    python docs/make_pictures.py                  # all of them: a few minutes
    python docs/make_pictures.py problem frames   # some of them: seconds, but for sweep and remedies

The tables are simulated from the seeds below, so the right answer is known. keyless never sees it: it orders rows in
pictures, counts what is right, and stands for what a caller would know. The same versions of the libraries give the
same bytes. What is printed goes to docs/pictures/figures.json, too, and a test compares the page with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from matplotlib.ticker import PercentFormatter
from scipy import sparse
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import keyless
from keyless import plots
from keyless.assignment import assign
from keyless.datasets import ShuffledTables, make_shuffled_tables
from keyless.engine import Side, Task, find_pair
from keyless.engine.crossing import crossings
from keyless.maps import CanonicalModel, cross_fit
from keyless.maps.folds import Folds
from keyless.maps.rotations import SignatureKind, anneal, coupled_by_cost, procrustes, signature_cost, signatures
from keyless.metrics import hamming
from keyless.model.factor_model import FactorModel, fit_table, information, posterior
from keyless.model.factors import Factors, principal_factors
from keyless.model.scales import scale_table
from keyless.pairs.likelihood import couple, expected_log_ratio
from keyless.plots import COLOURS, GRID, INK, MUTED

__all__ = ["FOLDER", "PICTURES", "draw"]

FOLDER = Path(__file__).with_name("pictures")
FIGURES = FOLDER / "figures.json"
SEED = 1
"""Of the tables that most pictures show, and of keyless itself."""
KINDS: tuple[SignatureKind, ...] = ("product", "distance", "cosine")
"""Kinds of signatures."""
SEEDS = (0, 1, 2)
"""Of the tables of the sweep and of the remedies."""
NOISES = (0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.25, 1.6, 2.2)
"""Noise levels of the sweep; without noise a column has standard deviation 2."""
MUCH = 0.85
"""Noise of the tables that are linked in part."""
HARD = 1.6
"""Noise of the tables that are too noisy as they are, for the remedies."""
RANK = 4
BLUE, ORANGE, GREEN = COLOURS[:3]
Drawn = tuple[Figure, dict[str, str]]


# --- the tables ------------------------------------------------------------------------------------------------------


@cache
def example(noise: float = 0.5, seed: int = SEED, columns: tuple[int, int] = (20, 15)) -> ShuffledTables:
    """Return the page's tables: a clinic's and a lab's, 100 patients, 4 hidden factors."""
    return make_shuffled_tables(100, columns, rank=RANK, noise=noise, random_state=seed, names=("clinic", "lab"))


def scored(table: Any) -> tuple[Any, Any]:
    """Return a table's standard scores, as every part of keyless takes them, and what was observed."""
    mask = ~np.isnan(table)
    return scale_table(np.where(mask, table, 0.0), mask)[0], mask


@cache
def factors(noise: float = 0.5, seed: int = SEED) -> tuple[Factors, Factors]:
    """Return the factors of the clinic's and the lab's table, each found from its table alone."""
    clinic, lab = (principal_factors(scored(table)[0]) for table in example(noise, seed).tables.values())
    return clinic, lab


def white(noise: float = 0.5, seed: int = SEED) -> tuple[Any, Any, Any]:
    """Return both tables' strongest factors as points, and the coupling of rows with alike signatures."""
    clinic, lab = factors(noise, seed)
    points = clinic.scores[:, :RANK], lab.scores[:, :RANK]
    return *points, coupled_by_cost(all_signatures(*points))


def all_signatures(clinic: Any, lab: Any) -> Any:
    """Return the costs of all kinds of signatures together, as keyless adds them up for its first start."""
    costs = [signature_cost(clinic, lab, kind=kind) for kind in KINDS]
    return sum((cost - cost.mean()) / cost.std() for cost in costs)


def in_true_order(matrix: Any) -> Any:
    """Return reference rows by their first factor, and the lab's rows in the order of their partners."""
    rows = factors()[0].row_order
    return matrix[np.ix_(rows, example().truth["lab"][rows])]


def right(permutation: Any, truth: Any) -> int:
    """Count the rows that are right."""
    return len(truth) - hamming(permutation, truth)


# --- the pictures ----------------------------------------------------------------------------------------------------


def problem(shown: int = 14, columns: int = 8) -> Drawn:
    """Two tables, one shuffled; side by side they are of low rank in the right order only."""
    tables, truth = example().tables, example().truth["lab"]
    clinic, lab = (scored(table)[0] for table in tables.values())
    orders = {"right order": truth, "as given": np.arange(len(truth))}
    found = {name: np.hstack([clinic, lab[order]]) for name, order in orders.items()}
    few, many = (fit_table(values, np.ones(values.shape, dtype=bool)).rank for values in found.values())

    figure = _figure(f"In the right order the two tables share {few} strong factors, in a wrong order {many}", 8.6, 3.5)
    left, between, middle, wide = figure.subplots(1, 4, width_ratios=[1.0, 0.45, 1.0, 2.2])
    between.set_axis_off()
    partners = np.argsort(np.argsort(truth[:shown]))
    for ax, values, name in (
        (left, clinic[:shown, :columns], "clinic"),
        (middle, lab[np.sort(truth[:shown]), :columns], "lab, shuffled"),
    ):
        ax.pcolormesh(values[::-1], cmap="PuOr_r", vmin=-2.5, vmax=2.5, edgecolors="#ffffff", linewidth=0.4)
        _finish(ax, name, f"{columns} of its columns")
        ax.set_xticks([])
        ax.set_yticks([])
    left.set_ylabel(f"{shown} of {len(truth)} patients", fontsize=9, color=INK)
    for row, partner in enumerate(partners):
        marked = row % 4 == 0
        line = ConnectionPatch(
            (columns, shown - row - 0.5), (0, shown - partner - 0.5), "data", "data", axesA=left, axesB=middle,
            color=INK if marked else MUTED, linewidth=1.6 if marked else 0.6, alpha=1.0 if marked else 0.6,
        )  # fmt: skip
        line.set_in_layout(False)
        figure.add_artist(line)
    for (name, values), marker, colour in zip(found.items(), "os", (BLUE, ORANGE), strict=True):
        strengths = np.linalg.svd(values, compute_uv=False)[:12] / np.sqrt(len(truth))
        wide.plot(np.arange(1, 13), strengths, f"-{marker}", color=colour, label=name, markersize=6, linewidth=1.2)
    wide.set_ylim(bottom=0)
    _finish(wide, "singular values of both tables side by side", "largest first", "size", grid="y")
    _legend(wide)
    return figure, {"strong factors": f"{few} strong factors", "wrong order": f"shows {many}"}


def signature(close: int = 10) -> Drawn:
    """Signatures of three patients in both tables, and how near the true partner's signature is."""
    clinic, lab, coupling = white()
    truth = example().truth["lab"]
    rows = np.arange(len(truth))
    cost = all_signatures(clinic, lab)
    before = (cost < cost[rows, truth][:, None]).sum(axis=1)
    first, near, coupled = int((before == 0).sum()), int((before < close).sum()), right(coupling.argmax(axis=1), truth)

    figure = _figure(
        f"Signatures alone put the true partner first for {first} of {len(truth)} rows, "
        f"among the {close} closest for {near}", 8.6, 3.4,
    )  # fmt: skip
    curves, shares = figure.subplots(1, 2, width_ratios=[1.25, 1.0])
    ours, theirs = signatures(clinic, rows), signatures(lab, truth)
    by_size = np.argsort((clinic**2).sum(axis=1), kind="stable")
    for place, colour, name in ((0.1, BLUE, "near the middle"), (0.5, GREEN, "typical"), (0.95, ORANGE, "far out")):
        row = by_size[round(place * (len(rows) - 1))]
        along = np.linspace(0, 1, ours.shape[1])
        curves.plot(along, ours[row], color=colour, linewidth=2, label=name)
        curves.plot(along, theirs[row], color=colour, linewidth=1.6, linestyle=(0, (3, 1.5)))
    curves.plot([], [], color=MUTED, linewidth=2, label="in the clinic's table")
    curves.plot([], [], color=MUTED, linewidth=1.6, linestyle=(0, (3, 1.5)), label="in the lab's")
    curves.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _finish(curves, "the signatures of three patients", "share of the table's rows", "inner product, sorted", grid="y")
    _legend(curves, loc="upper left")
    counts = np.arange(1, len(rows) + 1)
    shares.plot(counts, [(before < k).mean() for k in counts], color=BLUE, linewidth=2, label="by signature")
    shares.plot(counts, counts / len(rows), color=MUTED, linewidth=1.4, linestyle="--", label="by chance")
    shares.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _finish(shares, "is the true partner among the closest?", "how many of the closest", "share of rows", grid="both")
    _legend(shares, loc="lower right")
    return figure, {
        "signature first": f"first for {first} of {len(truth)} rows",
        "signature near": f"among the {close} closest for {near}",
        "first coupling": f"for {coupled} of {len(truth)} rows, the largest entry",
    }


def annealing(chosen: Sequence[int] = (5, 20, 60), coldest: float = 0.1, drawn: int = 40) -> Drawn:
    """The coupling from soft to sharp while the rotation settles."""
    clinic, lab, start = white()
    truth = example().truth["lab"]
    # As `anneal` cools by itself: its first k temperatures, for some k.
    cooling = np.geomspace(4.0, coldest, chosen[-1])
    states = [("signatures", procrustes(clinic, lab, start), start)]
    for steps in chosen:
        temperature = float(cooling[steps - 1])
        rotation = anneal(clinic, lab, start, coldest=temperature, steps=steps)
        soft = couple(2.0 * clinic @ (lab @ rotation).T, temperature=temperature, max_iter=50)
        states.append((f"step {steps}, temperature {temperature:.1f}", rotation, soft))
    counts = [right(coupling.argmax(axis=1), truth) for _, _, coupling in states]
    distances: list[float] = []
    spreads = [float(np.exp(-(p * np.log(p + 1e-30)).sum(axis=1)).mean()) for _, _, p in states]

    figure = _figure(
        f"Cooling: the best guess is right for {counts[0]} rows at the start, {counts[-1]} at the end", 8.6, 4.7
    )
    panels = figure.subplots(2, len(states))
    for column, (name, rotation, coupling) in enumerate(states):
        above, below = panels[:, column]
        _heat(above, in_true_order(coupling), norm=PowerNorm(0.5, vmin=0, vmax=0.6), cmap="Blues")
        _finish(above, name, f"{counts[column]} right; {spreads[column]:.0f} choices a row")
        above.set_xticks([])
        above.set_yticks([])
        turned = (lab @ rotation)[truth]
        for ours, theirs in zip(clinic[:drawn], turned[:drawn], strict=True):
            below.plot([ours[0], theirs[0]], [ours[1], theirs[1]], color=INK, linewidth=0.8)
        below.plot(clinic[:drawn, 0], clinic[:drawn, 1], "o", color=BLUE, markersize=4, label="clinic's rows")
        below.plot(turned[:drawn, 0], turned[:drawn, 1], "^", color=ORANGE, markersize=4, label="lab's rows, turned")
        below.set_xlim(-3, 3)
        below.set_ylim(-3, 3)
        below.set_aspect("equal")
        apart = float(np.sqrt(((clinic - turned) ** 2).sum(axis=1)).mean())
        distances.append(apart)
        _finish(below, "", f"partners {apart:.2f} apart")
        below.set_xticks([])
        below.set_yticks([])
    panels[0, 0].set_ylabel("clinic's rows", fontsize=9, color=INK)
    panels[1, 0].set_ylabel(f"{drawn} rows, two factors", fontsize=9, color=INK)
    figure.legend(*panels[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, **_LEGEND)
    # The same walk on noisier tables ends in a wrong place; the whole search does not.
    noisy = example(0.7, 0)
    clinic, lab, start = white(0.7, 0)
    rotation = anneal(clinic, lab, start)
    stuck = couple(2.0 * clinic @ (lab @ rotation).T, temperature=coldest, max_iter=50).argmax(axis=1)
    whole = _linked(noisy.tables).permutations["lab"]
    return figure, {
        "cooling, right": f"from {counts[0]} to {counts[-1]} right rows",
        "cooling, choices": f"from {spreads[1]:.0f} to {spreads[-1]:.0f} choices a row",
        "cooling, apart": f"from {distances[0]:.2f} to {distances[-1]:.2f} apart",
        "cooling, stuck": f"with {right(stuck, noisy.truth['lab'])} of 100 rows right",
        "cooling, whole search": f"finds {right(whole, noisy.truth['lab'])}",
    }


def likelihood() -> Drawn:
    """Log-likelihood ratios of all pairs, and how those of one row become a probability and a margin."""
    data = example()
    truth = data.truth["lab"]
    links = keyless.link(data.tables, random_state=SEED)
    pair = find_pair(*(Side(table) for table in data.tables.values()), Task())
    if not np.array_equal(pair.permutation, links.permutations["lab"]):
        raise RuntimeError("the engine and keyless.link should find the same rows here; choose another seed")
    found, ratios = links.found["lab"], pair.ratios
    ordered = in_true_order(ratios)
    same, strangers = np.diag(ordered), ordered[~np.eye(len(ordered), dtype=bool)]
    typical, strange = float(np.median(same)), float(np.median(strangers))

    title = f"A true pair scores {typical:+.1f} nats (median), two strangers {strange:+.1f}: the diagonal stands out"
    figure = _figure(title.replace("-", "−"), 8.6, 3.4)
    all_pairs, counts, one = figure.subplots(1, 3, width_ratios=[1.25, 1.0, 1.25])
    image = _heat(all_pairs, ordered, vmin=-25, vmax=8, cmap="cividis")
    _finish(all_pairs, "all pairs, in true order", "lab's rows", "clinic's rows")
    all_pairs.set_xticks([])
    all_pairs.set_yticks([])
    bar = figure.colorbar(image, ax=all_pairs, location="right", extend="min", shrink=0.6, aspect=14)
    bar.ax.tick_params(labelsize=8)
    bins = np.linspace(-40, 10, 26)
    for values, colour, name in ((strangers, ORANGE, "strangers"), (same, BLUE, "true pairs")):
        share = np.full(len(values), 1 / len(values))
        counts.hist(np.clip(values, -40, 10), bins, weights=share, color=colour, alpha=0.75, label=name)
    counts.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _finish(counts, "how they are spread", "nats; the first bar: −40 or less", "share", grid="y")
    _legend(counts, loc="upper center")
    margins = found.margin
    shown = {
        "a close\ncall": int(np.argmin(np.where(margins > 0, found.probability, 1.0))),
        "rival\ntaken": int(np.argmin(np.where(found.probability > 0.98, margins, np.inf))),
        "a typical\nrow": int(np.argsort(margins, kind="stable")[len(margins) // 2]),
    }
    for place, row in enumerate(shown.values()):
        best = np.sort(ratios[row])[::-1][:12]
        one.plot(best, np.full(len(best), place), "o", color=ORANGE, markersize=5, alpha=0.7, zorder=2)
        match = float(ratios[row, found.permutation[row]])
        one.plot(match, place, "D", color=BLUE, markersize=8, zorder=3)
        stated = f"margin {margins[row]:.1f}, probability {100 * found.probability[row]:.0f}%".replace("-", "−")
        one.annotate(stated, (0.02, place + 0.2), xycoords=("axes fraction", "data"), fontsize=8.5, color=INK)
    one.plot([], [], "D", color=BLUE, label="the match")
    one.plot([], [], "o", color=ORANGE, label="the next best")
    one.set_ylim(-1.0, 2.6)
    one.set_xlim(-18, 10)
    one.set_yticks([0, 1, 2], list(shown))
    _finish(one, "three of the clinic's rows", "log-likelihood ratio, nats", grid="x")
    one.legend(loc="lower left", ncols=2, columnspacing=0.8, **_LEGEND)
    count, sure = right(found.permutation, truth), found.probability >= 0.9
    return figure, {
        "likelihood, right": f"{count} of {len(truth)} matches are right",
        "likelihood, expected": f"{found.probability.sum():.0f} are expected to be",
        "likelihood, sure": f"{int((found.permutation == truth)[sure].sum())} of the {int(sure.sum())} at 90% or more",
        "likelihood, true pair": f"{typical:+.1f} nats",
        "likelihood, strangers": f"{strange:+.1f} nats".replace("-", "−"),
    }


def together(seeds: Sequence[int] = range(6)) -> Drawn:
    """Wrong rows when tables are linked two by two, and all at once."""
    pairs, joint = [], []
    for seed in seeds:
        data = make_shuffled_tables(100, (20, 15, 15, 15, 15), rank=RANK, noise=0.5, observed=0.8, random_state=seed)
        reference, *others = data.tables.items()
        whole = _found(data.tables)
        pairs.append(sum(hamming(_found(dict([reference, one]))[one[0]], data.truth[one[0]]) for one in others))
        joint.append(sum(hamming(whole[name], truth) for name, truth in data.truth.items()))
    total = 100 * len(others) * len(pairs)

    figure = _figure(
        f"Five tables: {sum(joint)} of {total:,} rows are wrong when all are linked at once, {sum(pairs)} two by two",
        8.6, 2.7,
    )  # fmt: skip
    ax = figure.subplots()
    places = np.arange(len(pairs))[::-1]
    ax.hlines(places, joint, pairs, color=MUTED, linewidth=1.5, zorder=1)
    ax.plot(pairs, places, "s", color=ORANGE, markersize=8, label="each with the reference alone")
    ax.plot(joint, places, "o", color=BLUE, markersize=8, label="each against all the others")
    ax.set_yticks(places, [f"seed {seed}" for seed in seeds])
    ax.set_xlim(left=0)
    ax.set_ylim(-0.6, len(pairs) - 0.4)
    _finish(ax, "", f"wrong rows of {100 * len(others)}", grid="x")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, **_LEGEND)
    return figure, {
        "together": f"{sum(joint)} of {total:,} rows are wrong, against {sum(pairs)}",
        "together, better": f"in {sum(a < b for a, b in zip(joint, pairs, strict=True))} of {len(pairs)} data sets",
    }


def _found(tables: Any) -> Any:
    """Link tables of which every row has a partner, and return the matches."""
    return keyless.link(tables, partners="all", random_state=SEED).permutations


def frames() -> Drawn:
    """Rows without a partner, and the affine map between the frames of two tables that share part of their rows."""
    links, tables, truth = _partly(100, SEED)
    permutation, partner = links.permutations["table1"], links.coupling("table1").sum(axis=1)
    rows = np.flatnonzero(permutation >= 0)
    own = [posterior(information(fit_table(*table), *table))[0] for table in tables]
    ours, theirs = own[0][rows], own[1][permutation[rows]]
    theirs = theirs @ procrustes(ours, theirs, np.eye(len(rows)))
    width, model = tables[0][0].shape[1], links.model.factors
    parts = slice(0, width), slice(width, None)
    means = [posterior(information(model.columns(part), *t))[0] for part, t in zip(parts, tables, strict=True)]
    small = [_partly(50, seed) for seed in range(4)]
    solved = sum(hamming(found.permutations["table1"], answer) <= 5 for found, _, answer in small)
    joint = means[0][rows], means[1][permutation[rows]]
    here, alone = truth >= 0, truth < 0
    made, left = int((permutation == truth)[here].sum()), int((permutation == truth)[alone].sum())

    figure = _figure(
        f"{made} of {here.sum()} partners found, {left} of {alone.sum()} rows rightly left alone; "
        "one frame is found for both", 8.6, 3.2,
    )  # fmt: skip
    strip, offsets = figure.subplots(1, 2, width_ratios=[1.0, 1.35])
    for place, (group, name, colour, marker) in enumerate(
        ((alone, "have none", ORANGE, "^"), (here, "have a partner", BLUE, "o"))
    ):
        spread = 0.5 * ((np.arange(group.sum()) * 0.618) % 1 - 0.5)
        strip.plot(partner[group], place + spread, marker, color=colour, markersize=5, alpha=0.75, markeredgewidth=0)
        strip.annotate(name, (0.5, place), ha="center", va="center", fontsize=9.5, color=INK)
    strip.set_yticks([])
    strip.set_ylim(-0.5, 1.5)
    strip.set_xlim(-0.04, 1.04)
    strip.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _finish(strip, "rows of the first table", "stated probability of a partner", grid="x")
    worst = int(np.argmax(np.abs((theirs - ours).mean(axis=0))))
    gap, same = theirs[:, worst] - ours[:, worst], joint[1] - joint[0]
    nearest = int(np.argmax(np.abs(np.corrcoef(ours[:, worst], joint[0].T)[0, 1:])))
    offsets.axhline(0, color=INK, linewidth=1)
    offsets.plot(ours[:, worst], gap, "^", color=ORANGE, markersize=5, label="each table's own frame")
    offsets.plot(joint[0][:, nearest], same[:, nearest], "o", color=BLUE, markersize=5, label="the joint model's frame")
    _finish(offsets, "where two tables put the same entity", "its place by the first table", "second minus first",
            grid="both")  # fmt: skip
    offsets.set_ylim(bottom=float(min(gap.min(), same[:, nearest].min())) - 0.25)
    _legend(offsets, loc="lower left")
    return figure, {
        "frames, partners": f"{made} of {here.sum()} partners",
        "frames, alone": f"{left} of {alone.sum()} rows",
        "frames, own": f"{abs(gap.mean()):.2f} apart",
        "frames, joint": f"{abs(same[:, nearest].mean()):.2f} after",
        "frames, exception": f"stated at {100 * partner[alone].max():.0f}%",
        "frames, small": f"in {solved} of {len(small)} data sets",
        "frames, selected": f"in {sum(_selected(seed) for seed in SEEDS)} of {len(SEEDS)} data sets",
    }


def _partly(n_rows: int, seed: int) -> tuple[Any, list[tuple[Any, Any]], Any]:
    """Link two tables of which half the rows have a partner; return the link, the tables and the truth."""
    data = make_shuffled_tables(n_rows, (30, 25), rank=5, noise=0.3, overlap=0.5, random_state=seed)
    tables = [scored(table) for table in data.tables.values()]
    return keyless.link(data.tables, random_state=SEED), tables, data.truth["table1"]


def _selected(seed: int, share: float = 0.25) -> bool:
    """Tell whether tables of unlike entities are linked: one leaves out the lowest quarter of a trait, one the highest.

    The trait is the first factor with as much noise again.
    """
    data = make_shuffled_tables(160, (30, 25), rank=5, noise=0.3, random_state=seed)
    trait = data.factors[:, 0] + np.random.default_rng(seed).normal(size=160)
    first = np.flatnonzero(trait < np.quantile(trait, 1 - share))
    second = np.flatnonzero(trait > np.quantile(trait, share))
    reference, table = data.tables.values()
    # The table's rows stay shuffled: those left, in the order they have there.
    kept = np.sort(data.truth["table1"][second])
    place = np.full(160, -1)
    place[kept] = np.arange(len(kept))
    links = keyless.link({"first": reference[first], "second": table[kept]}, random_state=SEED)
    return hamming(links.permutations["second"], place[data.truth["table1"][first]]) <= 5


def evidence() -> Drawn:
    """What three links reach beside what chance reaches: linked, uncertain, unlinkable."""
    tables = {
        "little noise": example().tables,
        "much noise": example(MUCH).tables,
        "other patients": {"clinic": example().tables["clinic"], "lab": example(0.5, SEED + 1).tables["lab"]},
    }
    found = {name: _linked(pair).evidence for name, pair in tables.items()}
    figure = _figure("A link must be clear of chance", 8.6, 2.7)
    ax = plots.evidence(
        [one.score for one in found.values()], [one.null_scores for one in found.values()],
        [one.needed for one in found.values()], names=list(found), ax=figure.subplots(),
    )  # fmt: skip
    _finish(ax, "", "nats a row, by models that have not seen the row", grid="x")
    ax.set_xlim(0, 1.3 * max(one.score for one in found.values()))
    for place, one in enumerate(reversed(found.values())):
        ax.annotate(one.verdict, (max(one.score, one.needed) + 0.25, place), va="center", fontsize=10, color=INK)
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, **_LEGEND)
    truth = example(MUCH).truth["lab"]
    noisy = right(_linked(example(MUCH).tables).permutations["lab"], truth)
    stated = {f"evidence, {name}": f"{one.score:.1f} nats, {one.verdict}" for name, one in found.items()}
    nulls = [value for one in found.values() for value in one.null_scores]
    stated["evidence, chance"] = f"between {min(nulls):.1f} and {max(nulls):.1f} nats"
    stated["evidence, uncertain"] = f"{noisy} of its {len(truth)} rows"
    return figure, stated


def crossing(splits: int = 6) -> Drawn:
    """A right link and a link of strangers: halves of the matched rows, with their own partners and crossed."""
    rng = np.random.default_rng(SEED)
    groups = 3 * np.repeat(np.eye(RANK), 75, axis=0)
    people, others = (groups + rng.normal(size=groups.shape) for _ in range(2))
    loadings = rng.normal(size=(RANK, 35))

    def shown(entities: Any, columns: slice) -> Side:
        values = entities @ loadings[:, columns]
        return Side(values + 0.5 * rng.normal(size=values.shape))

    clinic, stated = shown(people, slice(0, 20)), {}
    figure = _figure("Crossing takes a part of its score from a right link, and nothing from a wrong one", 8.6, 2.8)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    cases = {"right": ("the same patients", people), "strangers": ("other patients of the same four groups", others)}
    for ax, (case, (title, entities)) in zip(panels, cases.items(), strict=True):
        link = find_pair(clinic, shown(entities, slice(20, 35)), Task(seed=SEED))
        # The engine has rows in an order of its own.
        permutation = np.append(np.argsort(link.orders[1]), -1)[link.permutation[link.orders[0]]]
        tasks = (Task(comparisons=1, seed=seed) for seed in range(splits))
        found = [crossings(link.form, permutation, task)[0] for task in tasks]
        same, crossed = (np.array([getattr(one, kind) for one in found]) for kind in ("same", "chance"))
        place = np.arange(splits)
        ax.hlines(place, same, crossed, color=MUTED, linewidth=1.6)
        ax.plot(crossed, place, "^", color=ORANGE, markersize=7, label="crossed: with the other half's partners")
        ax.plot(same, place, "o", color=BLUE, markersize=7, label="with their own partners")
        correct = int((link.permutation == np.arange(len(people))).sum())
        _finish(ax, f"{title}: {correct} of {len(people)} right", "nats by which partners stand out", grid="x")
        stated |= {
            f"crossing, {case}": f"{same.mean():.1f} nats with their own partners, {crossed.mean():.1f} nats crossed",
            f"crossing, {case}, right": f"{correct} of {len(people)} rows",
            f"crossing, {case}, score": f"{link.form.matching.identification:.1f} nats a row",
        }
    panels[0].set_ylabel("random split", fontsize=9, color=INK)
    panels[0].set_yticks(place, [str(number) for number in place + 1])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, **_LEGEND)
    return figure, stated


def sweep() -> Drawn:
    """The share of right rows, and the score keyless reports, against the nats a row that the tables hold."""
    needed = float(np.log(100))
    held, share, score, verdicts = [], [], [], []
    for noise in NOISES:
        for seed in SEEDS:
            data = example(noise, seed)
            links = _linked(data.tables)
            held.append(_held(data) / needed)
            share.append(right(links.permutations["lab"], data.truth["lab"]) / 100)
            score.append(links.evidence.score / needed)
            verdicts.append(links.evidence.verdict)
            _say(f"  noise {noise}, seed {seed}: {held[-1]:.2f} of log n, {share[-1]:.0%} right, {verdicts[-1]}")
    x, y, z, said = np.array(held), np.array(share), np.array(score), np.array(verdicts)
    enough, twice, half = x >= 1, x >= 1.8, x < 0.5

    figure = _figure(
        f"Above log n nats a row at least {100 * y[enough].min():.0f}% of the rows are right, "
        f"below half of that at most {100 * y[half].max():.0f}%", 8.6, 3.6,
    )  # fmt: skip
    shares, scores = figure.subplots(1, 2)
    for ax, values in ((shares, y), (scores, z)):
        ax.axvline(1, color=INK, linewidth=1.2, linestyle=(0, (2, 1.4)))
        for verdict, colour, marker in (("linked", BLUE, "o"), ("uncertain", GREEN, "s"), ("unlinkable", ORANGE, "^")):
            ax.plot(x[said == verdict], values[said == verdict], marker, color=colour, markersize=6, label=verdict)
        ax.set_xlim(left=0)
    shares.annotate(" log n", (1, 0.02), fontsize=9, color=INK)
    shares.set_ylim(-0.03, 1.03)
    shares.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _finish(shares, "share of right rows", "nats a row that the tables hold, over log n", grid="both")
    scores.plot([0, 1, x.max()], [0, 1, 1], color=MUTED, linewidth=1.2, linestyle="--", label="as held, up to log n")
    scores.set_ylim(bottom=0)
    _finish(scores, "score that keyless reports, over log n", "nats a row that the tables hold, over log n",
            grid="both")  # fmt: skip
    handles = scores.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, **_LEGEND)
    return figure, {
        "sweep, enough": f"at least {100 * y[enough].min():.0f}%",
        "sweep, ample": f"at least {100 * y[twice].min():.0f}%",
        "sweep, half": f"at most {100 * y[half].max():.0f}%",
        "sweep, linked": f"{int((said == 'linked').sum())} of {len(said)} runs are called linked",
        "sweep, worst linked": f"{100 * y[said == 'linked'].min():.0f}% of the rows",
        "sweep, score": f"at least {100 * z[said == 'linked'].min():.0f}% of log n",
        "sweep, cautious": f"{100 * y[said == 'unlinkable'].max():.0f}% right",
        "sweep, floor": f"near {z[half].mean() * needed:.1f} nats",
    }


def remedies(known: int = 20, groups: int = 10) -> Drawn:
    """What helps where the tables are too noisy: more columns, known pairs, groups."""
    names = ("as they are", f"{known} known pairs", "twice the columns", f"{groups} groups that agree")
    shares: dict[str, list[float]] = {name: [] for name in names}
    verdicts: dict[str, list[str]] = {name: [] for name in names}
    for seed in SEEDS:
        data = example(HARD, seed, (40, 30))
        truth, rng = data.truth["lab"], np.random.default_rng(seed)
        sure, ward = rng.permutation(100)[:known], rng.permutation(100) % groups
        others = np.setdiff1d(np.arange(100), sure)
        clinic, lab = (pd.DataFrame(table).add_prefix(f"{name} ") for name, table in data.tables.items())
        fewer = {"clinic": clinic.iloc[:, :20], "lab": lab.iloc[:, :15]}
        grouped = {
            "clinic": fewer["clinic"].assign(ward=ward),
            "lab": fewer["lab"].assign(ward=ward[np.argsort(truth)]),
        }
        found = [
            _linked(fewer),
            _linked(fewer, known_pairs=[(int(row), int(truth[row])) for row in sure]),
            _linked({"clinic": clinic, "lab": lab}),
            _linked(grouped, within="ward"),
        ]
        for name, links in zip(names, found, strict=True):
            correct = links.permutations["lab"] == truth
            shares[name].append(float(correct[others if "known" in name else slice(None)].mean()))
            verdicts[name].append(links.evidence.verdict)
            _say(f"  seed {seed}, {name}: {shares[name][-1]:.0%} right, {verdicts[name][-1]}")
    means = {name: float(np.mean(values)) for name, values in shares.items()}
    counted = {
        name: ", ".join(f"{said.count(verdict)} {verdict}" for verdict in sorted(set(said)))
        for name, said in verdicts.items()
    }
    figure = _figure(
        f"Tables too noisy to link: {100 * means[names[0]]:.0f}% right as they are, "
        f"{100 * means[names[-1]]:.0f}% inside {groups} groups", 8.6, 2.7,
    )  # fmt: skip
    ax = figure.subplots()
    places = np.arange(len(names))[::-1]
    ax.barh(places, list(means.values()), height=0.55, color=COLOURS[5], edgecolor="none")
    for place, name in zip(places, names, strict=True):
        ax.plot(shares[name], np.full(len(SEEDS), place), "o", color=BLUE, markersize=6)
        ax.annotate(counted[name], (1.02, place), va="center", fontsize=9, color=INK, annotation_clip=False)
    ax.set_yticks(places, names)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _finish(ax, "", f"share of rows right (known pairs not counted); dots: seeds {SEEDS[0]} to {SEEDS[-1]}", grid="x")
    stated = {f"remedies, {name}": f"{100 * mean:.0f}%" for name, mean in means.items()}
    return figure, stated | {"remedies, verdict inside groups": f"inside groups: {counted[names[-1]]}"}


def limits(arms: int = 5) -> Drawn:
    """A pinwheel, which can be turned, and twins: neither can be told apart from the numbers."""
    wheels = [_shuffled(_pinwheel(arms, seed), 0.02, seed) for seed in range(5)]
    wrong = sum(right(links.permutations["lab"], truth) == 0 for links, truth in wheels)
    called = sum(links.evidence.verdict == "linked" for links, _ in wheels)
    told, told_truth = _shuffled(_pinwheel(arms, 0), 0.02, 0, known=3)
    turned, truth = wheels[0]
    angle = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    ring, ring_truth = _shuffled(np.column_stack([np.cos(angle), np.sin(angle)]), 0.02, SEED)
    latent = np.random.default_rng(SEED).normal(size=(90, RANK))
    twins, partner = _shuffled(np.vstack([latent, latent[:10]]), 0.3, SEED)
    alike = np.r_[0:10, 90:100]
    correct = twins.permutations["lab"] == partner
    probability = twins.found["lab"].probability

    figure = _figure(
        f"A pinwheel is turned and still called {turned.evidence.verdict}; twins are swapped, at times without warning",
        8.6, 3.2,
    )  # fmt: skip
    wheel, pairs = figure.subplots(1, 2)
    wheel.plot([0, 99], [0, 99], color=MUTED, linestyle="--", linewidth=1.2, label="the truth")
    # Where the partner that was found stands on the wheel.
    wheel.plot(np.arange(100), np.argsort(truth)[turned.permutations["lab"]], "o", color=ORANGE, markersize=4,
               label="found")  # fmt: skip
    of_wheel = right(turned.permutations["lab"], truth)
    _finish(wheel, f"a pinwheel of {arms} equal arms: {of_wheel} of 100 right", "row, arm by arm", "row of the partner",
            grid="both")  # fmt: skip
    _legend(wheel, loc="lower right")
    for rows, colour, marker, name in (
        (np.setdiff1d(np.arange(100), alike), BLUE, "o", "80 others"), (alike, ORANGE, "^", "twins"),
    ):  # fmt: skip
        spread = 0.5 * ((np.arange(len(rows)) * 0.618) % 1 - 0.5)
        pairs.plot(probability[rows], correct[rows] + spread, marker, color=colour, markersize=5, alpha=0.75,
                   markeredgewidth=0, label=name)  # fmt: skip
    pairs.set_yticks([0, 1], ["wrong", "right"])
    pairs.set_ylim(-0.5, 1.5)
    pairs.set_xlim(0, 1.02)
    pairs.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    count = int(correct[alike].sum())
    _finish(pairs, f"10 pairs of twins: {count} of {len(alike)} right", "stated probability", grid="x")
    _legend(pairs, loc="center left")
    return figure, {
        "pinwheel": f"every row is wrong in {wrong} of {len(wheels)} data sets",
        "pinwheel, called": f"{called} of them are called linked",
        "pinwheel, known pairs": f"all {right(told.permutations['lab'], told_truth)} rows are right",
        "ring": f"{right(ring.permutations['lab'], ring_truth)} of 100 rows right, {ring.evidence.verdict}",
        "twins": f"{count} of {len(alike)} twins",
        "twins, stated": f"{probability[alike].sum():.0f} expected",
        "others": f"{int(correct.sum()) - count} of the {100 - len(alike)} others",
        "squares": _squares(),
    }


def gaussian_limit(rows: int = 300, pairs: int = 10, trials: int = 3) -> Drawn:
    """Real pairs of tables against what Gaussian ones with as much information allow; see docs/limits.md.

    The tables are those of benchmarks/bench_real.py, and what is right of them is read from its results. Pairs that
    KEYLESS_DATA_HOME does not hold are left out.
    """
    folder = Path(__file__).parents[1] / "benchmarks"
    sys.path.insert(0, str(folder))
    import bench_real  # noqa: PLC0415

    kept = json.loads((folder / "results" / "real.json").read_text(encoding="utf-8"))["sections"]
    section = kept["Rows gone from one table, and from both"]["rows"]
    found = {row["case"]: row["recall"] for row in section if row["gone"] == "0%, 0%"}
    levels, rng = np.linspace(0.1, 2.0, 20), np.random.default_rng(SEED)
    # Equal correlations r of so many pairs carry −½·pairs·log(1 − r²) nats.
    curve = [
        np.mean([_gaussian_share(np.full(pairs, np.sqrt(-np.expm1(-2 * x * np.log(rows) / pairs))), rows, rng)
                 for _ in range(trials)])
        for x in levels
    ]  # fmt: skip
    figure = _figure("What keyless finds, and what Gaussian tables with as much information allow", 8.6, 4.2)
    ax = figure.subplots()
    ax.plot(
        levels, curve, color=MUTED, linewidth=1.6, label=f"Gaussian tables, {pairs} equal correlations, {rows} rows"
    )
    ax.axvline(1, color=INK, linewidth=1.2, linestyle=(0, (2, 1.4)))
    ax.plot([], [], "o", markerfacecolor="none", color=INK, label="Gaussian tables with the pair's correlations")
    ax.plot([], [], "_", color=INK, markersize=12, markeredgewidth=2, label="a map fitted to true partners")
    ax.plot([], [], "o", color=INK, label="keyless, which knows no partners; by pair:")
    stated = {}
    for number, (name, first, second) in enumerate(bench_real.pairs()):
        correlations, told = _told(first, second)
        over = float(-0.5 * np.log1p(-(correlations**2)).sum() / np.log(len(first)))
        possible = float(np.mean([_gaussian_share(correlations, len(first), rng) for _ in range(trials)]))
        right, colour = found[name], COLOURS[number % len(COLOURS)]
        marker = "o" if number < len(COLOURS) else "s"
        heights = (possible, told, right)
        ax.vlines(over, min(heights), max(heights), color=colour, linewidth=1, alpha=0.6)
        ax.plot(over, possible, marker, markerfacecolor="none", color=colour, markersize=8)
        ax.plot(over, told, "_", color=colour, markersize=12, markeredgewidth=2)
        ax.plot(over, right, marker, color=colour, markersize=7, label=name.replace("AquaticTox_", "AquaticTox, "))
        figures = f"{len(first):,} | {over:.1f} | {possible:.0%} | {told:.0%} | {right:.0%}"
        stated[f"limit, {name}"] = f"| {name} | {figures} |"
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlim(left=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _finish(ax, "", "nats a row that the tables hold, over log n", "share of rows right", grid="both")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside right center", **_LEGEND)
    return figure, stated


def _gaussian_share(correlations: Any, rows: int, rng: np.random.Generator) -> float:
    """Return the share of rows right of Gaussian tables with these correlations, matched by the true model."""
    left = rng.normal(size=(rows, len(correlations)))
    right = correlations * left + np.sqrt(1 - correlations**2) * rng.normal(size=left.shape)
    model = CanonicalModel(
        *np.zeros((2, len(correlations))), np.eye(len(correlations)), np.eye(len(correlations)), correlations
    )
    return float(np.mean(assign(-model.log_ratios(left, right)) == np.arange(rows)))


def _told(first: Any, second: Any, folds: int = 8) -> tuple[Any, float]:
    """Return what a map fitted to true partners shows of rows left out: canonical correlations, share of rows right.

    Of several numbers of factors those count by which the rows left out show most information.
    """
    sides = Side(first), Side(second)
    best, share = np.zeros(1), 0.0
    for count in (6, 12, 20, 40):
        # As the engine does: six rows or more for each factor.
        if count > max(6, len(first) // 6):
            break
        one, two = (side.factors(max_rank=count).scores[np.argsort(side.order)] for side in sides)
        dealt = Folds.along(np.arange(len(one)), folds)
        fitted = cross_fit(one, two, sparse.eye_array(len(one), format="csr"), dealt)
        correlations = fitted.whole.correlations
        if np.log1p(-(correlations**2)).sum() < np.log1p(-(best**2)).sum():
            ratios = dealt.unfolded(fitted.log_ratios(dealt.folded(one), two))
            best, share = correlations, float(np.mean(assign(-ratios) == np.arange(len(one))))
    return best, share


def _pinwheel(arms: int, seed: int) -> Any:
    """Return 100 entities with two factors that a turn by one arm leaves as they are; no mirror does."""
    arm = np.random.default_rng([seed, 1]).normal(size=(100 // arms, 2))
    angles = 2 * np.pi * np.arange(arms) / arms
    return np.vstack([arm @ np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]) for a in angles])


def _shuffled(entities: Any, noise: float, seed: int, *, known: int = 0) -> tuple[keyless.Links, Any]:
    """Show entities in two tables, shuffle the second, link them; return the links and the truth."""
    rng = np.random.default_rng(seed)
    values = entities @ rng.normal(size=(entities.shape[1], 35)) + noise * rng.normal(size=(100, 35))
    order = rng.permutation(100)
    truth = np.argsort(order)
    pairs = [(row, int(truth[row])) for row in (0, 33, 66)[:known]]
    tables = {"clinic": values[:, :20], "lab": values[order, 20:]}
    return keyless.link(tables, known_pairs=pairs or None, random_state=seed), truth


def _squares() -> str:
    """Tell what becomes of a table that shows the squares of the other's factors."""
    rng = np.random.default_rng(SEED)
    latent, order = rng.normal(size=(100, RANK)), rng.permutation(100)
    clinic, lab = latent @ rng.normal(size=(RANK, 20)), latent**2 @ rng.normal(size=(RANK, 15))
    noise = rng.normal(size=(100, 35))
    links = _linked({"clinic": clinic + 0.1 * noise[:, :20], "lab": (lab + 0.1 * noise[:, 20:])[order]})
    return f"{right(links.permutations['lab'], np.argsort(order))} of 100 rows right, {links.evidence.verdict}"


PICTURES: dict[str, Callable[[], Drawn]] = {
    "problem": problem,
    "signatures": signature,
    "annealing": annealing,
    "likelihood": likelihood,
    "together": together,
    "frames": frames,
    "evidence": evidence,
    "crossing": crossing,
    "sweep": sweep,
    "remedies": remedies,
    "limits": limits,
    "gaussian_limit": gaussian_limit,
}
"""What makes each picture: it returns the figure, and the figures the text states."""


# --- running keyless on them -----------------------------------------------------------------------------------------


def _linked(tables: Any, **known: Any) -> keyless.Links:
    """Link, told the rank and that every row has a partner."""
    return keyless.link(tables, rank=RANK, partners="all", random_state=SEED, **known)


def _held(data: ShuffledTables) -> float:
    """Return the nats a row that two tables share by the way they were made, from their true loadings and noise."""
    width = data.tables["clinic"].shape[1]
    columns, rank = data.loadings.shape[1], len(data.loadings)
    model = FactorModel(
        data.loadings.T, np.zeros(columns), np.full(columns, data.noise**2), np.zeros((columns, rank + 1, rank + 1)),
        np.ones(rank + 1),
    )  # fmt: skip
    parts = zip((slice(0, width), slice(width, columns)), data.complete.values(), strict=True)
    sides = [information(model.columns(part), table, np.ones(table.shape, dtype=bool)) for part, table in parts]
    return float(expected_log_ratio(sides[0], sides[1]).mean())


# --- the look --------------------------------------------------------------------------------------------------------

_LEGEND: dict[str, Any] = {"fontsize": 9, "frameon": False, "labelcolor": INK, "handletextpad": 0.5}


def _figure(title: str, width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="#ffffff")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold", color=INK)
    return figure


def _finish(ax: Axes, title: str, xlabel: str, ylabel: str = "", *, grid: Any = "") -> None:
    ax.set_title(title, loc="left", fontsize=9.5, color=INK)
    ax.set_xlabel(xlabel, fontsize=9, color=INK)
    if ylabel:
        ax.set_ylabel(ylabel, fontsize=9, color=INK)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
    ax.tick_params(labelsize=9, color=MUTED, labelcolor=INK)
    ax.set_axisbelow(True)
    if grid:
        ax.grid(True, axis=grid, color=GRID, linewidth=0.8)


def _legend(ax: Axes, *, loc: Any = "best") -> None:
    ax.legend(loc=loc, **_LEGEND)


def _heat(ax: Axes, matrix: Any, **style: Any) -> Any:
    return ax.imshow(np.asarray(matrix, dtype=np.float64), interpolation="none", aspect="equal", **style)


def draw(name: str, folder: Path) -> dict[str, str]:
    """Make one picture as an SVG file in a folder; return the figures the text states."""
    with threadpool_limits(limits=1):
        figure, stated = PICTURES[name]()
    with rc_context({"svg.hashsalt": "keyless", "svg.fonttype": "path"}):
        FigureCanvasSVG(figure)
        figure.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None})
    return stated


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Make the pictures named, all of them unless some are, and print what the text may state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(PICTURES)}")
    names = parser.parse_args().names or list(PICTURES)
    if unknown := sorted(set(names) - set(PICTURES)):
        parser.error(f"NAME: must be some of {', '.join(PICTURES)}; found {', '.join(unknown)}")
    FOLDER.mkdir(exist_ok=True)
    stated = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    for name in names:
        stated[name] = draw(name, FOLDER)
        for key, value in stated[name].items():
            _say(f"{key}: {value}")
        kept = {name: stated[name] for name in PICTURES if name in stated}
        FIGURES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
