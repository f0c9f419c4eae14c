"""What every benchmark shares: one BLAS thread, repeated timing, and a record of machine, versions and commit."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

PACKAGES = ("keyless", "numpy", "scipy", "scikit-learn", "POT", "faiss-cpu")


def one_thread() -> None:
    """Hold BLAS to one thread from here on."""
    threadpool_limits(1)


def seconds(function: Callable[[], Any], *, repeats: int = 3) -> tuple[float, Any]:
    """Return the shortest of several timings, and the last result.

    Timed is the processor time of this process: with one thread it is the wall-clock time of an idle machine, and it
    stays the same on a busy one.
    """
    best, result = float("inf"), None
    for _ in range(repeats):
        began = time.process_time()
        result = function()
        best = min(best, time.process_time() - began)
    return best, result


def environment() -> dict[str, Any]:
    """Return versions, machine and commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "commit": commit.stdout.strip(),
        "versions": versions,
    }


def report(question: str, rows: list[dict[str, Any]], *, settings: dict[str, Any]) -> None:
    """Print a Markdown table; write everything as JSON where `--out` says."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments, _ = parser.parse_known_args()
    print(f"\n{question}\n\n{markdown_table(rows)}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        document = {"question": question, "settings": settings, "environment": environment(), "rows": rows}
        arguments.out.write_text(json.dumps(document, indent=1, default=_plain) + "\n")
        print(f"\nwritten to {arguments.out}")


def report_sections(
    question: str,
    sections: dict[str, list[dict[str, Any]]],
    *,
    settings: dict[str, Any],
    out: Path | None,
    order: list[str],
) -> None:
    """Print several tables; write them as JSON, in the given order, beside those the file already has."""
    for title, rows in sections.items():
        print(f"\n{title}\n\n{markdown_table(rows)}")
    if out is None:
        return
    made = environment() | {"settings": settings}
    kept = json.loads(out.read_text())["sections"] if out.exists() else {}
    merged = kept | {title: {"rows": rows, "environment": made} for title, rows in sections.items()}
    document = {"question": question, "sections": {title: merged[title] for title in order if title in merged}}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=_plain) + "\n")
    print(f"\nwritten to {out}")


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
