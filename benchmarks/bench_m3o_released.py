"""How much faster is a step of M³O as released than a vectorised transcription of it?

    python benchmarks/bench_m3o_released.py --out benchmarks/results/m3o_released.json

One run of the released rule on the paper's figure-1 setting, (100; 60, 40), by keyless and by the transcription in
`released_m3o.py`, from the same start: the same steps are timed in both, a hundred of one, then a hundred of the other.
The early steps need ten Sinkhorn iterations each, later ones hundreds. The transcription takes one SVD a step; the
script takes two.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import numpy as np

from common import one_thread, report
from keyless.datasets import make_shuffled_tables
from keyless.paper import M3O
from keyless.paper.problem import to_problem
from released_m3o import first_tables, released_steps

SEEDS = (0,)
STEPS = 8_000
TURN = 100  # steps of one, then of the other: each finds its own numbers in the processor's caches, as in a run alone
PARTS = ((0, 2_000), (2_000, 4_000), (4_000, 6_000), (6_000, 8_000), (0, 8_000))


def timed(seed: int) -> list[dict[str, Any]]:
    made = make_shuffled_tables(100, (60, 40), scale=True, observed=0.8, missing="per_table", random_state=seed)
    reference, table = made.tables.values()
    whole = np.hstack([reference, table])
    first = first_tables([table.shape], float(np.nanmean(np.abs(whole))), np.random.default_rng(seed))
    problem = to_problem(made.tables)
    solver = M3O.released()
    state = solver.init(problem, start=np.hstack([np.zeros_like(reference), *first]))
    steps = released_steps(reference, [table], first)
    own, rival, gaps = [], [], []
    for _ in range(0, STEPS, TURN):
        began = time.process_time()
        wanted = [step.objective for step in islice(steps, TURN)]
        between = time.process_time()
        found = []
        for _ in wanted:
            state = solver.step(problem, state)
            assert state.record is not None
            found.append(state.record.objective)
        ended = time.process_time()
        own += [(ended - between) / len(wanted)] * len(wanted)
        rival += [(between - began) / len(wanted)] * len(wanted)
        gaps += [abs(mine - theirs) for mine, theirs in zip(found, wanted, strict=True)]
    rows = []
    for start, stop in PARTS:
        mine, theirs = sum(islice(own, start, stop)), sum(islice(rival, start, stop))
        count = len(own[start:stop])
        if count:
            rows.append(
                {
                    "data set": seed,
                    "steps": f"{start} to {start + count}",
                    "milliseconds a step": 1e3 * mine / count,
                    "transcription": 1e3 * theirs / count,
                    "times faster": theirs / mine,
                    "largest difference of the objective": max(gaps[start:stop]),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    one_thread()
    rows = [row for seed in SEEDS for row in timed(seed)]
    report(
        "How much faster is a step of M³O as released than a vectorised transcription of it?",
        rows,
        settings={"tables": "(100; 60, 40), 80% observed", "steps": STEPS, "threads": 1},
    )


if __name__ == "__main__":
    main()
