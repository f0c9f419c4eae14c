"""How many answers does it take until tables are linked: to the rows that are asked for, or to rows drawn at random?

    python benchmarks/bench_questions.py --out benchmarks/results/questions.json      # 20 minutes
    python benchmarks/bench_questions.py --pairs "wheel of four parts"                      # some of it

Ten pairs of tables that are not linked without help. Answers are given by the truth, a few at a time: to the rows that
`links.questions` asks for, or to rows drawn at random among those that have a partner. After each time
`links.answer` links again. Counted are the answers until the verdict is `linked` and more than half of the matches are
right. Real tables are pairs of the folder that KEYLESS_DATA_HOME names. Rows that have no partner are not asked for.
With `--out` the pairs that ran replace those of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import keyless
from common import one_thread, report

QUESTION = "Answers until tables are linked: rows asked for, and rows at random"

SEED = 9000
"""Seeds from here on are used for nothing but this report."""

STEPS = (1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 30)
"""Numbers of answers after which the tables are linked again."""

MOST_DRAWN = 5
"""Pairs of tables that are drawn until one is not linked without help."""

RANDOM_DRAWS = 2
"""How often rows are drawn at random."""

QUIET = 0.25
"""How strong common factors are in rows in which they are hardly at work."""

Pair = tuple[dict[str, Any], Any]
"""Two tables, and the row of the second that belongs to each row of the first, −1 for none."""


def shuffled(left: Any, right: Any, rng: np.random.Generator, *, gone: float = 0.0) -> Pair:
    """Return two tables, rows of the second shuffled and a share of the rows taken away from either."""
    order, lost = rng.permutation(len(left)), int(gone * len(left))
    first, second = np.sort(order[lost:]), rng.permutation(np.concatenate([order[:lost], order[2 * lost :]]))
    place = np.full(len(left), -1)
    place[second] = np.arange(len(second))
    return {"a": left[first], "b": right[second]}, place[first]


def factors(
    seed: int,
    *,
    rows: int = 100,
    shared: int,
    private: int = 0,
    strength: float = 1.5,
    noise: float,
    columns: tuple[int, int] = (20, 18),
    law: str = "normal",
    loudness: float = 0.0,
    active: float = 1.0,
    gone: float = 0.0,
) -> Pair:
    """Return tables of factors that both have, and of factors that either has for itself.

    Args:
        seed: of all random numbers.
        rows: of both tables before any is taken away.
        shared: factors that both tables have.
        private: factors that each table has for itself.
        strength: of private factors, as a multiple of that of the others.
        noise: of every entry, as a multiple of the standard deviation that the common factors give it.
        columns: of the two tables.
        law: of the common factors: `"normal"`; `"laplace"`; `"sparse"`, where four of five are 0.
        loudness: standard deviation of the logarithm of a number that all factors of a row are multiplied by.
        active: share of the rows in which common factors are at work; in the others they are a quarter as strong.
        gone: share of the rows that is taken away from either table.
    """
    rng = np.random.default_rng(seed)
    loud = np.exp(loudness * rng.normal(size=(rows, 1)))
    common = rng.laplace(scale=0.5**0.5, size=(rows, shared)) if law == "laplace" else rng.normal(size=(rows, shared))
    if law == "sparse":
        common *= 5**0.5 * (rng.random((rows, shared)) < 0.2)
    if active < 1:
        common *= np.where(rng.random((rows, 1)) < active, 1.0, QUIET)
        common /= common.std()
    tables = []
    for width in columns:
        table = loud * common @ rng.normal(size=(shared, width))
        table += strength * (loud * rng.normal(size=(rows, private))) @ rng.normal(size=(private, width))
        tables.append(table + noise * np.sqrt(shared) * rng.normal(size=table.shape))
    return shuffled(*tables, rng, gone=gone)


def seen_twice(points: Any, rng: np.random.Generator) -> Pair:
    """Return two tables of columns that are sums of the same few numbers, with little noise."""
    tables = (points @ rng.normal(size=(points.shape[1], width)) for width in (12, 10))
    return shuffled(*(table + 0.02 * rng.normal(size=table.shape) for table in tables), rng)


def wheel(seed: int) -> Pair:
    """Return tables whose rows lie on a wheel of four equal parts."""
    rng = np.random.default_rng(seed)
    angle, radius, height = rng.uniform(0, np.pi / 2, 25), rng.uniform(0.3, 2, 25), rng.normal(size=25)
    turned = [angle + quarter * np.pi / 2 for quarter in range(4)]
    parts = [np.column_stack([radius * np.cos(turn), radius * np.sin(turn), height]) for turn in turned]
    return seen_twice(np.concatenate(parts), rng)


def answers_needed(links: Any, truth: Any, asked: Callable[[Any, int], list[int]]) -> int | None:
    """Return how many answers it takes until the tables are linked, rightly; None where the most are not enough.

    Args:
        links: the link without help.
        truth: the row that belongs to each reference row.
        asked: given the link so far and a number, the rows whose partner is told next.
    """
    for before, after in pairwise((0, *STEPS)):
        rows = asked(links, after - before)
        links = links.answer([(row, int(truth[row])) for row in rows])
        if is_linked(links, truth):
            return after
    return None


def is_linked(links: Any, truth: Any) -> bool:
    """Tell whether tables are linked and more than half of the matches are right."""
    matches = links.permutations["b"]
    return bool(links.evidence.verdict == "linked" and np.mean(matches[matches >= 0] == truth[matches >= 0]) > 0.5)


def by_questions(truth: Any) -> Callable[[Any, int], list[int]]:
    """Return a way to choose rows: those that are asked for, as far as they have a partner."""
    nobody = np.flatnonzero(truth < 0).tolist()
    return lambda links, count: [question.row for question in links.questions(count, skip=nobody)]


def by_chance(truth: Any, seed: int) -> Callable[[Any, int], list[int]]:
    """Return a way to choose rows: at random among those that have a partner."""
    order: Iterator[int] = iter(np.random.default_rng(seed).permutation(np.flatnonzero(truth >= 0)).tolist())
    return lambda _links, count: [next(order) for _ in range(count)]


def measured(name: str, seed: int) -> dict[str, Any] | None:
    """Return the answers that one pair of tables needs, the first from a seed on that is not linked without help.

    None where there is no such pair.
    """
    for drawn in range(seed, seed + MOST_DRAWN):
        pair = PAIRS[name](drawn)
        if pair is None:
            return None
        first = keyless.link(pair[0], random_state=0)
        if first.evidence.verdict != "linked":
            break
    else:
        return None
    found = [answers_needed(first, pair[1], by_questions(pair[1]))]
    found += [answers_needed(first, pair[1], by_chance(pair[1], seed + draw)) for draw in range(RANDOM_DRAWS)]
    counts = [STEPS[-1] if one is None else one for one in found]
    row = {
        "tables": name,
        "rows": len(pair[1]),
        "without help": first.evidence.verdict,
        "kind": first.questions(1)[0].kind,
        "asked for": counts[0] if found[0] is not None else f"more than {STEPS[-1]}",
        "at random": ", ".join(str(one) if one is not None else f"more than {STEPS[-1]}" for one in found[1:]),
        "ratio": counts[0] / float(np.mean(counts[1:])),
    }
    print(row, flush=True)
    return row


def real_pair(name: str, seed: int, *, rows: int = 145, gone: float) -> Pair | None:
    """Return some rows of a pair of the data folder; None where there is none."""
    home = os.environ.get("KEYLESS_DATA_HOME")
    path = Path(home or "", "pairs", f"{name}.npz")
    if home is None or not path.exists():
        return None
    rng = np.random.default_rng(seed)
    with np.load(path) as stored:
        some = rng.permutation(len(stored["X"]))[:rows]
        return shuffled(stored["X"][some].astype(float), stored["Y"][some].astype(float), rng, gone=gone)


PAIRS: dict[str, Callable[[int], Pair | None]] = {
    "12 factors, noisy": lambda seed: factors(seed, shared=12, noise=0.5, columns=(30, 30)),
    "6 factors, 3 stronger ones in each": lambda seed: factors(seed, shared=6, private=3, noise=0.3),
    "8 Laplace factors, 4 stronger ones in each": lambda seed: factors(
        seed, shared=8, private=4, noise=0.3, law="laplace"
    ),
    "12 Laplace factors, 8 stronger ones in each": lambda seed: factors(
        seed, rows=150, shared=12, private=8, noise=0.3, columns=(34, 30), law="laplace"
    ),
    "8 factors, 4 stronger ones in each, loud and quiet rows": lambda seed: factors(
        seed, rows=150, shared=8, private=4, noise=0.3, columns=(24, 22), loudness=0.6
    ),
    "6 factors at work in a fifth of the rows, 10 stronger ones in each": lambda seed: factors(
        seed, rows=150, shared=6, private=10, strength=3.0, noise=0.05, columns=(30, 28), active=0.2
    ),
    "8 factors at work in a seventh of the rows, 10 stronger ones in each": lambda seed: factors(
        seed, rows=150, shared=8, private=10, strength=3.0, noise=0.05, columns=(32, 30), active=0.15
    ),
    "6 factors at work in a tenth of the rows, 12 stronger ones in each": lambda seed: factors(
        seed, rows=200, shared=6, private=12, strength=3.0, noise=0.05, columns=(32, 28), active=0.1
    ),
    "wheel of four parts": wheel,
    "molecules, a quarter of the rows gone": lambda seed: real_pair("AquaticTox_moe2D_QuickProp", seed, gone=0.25),
}
"""Pairs of tables by their name, each drawn from a seed; None where they are not there."""


def main() -> None:
    """Measure all pairs of tables, or some."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    parser.add_argument("--pairs", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    one_thread()
    warnings.simplefilter("ignore")
    found = [measured(name, arguments.seed + 10 * k) for k, name in enumerate(PAIRS) if name in arguments.pairs]
    rows = [row for row in found if row is not None]
    if arguments.out is not None and arguments.out.exists():
        kept = json.loads(arguments.out.read_text())["rows"]
        rows += [row for row in kept if row["tables"] in PAIRS and row["tables"] not in arguments.pairs]
        rows.sort(key=lambda row: list(PAIRS).index(row["tables"]))
    ratio = float(np.median([row["ratio"] for row in rows]))
    report(
        QUESTION,
        rows,
        settings={
            "median ratio": round(ratio, 2),
            "ratio of all answers": round(_ratio_of_all(rows), 2),
            "answers": f"up to {STEPS[-1]}; where more are needed, as many are counted",
            "rows at random": f"drawn {RANDOM_DRAWS} times",
            "seed": arguments.seed,
        },
    )
    if arguments.out is not None:
        draw(rows, Path(__file__).parents[1] / "docs" / "benchmarks" / f"{arguments.out.stem}.svg")


def _ratio_of_all(rows: list[dict[str, Any]]) -> float:
    """Return the answers to rows that are asked for in all pairs together, as a multiple of those at random."""
    at_random = [np.mean([_count(one) for one in row["at random"].split(", ")]) for row in rows]
    return float(sum(_count(row["asked for"]) for row in rows) / np.sum(at_random))


def draw(rows: list[dict[str, Any]], picture: Path) -> None:
    """Draw the answers needed, pair by pair."""
    figure = Figure(figsize=(9, 0.4 * len(rows) + 1.2), layout="constrained")
    ax = figure.subplots()
    for place, row in enumerate(reversed(rows)):
        drawn = [_count(one) for one in row["at random"].split(", ")]
        ax.plot([_count(row["asked for"]), max(drawn)], [place, place], color="0.85", zorder=0)
        ax.plot(drawn, [place] * len(drawn), "o", color="0.55", label="rows at random" if place == 0 else None)
        ax.plot(_count(row["asked for"]), place, "D", color="C0", label="rows asked for" if place == 0 else None)
    ax.set_yticks(range(len(rows)), [row["tables"] for row in reversed(rows)])
    ax.set_xlabel(f"answers until linked ({STEPS[-1]}: or more)")
    ax.grid(alpha=0.3, axis="x")
    ax.legend(loc="lower right", fontsize=8)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "questions"}):
        figure.savefig(picture, metadata={"Date": None}, facecolor="white")


def _count(shown: Any) -> int:
    return int(str(shown).removeprefix("more than "))


if __name__ == "__main__":
    main()
