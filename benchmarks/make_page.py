"""Write docs/benchmarks.md from the stored results: python benchmarks/make_page.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

INTRODUCTION = """# Benchmarks

Each section answers one question, and begins with the command that measures it. A method and its rivals run in the same
command, with linear algebra on one thread. Times are processor seconds of one process, unless a table says otherwise.
On another machine times differ, but the ratio of two times is about the same. `python benchmarks/make_page.py` writes
this page from `benchmarks/results/*.json`.

What the columns of tables about linking mean:

* *wrong rows*: rows whose partner is not the true one; *right*: the share of rows with the true partner.
* *precision*: of the rows that got a partner, the share with the true one. *Recall*: of the rows that have a true
  partner, the share that got it. *Left alone*: of the rows without a true partner, the share that got none.
* *stated*: the mean of the probabilities that keyless states for its matches. It should be equal to the precision.
  *Calibration error*: by how much stated probabilities and shares of right matches differ on average.
* *nats above chance*: by how much the matches fit better than the best matches that a search finds in tables that have
  nothing to do with each other; 1 nat is a factor of 2.7 in likelihood, for each row.
* *FOSCTTM*: of the other rows, the share that a soft coupling ranks before the true partner. Ties count one half, and
  the mean is taken over the rows of both tables: 0 is perfect, 0.5 is chance.
* *oracle*: a method that knows the true factors or the true order, which no real method can; what it gets wrong cannot
  be got right.
* *–*: there is nothing to measure. In tables without a common entity, for example, no recall exists.
"""


def page() -> str:
    """Return the page as it should stand."""
    parts = [INTRODUCTION]
    for path in sorted(RESULTS.glob("*.json")):
        result: dict[str, Any] = json.loads(path.read_text())
        command = f"    python benchmarks/bench_{path.stem}.py --out benchmarks/results/{path.name}"
        parts.append(f"## {result['question']}\n\n{command}\n")
        if (PAGE.parent / "benchmarks" / f"{path.stem}.svg").exists():
            parts.append(f"![{result['question']}](benchmarks/{path.stem}.svg)\n")
        if "sections" in result:
            for title, section in result["sections"].items():
                made = section["environment"]
                parts.append(
                    f"### {title}\n\n{markdown_table(section['rows'])}\n\n{_circumstances(made['settings'], made)}\n"
                )
        else:
            parts.append(
                f"{markdown_table(result['rows'])}\n\n{_circumstances(result['settings'], result['environment'])}\n"
            )
    return "\n".join(parts)


def _circumstances(settings: dict[str, Any], environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    chosen = "; ".join(f"{name}: {value}" for name, value in settings.items())
    return (
        f"Settings: {chosen}. Python {environment['python']} on {environment['machine']}, "
        f"{environment['cores']} cores; {versions}; commit {environment['commit']}."
    )


if __name__ == "__main__":
    PAGE.write_text(page())
