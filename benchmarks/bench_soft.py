"""Where rows cannot be told apart one by one, how good is the soft coupling?

    python benchmarks/bench_soft.py --out benchmarks/results/soft.json                # everything, a quarter of an hour
    python benchmarks/bench_soft.py --cases ours --out benchmarks/results/soft.json   # keyless alone, two minutes
    python benchmarks/bench_soft.py --pairs nutrimouse_gene_lipid                     # some of it

Real pairs of the folder that KEYLESS_DATA_HOME names, where there is one, and two tables of scikit-learn whose columns
are dealt to two. Seven of the real pairs tell less than log n nats about the partner of a row, by the README of that
folder: most rows have several likely partners there, and the best matching has many wrong rows. Two tell a little more
than log n. All rows are in both tables, and the rows of the second are shuffled.

Measured is FOSCTTM: of the other rows, the share that a coupling ranks before the true partner. Ties count one half, so
a row without any weight counts as a guess. Rows of both tables ask, and the mean is taken. 0 is perfect, 0.5 is chance.

keyless links with its defaults, and is not told the truth. Each rival has many settings. It is given the truth to
choose the best of them, for each pair anew, so its figure is better than what a user without the truth would get. The
median of its settings says what a setting taken blindly gets. "Best by chance" says how far below 0.5 the choice alone
leads: the same settings are ranked against shuffled truths, and the best is taken.

* Gromov–Wasserstein: entropic, square loss, on Euclidean distances of standard scores or of ranks.
* SCOT recipe: nearest-neighbour graphs of standard scores (correlation or Euclidean distance, edges of length one or of
  that distance), lengths of shortest paths, infinite ones replaced by the largest, then entropic Gromov–Wasserstein.

Distances are divided by the largest. Rows are ranked in three ways, and the truth chooses among these, too: by the
coupling, by the distance after the coupling has carried the first table's rows to means of the second's, and by the
distance the other way round. A setting whose coupling is not finite, or does not hold its mass, is left out. At most
100 outer steps are taken, each with at most 200 Sinkhorn steps. From 500 rows on these are 30 and 100, and the grid is
smaller, from 1,000 rows on once more; no rows are left out. With `--out` the cases and pairs that ran replace
those of the file, and the others stay.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist
from scipy.stats import rankdata
from sklearn import datasets
from sklearn.neighbors import kneighbors_graph

import keyless
from bench_real import real_pair
from common import one_thread, report_sections
from keyless.metrics import foscttm

SEED = 7000
"""Seeds from here on are used for nothing but this report."""

DEALT_PAIRS = ("digits, left/right halves", "wine, columns dealt in turn")
"""Pairs made of two tables of scikit-learn, whose columns are dealt to two."""

REAL_PAIRS = {
    "BRCA_expr_mirna": 4.9,
    "breast.TCGA_mrna_mirna": 2.8,
    "breast.TCGA_mrna_protein": 1.7,
    "aemet_temp_logprec": 2.1,
    "nutrimouse_gene_lipid": 1.2,
    "yeast_alpha+cdc28_cdc15+elu": 2.2,
    "100Leaves_1_3": 1.5,
    "NCI60_agilent_hgu133": 5.4,
    "NCI60_hgu133p2_hgu95": 6.5,
}
"""Real pairs, and the nats a row that the partners of other rows tell, by their README."""

GROMOV, SCOT = "Gromov–Wasserstein", "SCOT recipe"

SHUFFLED_TRUTHS = 5
"""How many wrong truths tell what the best of all settings gets by chance."""

MEANINGS = {
    "nats": "what the true partners of other rows tell about that of a row, by the README of the data folder",
    "setting chosen by the truth": "rivals are given the truth to choose the best of all their settings for each pair",
    "best by chance": f"the best of all settings for a shuffled truth, mean of {SHUFFLED_TRUTHS}",
}
"""What columns of the tables mean."""

NO_POT = "The rivals need POT, which is in the test extra: pip install '.[test]', or run --cases ours."


class Grid(NamedTuple):
    """Settings of the rivals, and how many steps they may take.

    Args:
        epsilons: weights of the entropy.
        neighbours: of each row in the graph.
        metrics: distances by which neighbours are found.
        lengths: of an edge: one, or that distance.
        outer: steps of Gromov–Wasserstein.
        inner: Sinkhorn steps in each of them.
    """

    epsilons: tuple[float, ...] = (5e-4, 1e-3, 5e-3, 1e-2, 5e-2)
    neighbours: tuple[int, ...] = (5, 10, 20, 35, 50)
    metrics: tuple[str, ...] = ("correlation", "euclidean")
    lengths: tuple[str, ...] = ("connectivity", "distance")
    outer: int = 100
    inner: int = 200


GRIDS = {
    0: Grid(),
    500: Grid(epsilons=(5e-4, 1e-3, 5e-3, 1e-2), neighbours=(5, 20, 50), outer=30, inner=100),
    1000: Grid(epsilons=(5e-4, 1e-3, 5e-3), neighbours=(5, 20), outer=30, inner=100),
}
"""Grids, and the number of rows from which on they are taken."""


def pairs(chosen: list[str]) -> Iterator[tuple[str, float | None, Any, Any, Any]]:
    """Yield the chosen pairs: name, nats a row, both tables, and for each row of the first its row of the second."""
    digits = datasets.load_digits().data[np.random.default_rng(SEED).permutation(1797)[:400]]
    left = np.arange(64) % 8 < 4
    wine = datasets.load_wine().data
    known: list[tuple[str, float | None, tuple[Any, Any] | None]] = [
        *((name, nats, real_pair(name)) for name, nats in REAL_PAIRS.items()),
        (DEALT_PAIRS[0], None, (digits[:, left], digits[:, ~left])),
        (DEALT_PAIRS[1], None, (wine[:, ::2], wine[:, 1::2])),
    ]
    for name, nats, tables in known:
        if name in chosen and tables is not None:
            first, second = tables
            order = np.random.default_rng(SEED).permutation(len(second))
            yield name, nats, first, second[order], np.argsort(order)


def ours(chosen: list[str]) -> list[dict[str, Any]]:
    """Return how near true partners are by the coupling of keyless."""
    rows = []
    for name, nats, first, second, truth in pairs(chosen):
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            links = keyless.link({"first": first, "second": second}, shared=None, random_state=0)
        seconds = time.process_time() - began
        coupling = links.coupling("second")
        dense = coupling.toarray() if sparse.issparse(coupling) else np.asarray(coupling)
        rows.append(
            {
                "pair": name,
                "rows": len(first),
                "log n": float(np.log(len(first))),
                "nats": nats,
                "FOSCTTM": foscttm(dense, truth, kind="coupling"),
                "verdict": links.evidence.verdict,
                "right": float(np.mean(links.permutations["second"] == truth)),
                "seconds": seconds,
            }
        )
        print(rows[-1], flush=True)
    return rows


def standard(table: Any) -> Any:
    """Return the standard scores of all columns."""
    spread = table.std(axis=0)
    return (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def graph_distances(scores: Any, neighbours: int, metric: str, lengths: str) -> Any:
    """Return the lengths of shortest paths between all rows, infinite ones replaced by the largest."""
    graph = kneighbors_graph(scores, neighbours, mode=lengths, metric=metric)
    graph.data = np.maximum(graph.data, 0.0)  # Rounding can make a correlation larger than one.
    found = shortest_path(graph, method="D", directed=False)
    return np.where(np.isfinite(found), found, found[np.isfinite(found)].max())


def distances_of(method: str, tables: list[Any], grid: Grid) -> Iterator[tuple[str, list[Any]]]:
    """Yield for every setting but epsilon its name, and the distances inside each table."""
    if method == GROMOV:
        yield "scores", [cdist(scores, scores) for scores in map(standard, tables)]
        ranks = [standard(rankdata(table, axis=0)) for table in tables]
        yield "ranks", [cdist(scores, scores) for scores in ranks]
        return
    chosen = sorted({min(k, len(tables[0]) - 1) for k in grid.neighbours})
    for k, metric, lengths in product(chosen, grid.metrics, grid.lengths):
        yield f"k {k}, {metric}, {lengths}", [graph_distances(standard(t), k, metric, lengths) for t in tables]


def couplings(method: str, tables: list[Any], grid: Grid) -> Iterator[tuple[str, Any]]:
    """Yield for every setting its name and its coupling; None where the coupling cannot be used."""
    try:
        from ot.gromov import entropic_gromov_wasserstein  # noqa: PLC0415
    except ImportError as missing:
        raise SystemExit(NO_POT) from missing
    for name, distances in distances_of(method, tables, grid):
        first, second = (each / each.max() for each in distances)
        for epsilon in grid.epsilons:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                coupling = entropic_gromov_wasserstein(
                    first,
                    second,
                    loss_fun="square_loss",
                    epsilon=epsilon,
                    symmetric=True,
                    max_iter=grid.outer,
                    tol=1e-7,
                    numItermax=grid.inner,
                    stopThr=1e-7,
                )
            usable = np.isfinite(coupling).all() and abs(coupling.sum() - 1) < 0.01
            yield f"{name}, epsilon {epsilon:g}", coupling if usable else None


def rankings(coupling: Any, tables: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the three ways to rank rows by a coupling, and how far apart the rows of both tables are by each."""
    first, second = (standard(table) for table in tables)
    yield "by coupling", -coupling
    carried = coupling @ second / np.maximum(coupling.sum(axis=1), 1e-300)[:, None]
    yield "first carried to second", cdist(carried, second)
    carried = coupling.T @ first / np.maximum(coupling.sum(axis=0), 1e-300)[:, None]
    yield "second carried to first", cdist(first, carried)


def best_of(method: str, tables: list[Any], truth: Any) -> dict[str, Any]:
    """Return how near true partners are at the setting that is best by the truth, at the median one, and by chance."""
    rng = np.random.default_rng([SEED, 1])
    wrong_truths = [rng.permutation(len(truth)) for _ in range(SHUFFLED_TRUTHS)]
    grid = GRIDS[max(rows for rows in GRIDS if rows <= len(truth))]
    scores: dict[str, float] = {}
    by_chance = []
    left_out = 0
    seconds = 0.0
    began = time.process_time()
    for setting, coupling in couplings(method, tables, grid):
        seconds += time.process_time() - began
        if coupling is None:
            left_out += 1
        else:
            for way, distance in rankings(coupling, tables):
                scores[f"{setting}, {way}"] = foscttm(distance, truth)
                by_chance.append([foscttm(distance, wrong) for wrong in wrong_truths])
        began = time.process_time()
    best = min(scores, key=lambda setting: scores[setting])
    return {
        "FOSCTTM at the best setting": scores[best],
        "at the median setting": float(np.median(list(scores.values()))),
        "best by chance": float(np.mean(np.min(by_chance, axis=0))),
        "settings": len(scores),
        "couplings left out": left_out,
        "best setting": best,
        "seconds of all settings": seconds,
    }


def rivals(chosen: list[str]) -> list[dict[str, Any]]:
    """Return how near true partners are by the rivals, each at the setting that is best by the truth."""
    rows = []
    for name, _, first, second, truth in pairs(chosen):
        for method in (GROMOV, SCOT):
            rows.append({"pair": name, "method": method, **best_of(method, [first, second], truth)})
            print(rows[-1], flush=True)
    return rows


def side_by_side(by_keyless: list[dict[str, Any]], by_rivals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line per pair: keyless, and the best of each rival."""
    best = {(row["pair"], row["method"]): row["FOSCTTM at the best setting"] for row in by_rivals}
    blind = {(row["pair"], row["method"]): row["at the median setting"] for row in by_rivals}
    return [
        {
            **{key: row[key] for key in ("pair", "rows", "log n", "nats")},
            "keyless": row["FOSCTTM"],
            **{f"{method}, setting chosen by the truth": best.get((row["pair"], method)) for method in (GROMOV, SCOT)},
            **{f"{method}, median setting": blind.get((row["pair"], method)) for method in (GROMOV, SCOT)},
        }
        for row in by_keyless
    ]


def stored_rows(out: Path | None, title: str) -> list[dict[str, Any]]:
    """Return the rows of a section that the file already has; none where it has no such section."""
    if out is None or not out.exists():
        return []
    return list(json.loads(out.read_text())["sections"].get(title, {"rows": []})["rows"])


def replaced(old: list[dict[str, Any]], new: list[dict[str, Any]], chosen: list[str]) -> list[dict[str, Any]]:
    """Return new rows and those old ones whose pair was not chosen, in the order of the pairs."""
    order = [*REAL_PAIRS, *DEALT_PAIRS]
    return sorted([*(row for row in old if row["pair"] not in chosen), *new], key=lambda row: order.index(row["pair"]))


def main() -> None:
    one_thread()
    together = "FOSCTTM side by side: keyless with its defaults, rivals with settings chosen by the truth"
    cases = {
        "ours": ("keyless with its defaults", ours),
        "rivals": ("Rivals, each at the setting that is best by the truth", rivals),
    }
    names = [*REAL_PAIRS, *DEALT_PAIRS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(cases), default=list(cases))
    parser.add_argument("--pairs", nargs="+", choices=names, default=names, metavar="PAIR", help=", ".join(names))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = {}
    for case, (title, run) in cases.items():
        rows[title] = stored_rows(arguments.out, title)
        if case in arguments.cases:
            rows[title] = replaced(rows[title], run(arguments.pairs), arguments.pairs)
    sections = {cases[case][0]: rows[cases[case][0]] for case in arguments.cases}
    if all(rows.values()):
        sections = {together: side_by_side(*rows.values())} | sections
    report_sections(
        "Where rows cannot be told apart one by one, how good is the soft coupling?",
        sections,
        settings={"seed": SEED, "threads": 1} | MEANINGS,
        out=arguments.out,
        order=[together, *(title for title, _ in cases.values())],
    )


if __name__ == "__main__":
    main()
