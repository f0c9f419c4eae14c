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

Every table here comes from a command in this repository, with its rival in the same run on one BLAS thread. Times are
processor seconds of one process; ratios are what carries over to other machines. This page is made from
`benchmarks/results/*.json` by `python benchmarks/make_page.py`.
"""


def page() -> str:
    """Return the page as it should stand."""
    parts = [INTRODUCTION]
    for path in sorted(RESULTS.glob("*.json")):
        result: dict[str, Any] = json.loads(path.read_text())
        environment = result["environment"]
        versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
        settings = "; ".join(f"{name}: {value}" for name, value in result["settings"].items())
        parts.append(
            f"## {result['question']}\n\n"
            f"    python benchmarks/bench_{path.stem}.py --out benchmarks/results/{path.name}\n\n"
            f"{markdown_table(result['rows'])}\n\n"
            f"Settings: {settings}. Python {environment['python']} on {environment['machine']}, "
            f"{environment['cores']} cores; {versions}; commit {environment['commit']}.\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
