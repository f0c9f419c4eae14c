"""Can the verdict be trusted? Hundreds of pairs of tables that can, and that cannot, be linked.

    python benchmarks/bench_verdict.py --out benchmarks/results/verdict.json                  # everything, hours
    python benchmarks/bench_verdict.py --cases unrelated --count 20 --cells cells             # some of it

* unrelated: tables of other entities of the same population, synthetic ones of many kinds and halves of real tables.
  None may be called linked, and the mean stated probability must be at most twice the share right.
* linkable: true partners share 1 to 3 times log n nats.
* stable: the same tables with ten seeds.
* selected: one table leaves out the low quarter of a trait, the other the high quarter.
* real: both parts of a real table, of all rows or with some of them gone.

Every pair is kept as one JSON line in the folder of cells; a run that was stopped goes on there. Pairs are numbered,
and the number is the seed; numbers of this report are used for nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

import keyless
from common import one_thread, report_sections
from verdict_pairs import MANY_ROWS, Pair, real_partners, real_strangers, selected, synthetic

SEED = 910_000
"""Seeds from here on are used for nothing but this report."""

MULTIPLES = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0)
"""Information of linkable pairs, in multiples of log n; they take turns."""

BINS = np.linspace(0, 1, 11)


def unrelated(number: int) -> Pair:
    if number % 2:
        return real_strangers(number // 2, first_seed=SEED + 200_000)
    return synthetic(number // 2, related=False, nats=2.0, first_seed=SEED)


def linkable(number: int) -> Pair:
    return synthetic(number, related=True, nats=MULTIPLES[number % len(MULTIPLES)], first_seed=SEED + 10_000)


def stable(number: int) -> Pair:
    """Ten seeds of every pair: pairs as clear and as unclear as the others."""
    pair = number // 10
    return unrelated(1000 + pair) if pair % 4 == 0 else linkable(1000 + pair)


CASES: dict[str, tuple[Callable[[int], Pair], int]] = {
    "unrelated": (unrelated, 300),
    "linkable": (linkable, 300),
    "stable": (stable, 200),
    "selected": (partial(selected, first_seed=SEED + 50_000), 50),
    "real": (partial(real_partners, first_seed=SEED + 60_000), 40),
}


def judged(case: str, number: int, folder: Path) -> dict[str, Any]:
    """Return the outcome of one pair, from its file where there is one."""
    cell = folder / f"{case}-{number}.json"
    if cell.exists():
        return dict(json.loads(cell.read_text()))
    one_thread()
    pair = CASES[case][0](number)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        links = keyless.link(pair.tables, random_state=number, callback=lambda *_: None)
    spent = time.process_time() - began
    found, evidence = links.found["b"], links.evidence
    match = found.permutation >= 0
    right = found.permutation == pair.truth
    common = pair.truth >= 0
    outcome = {
        "kind": pair.kind,
        "multiple": pair.nats,
        "rows": [len(found.permutation), int(found.coupling.shape[1])],
        "verdict": evidence.verdict,
        "doubt": evidence.doubt,
        "score": evidence.score,
        "excess": evidence.excess,
        "needed": evidence.needed,
        "matched": int(match.sum()),
        "right": int(right[match].sum()),
        "recall": float(right[common].mean()) if common.any() else None,
        "stated": float(found.probability[match].sum()),
        "interval": [found.expected_right.low, found.expected_right.high],
        "bins": _bins(found.probability[match], right[match]),
        "alone bins": _bins(found.probability[~match], right[~match]),
        "processor seconds": round(spent, 2),
    }
    cell.write_text(json.dumps(outcome))
    return outcome


def _bins(stated: Any, right: Any) -> list[list[float]]:
    """Return per bin of stated probability how many rows there are, their stated sum, and how many are right."""
    place = np.clip(np.digitize(stated, BINS) - 1, 0, len(BINS) - 2)
    return [
        [float(np.sum(place == k)), float(np.sum(stated[place == k])), float(np.sum(right[place == k]))]
        for k in range(len(BINS) - 1)
    ]


def _calibration(outcomes: Iterable[dict[str, Any]], bins: str) -> tuple[int, float, float, float]:
    """Return rows, stated and right share, and the mean distance of the two over bins, all pairs counted alike."""
    total = np.zeros((len(BINS) - 1, 3))
    for outcome in outcomes:
        rows = np.array(outcome[bins])
        total += rows / max(rows[:, 0].sum(), 1.0)
    count = max(total[:, 0].sum(), 1e-12)
    share = total.sum(axis=0) / count
    rows = int(sum(np.array(outcome[bins])[:, 0].sum() for outcome in outcomes))
    return rows, float(share[1]), float(share[2]), float(np.abs(total[:, 1] - total[:, 2]).sum() / count)


def _share(outcomes: list[dict[str, Any]], told: Callable[[dict[str, Any]], bool]) -> float:
    return float(np.mean([told(outcome) for outcome in outcomes]))


def _inside(outcome: dict[str, Any], *, high: bool) -> bool:
    """Tell whether the right matches are no fewer, and no more, than the interval of the expected number has."""
    ends = outcome["interval"]
    return bool(np.floor(ends[0]) <= outcome["right"] and (not high or outcome["right"] <= np.ceil(ends[1])))


def _verdicts(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    count = {
        verdict: sum(o["verdict"] == verdict for o in outcomes) for verdict in ("linked", "uncertain", "unlinkable")
    }
    seconds = [o["processor seconds"] for o in outcomes]
    return {"pairs": len(outcomes), **count, "median seconds": float(np.median(seconds)), "most seconds": max(seconds)}


def _is_synthetic(outcome: dict[str, Any]) -> bool:
    """Tell whether tables of other entities were drawn; kinds of these have two parts."""
    return ", " in outcome["kind"]


def _of_others(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for outcome in every:
        large = max(outcome["rows"]) >= MANY_ROWS
        kind = outcome["kind"].split(", ")[1] if _is_synthetic(outcome) else "real: " + outcome["kind"]
        kinds.setdefault("many rows" if large else kind, []).append(outcome)
    rows = [{"kind": kind, **_verdicts(outcomes)} for kind, outcomes in kinds.items()]
    chance = float(np.mean([1 / o["rows"][1] for o in every]))
    return [*rows, {"kind": "all", **_verdicts(every), **_quality(every), "chance": chance}]


def _quality(outcomes: list[dict[str, Any]]) -> dict[str, float]:
    matched = max(sum(o["matched"] for o in outcomes), 1)
    return {
        "stated": sum(o["stated"] for o in outcomes) / matched,
        "right": sum(o["right"] for o in outcomes) / matched,
    }


def _recall(outcomes: list[dict[str, Any]]) -> float:
    return float(np.mean([o["recall"] for o in outcomes]))


def _by_information(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for multiple, own in product(MULTIPLES, (False, True)):
        some = [o for o in every if o["multiple"] == multiple and ("own traits" in o["kind"]) == own]
        if some:
            rows.append({"nats / log n": multiple, "own traits": own, **_verdicts(some), "recall": _recall(some)})
    return rows


def _calibrated(pools: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    for tables, verdict in product(pools, ("linked", "uncertain")):
        some = [o for o in pools[tables] if o["verdict"] == verdict]
        for what, bins in (("matches", "bins"), ("no partner", "alone bins")):
            some_rows = [o for o in some if np.array(o[bins])[:, 0].sum() > 0]
            if not some_rows:
                continue
            count, stated, right, error = _calibration(some_rows, bins)
            row = {"tables": tables, "verdict": verdict, "answers": what, "pairs": len(some_rows), "rows": count}
            row |= {"stated": stated, "right": right, "calibration error": error}
            if what == "matches" and verdict == "linked":
                row["right within the interval"] = _share(some, lambda o: _inside(o, high=True))
                row["right above its lower end"] = _share(some, lambda o: _inside(o, high=False))
            rows.append(row)
    return rows


def _of_real_tables(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for kind in dict.fromkeys(o["kind"] for o in every):
        some = [o for o in every if o["kind"] == kind]
        rows.append({"tables": kind, **_verdicts(some), "recall": _recall(some), **_quality(some)})
    return rows


def _of_seeds(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_pair = [every[k : k + 10] for k in range(0, len(every), 10)]
    equal = [max(sum(o["verdict"] == v["verdict"] for o in some) for v in some) / len(some) for some in by_pair]
    return [{"pairs": len(by_pair), "mean share of the commonest verdict": float(np.mean(equal)), "least": min(equal)}]


def _of_selected(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    wrong = sum(o["verdict"] == "linked" and o["right"] < 0.5 * o["matched"] for o in every)
    return [{**_verdicts(every), "wrong and linked": wrong, "recall": _recall(every)}]


TITLES: tuple[tuple[str, str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]], ...] = (
    ("unrelated", "Tables of other entities", _of_others),
    ("linkable", "Tables of the same entities", _by_information),
    ("real", "Real tables, rows gone", _of_real_tables),
    ("stable", "The same tables with ten seeds", _of_seeds),
    ("selected", "Tables that leave out opposite quarters of a trait", _of_selected),
)
"""Cases, the titles of their tables, and what makes the tables."""

CALIBRATION = "Stated probability against share right"


def sections(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of the report."""
    told: dict[str, list[dict[str, Any]]] = {}
    for case, title, rows_of in TITLES:
        if case in found:
            told[title] = rows_of(found[case])
    # What is stated must hold wherever it is: tables of other entities are among those that are called uncertain.
    others = found.get("unrelated", [])
    pools = {
        "synthetic": found.get("linkable", []) + found.get("selected", []) + [o for o in others if _is_synthetic(o)],
        "real": found.get("real", []) + [o for o in others if not _is_synthetic(o)],
    }
    if any(pools.values()):
        told[CALIBRATION] = _calibrated(pools)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--count", type=int, help="pairs of each case instead of all")
    parser.add_argument("--cells", type=Path, default=Path("cells"), help="folder of finished pairs")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.cells.mkdir(parents=True, exist_ok=True)
    found = {}
    for case in arguments.cases:
        count = min(arguments.count or CASES[case][1], CASES[case][1])
        work = (delayed(judged)(case, number, arguments.cells) for number in range(count))
        found[case] = Parallel(n_jobs=arguments.jobs)(work)
    told = sections(found)
    report_sections(
        "Can the verdict be trusted, on tables that can be linked and on those that cannot?",
        told,
        settings={"first seed": SEED, "pairs": {case: len(outcomes) for case, outcomes in found.items()}},
        out=arguments.out,
        order=[title for _, title, _ in TITLES] + [CALIBRATION],
    )


if __name__ == "__main__":
    main()
