"""Which total does M³O reach on MovieLens under the published protocol, turn by turn?

    python benchmarks/bench_movielens_published.py --out benchmarks/results/movielens_published.json

KEYLESS_DATA_HOME names a folder that holds `ml-100k/`. The published protocol chooses rank, iterate and table by test
error and goes on with each table in turn as the reference; docs/paper.md says what is wrong with that. The paper prints
0.8948 for M³O.
"""

from __future__ import annotations

from typing import Any

from common import one_thread, report
from keyless.paper.downloads import data_home
from keyless.paper.experiments.movielens import PAPER
from keyless.paper.experiments.published import completed_alone, turns
from keyless.paper.experiments.ratings import published_tables, read_ratings

RANKS = (8, 26, 71, 141)
STEPS = 240
SEEDS = (0,)


def main() -> None:
    one_thread()
    ratings = read_ratings(data_home() / "ml-100k")
    printed = PAPER["M³O"][-1]
    rows: list[dict[str, Any]] = []
    for seed in SEEDS:
        tables = published_tables(ratings, seed)
        for reference, scores in turns("M³O", tables, completed_alone(tables), ranks=RANKS, steps=STEPS):
            rows.append(
                {
                    "seed": seed,
                    "after the turn of": reference,
                    **{name: round(score, 4) for name, score in scores.items()},
                    "total less the printed": round(scores["Total"] - printed, 4),
                }
            )
            print(rows[-1], flush=True)
    report(
        "Which total does M³O reach on MovieLens under the published protocol, turn by turn?",
        rows,
        settings={"ranks of each turn": list(RANKS), "steps of a turn, at most": STEPS, "printed total": printed},
    )


if __name__ == "__main__":
    main()
