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
