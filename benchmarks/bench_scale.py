"""How far does `keyless.link` go on two cores, and what limits the others?

    python benchmarks/bench_scale.py --out benchmarks/results/scale.json       # up to a million rows, and the rivals
    python benchmarks/bench_scale.py --cases ten-million --out benchmarks/results/scale.json   # half an hour, 4 GB disk

Every case runs in a process of its own with all cores; its time is that of the clock, its memory the largest it held.
Tables are 60 and 40 columns of 20 Laplace factors, noise a tenth of the signal, in float32, rows shuffled; data sets
have their own seeds. The known map is the true loadings and noise: the share of 20,000 sampled rows whose likeliest
partner is the right one. It never reaches keyless.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment, quadratic_assignment

import keyless
from common import report_sections
from keyless.arrays import batches
from keyless.model.shards import BATCH
from keyless.pairs.metric import Metric
from keyless.pairs.neighbours import nearest
from keyless.transport import sinkhorn

QUESTION = "Millions of rows on two cores"
SEED = 7_000
RANK, NOISE = 20, 0.1
GROWTH = (10_000, 30_000, 100_000, 300_000, 1_000_000)
VARIANTS: dict[str, dict[str, Any]] = {
    "20% missing": {"missing": 0.2},
    "three tables": {"widths": (40, 30, 30)},
    "80% overlap": {"overlap": 0.8},
    "20% overlap": {"overlap": 0.2},
    "10,000 of the rows in the other": {"kept": 0.1},
    "8 more factors of its own in each": {"own": 8},
}
RIVALS = {
    "dense Sinkhorn and Hungarian, map known": (1_000, 3_000, 10_000),
    "POT Gromov–Wasserstein": (300, 1_000, 2_000),
    "scipy graph matching": (300, 1_000, 2_000),
}


def loadings(widths: tuple[int, ...], seed: int, own: int = 0) -> np.ndarray:
    """Return factors × columns: first the common factors, then those that each table has of its own."""
    count = RANK + own * len(widths)
    found = np.random.default_rng([seed, 1]).standard_normal((count, sum(widths))) / np.sqrt(RANK + own)
    table = np.repeat(np.arange(len(widths)), widths)
    owner = np.repeat(np.arange(len(widths)), own)
    found[RANK:] *= owner[:, None] == table
    return found


def make(
    rows: int,
    *,
    widths: tuple[int, ...] = (60, 40),
    seed: int,
    missing: float = 0.0,
    overlap: float = 1.0,
    kept: float = 1.0,
    own: int = 0,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return tables in float32, and for each but the first the right row of every reference row, −1 for none.

    Args:
        rows: of the first table.
        widths: columns of each.
        seed: of everything.
        missing: share of entries.
        overlap: share of rows that each other table has in common with the first.
        kept: share of its rows that each other table is left with.
        own: factors that each table has beside the common ones.
    """
    rng = np.random.default_rng([seed, 2])
    shared = round(overlap * rows)
    entities = rows + (len(widths) - 1) * (rows - shared)
    owners = [np.arange(rows)]
    for number in range(1, len(widths)):
        strangers = rows + (number - 1) * (rows - shared) + np.arange(rows - shared)
        owners.append(rng.permutation(np.concatenate([np.arange(shared), strangers]))[: round(kept * rows)])
    edges = np.cumsum([0, *widths])
    turn = loadings(widths, seed, own)
    tables = [np.empty((len(owner), width), dtype=np.float32) for owner, width in zip(owners, widths, strict=True)]
    places = [np.full(entities, -1, dtype=np.int64) for _ in widths]
    for place, owner in zip(places, owners, strict=True):
        place[owner] = np.arange(len(owner))
    for part in batches(entities, BATCH):
        factors = rng.laplace(scale=np.sqrt(0.5), size=(part.stop - part.start, len(turn)))
        values = factors @ turn + NOISE * rng.standard_normal((len(factors), edges[-1]))
        for table, place, low, high in zip(tables, places, edges[:-1], edges[1:], strict=True):
            here = place[part]
            table[here[here >= 0]] = values[here >= 0, low:high]
    if missing:
        for table in tables:
            table[rng.random(table.shape) < missing] = np.nan
    return tables, [np.where(place[:rows] >= 0, place[:rows], -1) for place in places[1:]]


def known_map(
    tables: list[np.ndarray], truth: list[np.ndarray], widths: tuple[int, ...], seed: int, own: int = 0
) -> float:
    """Return the share of sampled rows of the reference that the true model would match rightly, over all tables."""
    turn, edges = loadings(widths, seed, own), np.cumsum([0, *widths])
    parts = [turn[:, low:high].T / NOISE for low, high in pairwise(edges)]
    right = []
    for number, answer in enumerate(truth, start=1):
        # What all others know about an entity is joined before the table is matched.
        others = [k for k in range(len(tables)) if k != number and (k == 0 or len(tables) > 2)]
        left = np.concatenate([parts[k] for k in others])
        stacked = [tables[k] if k == 0 else tables[k][truth[k - 1]] for k in others]
        rows = np.sort(np.random.default_rng([seed, 3]).choice(len(answer), min(20_000, len(answer)), replace=False))
        rows = rows[answer[rows] >= 0]
        means = _means(np.concatenate([table[rows] for table in stacked], axis=1), left)
        other = _means(tables[number], parts[number])
        metric = Metric.between(left.T @ left, parts[number].T @ parts[number])
        found = nearest(metric.points(other), metric.queries(means), 1)
        right.append(float((found.points[:, 0] == answer[rows]).mean()))
    return float(np.mean(right))


def _means(table: np.ndarray, weights: np.ndarray) -> np.ndarray:
    turn = (weights / NOISE) @ np.linalg.inv(np.eye(weights.shape[1]) + weights.T @ weights)
    found = np.empty((len(table), weights.shape[1]), dtype=np.float32)
    for part in batches(len(table), BATCH):
        found[part] = table[part] @ turn
    return found


def linked(rows: int, *, from_parquet: bool = False, **options: Any) -> dict[str, Any]:
    """Make tables, link them, and compare; only the linking is timed."""
    if from_parquet:
        return _linked_from_parquet(rows)
    widths = tuple(options.pop("widths", (60, 40)))
    tables, truth = make(rows, widths=widths, seed=SEED, **options)
    before = _memory()
    began = time.perf_counter()
    links = keyless.link(tables, random_state=0)
    seconds = time.perf_counter() - began
    found = _compared(links, truth) | {"seconds": seconds, "peak GB": _memory(), "of which tables and truth": before}
    if not options.get("missing"):
        found["known map"] = known_map(tables, truth, widths, SEED, options.get("own", 0))
    return found


def _linked_from_parquet(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("KEYLESS_SCRATCH")) as folder:
        # Made by another process, so that its memory is not counted.
        subprocess.run([sys.executable, __file__, "--write", folder, "--rows", str(rows)], check=True)
        began = time.perf_counter()
        links = keyless.link([Path(folder) / "a.parquet", Path(folder) / "b.parquet"], random_state=0)
        seconds, peak = time.perf_counter() - began, _memory()
        truth = [np.load(Path(folder) / "truth.npy")]
        found = _compared(links, truth) | {"seconds": seconds, "peak GB": peak}
        return found | {"known map": json.loads((Path(folder) / "known.json").read_text())}


def write(folder: Path, rows: int) -> None:
    """Write the two tables as Parquet, the right rows, and what the known map reaches."""
    tables, truth = make(rows, seed=SEED)
    write_tables(folder, tables)
    np.save(folder / "truth.npy", truth[0])
    (folder / "known.json").write_text(json.dumps(known_map(tables, truth, (60, 40), SEED)))


def write_tables(folder: Path, tables: list[np.ndarray]) -> None:
    """Write two tables as Parquet, without compression."""
    for name, table in zip(("a", "b"), tables, strict=True):
        schema = pa.schema([(f"{name}{k}", pa.float32()) for k in range(table.shape[1])])
        with pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="none") as file:
            for part in batches(len(table), 250_000):
                columns = {field: table[part, k] for k, field in enumerate(schema.names)}
                file.write_table(pa.table(columns, schema=schema))


def _compared(links: keyless.Links, truth: list[np.ndarray]) -> dict[str, Any]:
    right = matched = partners = whole = rows = 0
    for answer, found in zip(truth, links.permutations.values(), strict=True):
        whole += int((found == answer).sum())
        right += int(((found == answer) & (found >= 0)).sum())
        matched, partners = matched + int((found >= 0).sum()), partners + int((answer >= 0).sum())
        rows += len(found)
    work = links.choices["work"]
    return {
        "verdict": links.evidence.verdict,
        "right": whole / rows,
        "precision": right / max(matched, 1),
        "recall": right / max(partners, 1),
        "expected right": float(np.mean([link.probability.mean() for link in links.found.values()])),
        "distances per row": round(work["distances"] / len(truth[0])),
        "gap, nats": sum(entry["gap"] for entry in work["assignment"].values()),
    }


def rival(name: str, rows: int) -> dict[str, Any]:
    """Run another method on the same kind of tables."""
    tables, truth = make(rows, seed=SEED)
    first, second = (table.astype(np.float64) for table in tables)
    began = time.perf_counter()
    if name == "POT Gromov–Wasserstein":
        import ot  # noqa: PLC0415 — it brings much with it that others should not pay for

        squares = [ot.dist(table, table) for table in (first, second)]
        coupling = ot.gromov_wasserstein(*(square / square.max() for square in squares), max_iter=200)
        found = linear_sum_assignment(-np.asarray(coupling))[1]
    elif name == "scipy graph matching":
        kernels = [(table @ table.T) / table.shape[1] for table in (first, second)]
        found = quadratic_assignment(*kernels, options={"maximize": True, "maxiter": 30, "rng": 0})["col_ind"]
    else:
        turn = loadings((60, 40), SEED).T / NOISE
        means = [_means(table, turn[part]) for table, part in ((first, slice(0, 60)), (second, slice(60, None)))]
        metric = Metric.between(turn[:60].T @ turn[:60], turn[60:].T @ turn[60:])
        queries, points = (side.astype(np.float64) for side in (metric.queries(means[0]), metric.points(means[1])))
        cost = 0.5 * ((queries**2).sum(axis=1)[:, None] + (points**2).sum(axis=1)[None] - 2 * queries @ points.T)
        coupling = sinkhorn(cost, epsilon=1.0, max_iter=100).coupling
        found = linear_sum_assignment(-np.asarray(coupling))[1]
    return {"seconds": time.perf_counter() - began, "peak GB": _memory(), "right": float((found == truth[0]).mean())}


def _memory() -> float:
    """Return the most memory this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def alone(do: str, *, limit: float, **options: Any) -> dict[str, Any] | None:
    """Return what `linked` or `rival` gives in a fresh process; None where it takes too long or dies."""
    call = json.dumps({"do": do} | options, ensure_ascii=False)
    command = [sys.executable, __file__, "--call", call]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        print(f"{call}: more than {limit:.0f} s", flush=True)
        return None
    if done.returncode:
        print(f"{call}: {done.stderr[-800:]}", flush=True)
        return None
    print(f"{call}: {done.stdout.strip()} ({time.perf_counter() - began:.0f} s)", flush=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the page shows it."""
    found = {}
    for key, value in row.items():
        # Shares near 1 need all their digits; times and memory three.
        form = ".3g" if key in ("seconds", "peak GB", "of which tables and truth") else ".5f"
        found[key] = format(value, form) if isinstance(value, float) else value
    return found


def growth(limit: float) -> list[dict[str, Any]]:
    """Two tables of more and more rows."""
    rows = []
    for size in GROWTH:
        found = alone("linked", limit=limit, rows=size)
        if found is not None:
            rows.append(shown({"rows": size} | found))
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        power = np.log(float(last["seconds"]) / float(first["seconds"])) / np.log(last["rows"] / first["rows"])
        rows[-1]["grows as n to the"] = round(float(power), 2)
    return rows


def variants(limit: float) -> list[dict[str, Any]]:
    """A hundred thousand rows: with gaps, three tables, strangers, unequal, with factors of one table alone."""
    rows = []
    for name, options in VARIANTS.items():
        found = alone("linked", limit=limit, rows=100_000, **options)
        if found is not None:
            rows.append(shown({"tables": name} | found))
    return rows


def rivals(limit: float) -> list[dict[str, Any]]:
    """What others do at the sizes they survive."""
    rows = []
    for name, sizes in RIVALS.items():
        for size in sizes:
            found = alone("rival", limit=limit, name=name, rows=size)
            if found is None:
                rows.append({"method": name, "rows": size, "seconds": f"more than {limit:.0f}, or died"})
                break
            rows.append(shown({"method": name, "rows": size} | found))
    return rows


def ten_million(limit: float) -> list[dict[str, Any]]:
    """Ten million rows from Parquet files."""
    found = alone("linked", limit=limit, rows=10_000_000, from_parquet=True)
    return [] if found is None else [shown({"rows": 10_000_000} | found)]


CASES: dict[str, tuple[str, Callable[[float], list[dict[str, Any]]], float]] = {
    "growth": ("Two tables", growth, 600),
    "variants": ("A hundred thousand rows", variants, 900),
    "rivals": ("Others, at the sizes they survive", rivals, 300),
    "ten-million": ("Ten million rows from Parquet", ten_million, 2_700),
}


def draw(results: Path, picture: Path) -> None:
    """Draw time and memory against rows, from the stored results."""
    sections = json.loads(results.read_text())["sections"]
    lines: dict[str, list[dict[str, Any]]] = {"keyless": []}
    for title in ("Two tables", "Ten million rows from Parquet"):
        lines["keyless"] += sections.get(title, {"rows": []})["rows"]
    for row in sections.get("Others, at the sizes they survive", {"rows": []})["rows"]:
        if "right" in row:
            lines.setdefault(row["method"], []).append(row)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for ax, what in zip(figure.subplots(1, 2), ("seconds", "peak GB"), strict=True):
        for (name, rows), marker in zip(lines.items(), "osv^", strict=False):
            ax.loglog([row["rows"] for row in rows], [float(row[what]) for row in rows], marker=marker, label=name)
        ax.set_xlabel("rows of each table")
        ax.set_title({"seconds": "seconds on the clock", "peak GB": "memory, GB"}[what], loc="left")
        ax.grid(alpha=0.3)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "scale"}):
        figure.savefig(picture, metadata={"Date": None}, facecolor="white")


def main() -> None:
    """Run the chosen cases, each in processes of its own."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--out", type=Path, help="write the results here as JSON, sections of other runs kept")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["growth", "variants", "rivals"])
    parser.add_argument("--call", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write is not None:
        write(arguments.write, arguments.rows)
        return
    if arguments.call is not None:
        warnings.simplefilter("ignore")
        call = json.loads(arguments.call)
        print(json.dumps({"linked": linked, "rival": rival}[call.pop("do")](**call)))
        return
    sections = {CASES[name][0]: CASES[name][1](CASES[name][2]) for name in arguments.cases}
    report_sections(
        QUESTION,
        sections,
        settings={"columns": "60 + 40", "factors": f"{RANK}, Laplace", "noise": NOISE, "seed": SEED, "times": "clock"},
        out=arguments.out,
        order=[title for title, _, _ in CASES.values()],
    )
    if arguments.out is not None:
        draw(arguments.out, Path(__file__).parents[1] / "docs" / "benchmarks" / f"{arguments.out.stem}.svg")


if __name__ == "__main__":
    main()
