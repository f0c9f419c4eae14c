"""Do runs of M³O end on a graphics card where they end on the processor?

    keyless reproduce table1 --seeds 2 --out reproduced/processor      # 30 runs of M³O, 20 minutes of one core
    python benchmarks/bench_m3o_card.py --out benchmarks/results/m3o_card.json

`m3o_on_card.py check` compares the first 300 steps. This compares runs from beginning to end: those that
`m3o_on_card.py run` wrote to `--card`, with the same runs by keyless on the processor, as `table1.json` holds them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import report
from keyless.paper.experiments.table1 import cell_key
from m3o_card_problems import finished, judged, planned

STORED = (Path("reproduced/processor/table1.json"), Path("docs/paper/table1.json"))
RULES = ("released", "printed")


def on_processor(files: list[Path]) -> dict[str, dict[str, Any]]:
    """Return runs of M³O by keyless on the processor, by key."""
    found = {}
    for path in files:
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            if "steps" in row and "device" not in row:
                found[cell_key(row["method"], row["setting"], row["data set"], row["start"])] = row
    return found


def compared(rule: str, *, settled: bool, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Return a line about the runs of one rule: on the card, and on the processor."""
    return {
        "rule": rule if settled else f"{rule}, rotations did not settle in some steps",
        "runs": len(pairs),
        "same wrong rows": sum(card["wrong"] == own["wrong"] for card, own in pairs),
        "same number of steps": sum(card["steps"] == own["steps"] for card, own in pairs),
        "steps on the processor": f"{min(own['steps'] for _, own in pairs)} to {max(own['steps'] for _, own in pairs)}",
        "steps, largest difference": max(abs(card["steps"] - own["steps"]) for card, own in pairs),
        "objective, largest relative difference": max(
            abs(card["objective"] - own["objective"]) / abs(own["objective"]) for card, own in pairs
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", type=Path, default=Path("reproduced/card/results"), help="what m3o_on_card.py wrote")
    parser.add_argument("--processor", type=Path, nargs="+", default=STORED, help="table1.json of keyless reproduce")
    arguments, _ = parser.parse_known_args()
    own = on_processor(arguments.processor)
    runs = {run["key"]: run for run in planned(10)}
    cards, groups = set(), {}
    for key, result, estimate in finished(arguments.card):
        if key in own:
            cards.add(result["device"])
            group = key.split(",")[0], not result["troubles"]
            groups.setdefault(group, []).append((judged(runs[key], result, estimate), own[key]))
    rows = [
        compared(rule, settled=settled, pairs=groups[rule, settled])
        for rule in RULES
        for settled in (True, False)
        if (rule, settled) in groups
    ]
    report(
        "Do runs of M³O end on a graphics card where they end on the processor?",
        rows,
        settings={"card": ", ".join(sorted(cards)), "runs on the card": sum(1 for _ in finished(arguments.card))},
    )


if __name__ == "__main__":
    main()
