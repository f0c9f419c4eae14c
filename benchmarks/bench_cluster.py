"""What does a cluster cost, what moves between its machines, and how far does one machine go out of core?

    python benchmarks/bench_cluster.py --out benchmarks/results/cluster.json             # up to three million rows
    python benchmarks/bench_cluster.py --cases thirty-million --out …                    # half an hour, 30 GB of disk

Tables are those of bench_scale: 60 and 40 columns of 20 Laplace factors, float32, as folders of Parquet files of a
quarter of a million rows. Every link runs in a process of its own; memory is the most that it held itself (`RssAnon`,
ten times a second): pages of files that are mapped are not counted, since the system takes them back when it needs to.
The cluster is two worker processes of one thread each on this machine, which the search without a cluster also has.
Where other work runs beside it, processor seconds say more than those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import keyless
from bench_scale import NOISE, RANK, SEED, loadings
from common import report_sections
from keyless.model import shards
from keyless.pairs import nearest_rows

QUESTION = "A cluster, and one machine out of core"
PART = 250_000
WIDTHS = (60, 40)


def write(folder: Path, rows: int) -> None:
    """Write two folders of Parquet files, a part at a time, so that no more than one part is ever held.

    Rows of the second table are those of the first, moved by a permutation that needs no list: i → (i·step + 1) mod n.
    """
    turn = loadings(WIDTHS, SEED)
    step = next(s for s in range(int(rows * 0.618) | 1, rows + 2) if np.gcd(s, rows) == 1)
    inverse = pow(int(step), -1, rows)
    for name, low, high in (("a", 0, WIDTHS[0]), ("b", WIDTHS[0], sum(WIDTHS))):
        (folder / name).mkdir()
        fields = [f"{name}{k}" for k in range(high - low)]
        for number, start in enumerate(range(0, rows, PART)):
            place = np.arange(start, min(start + PART, rows))
            entity = place if name == "a" else (place - 1) * inverse % rows
            values = _factors(entity) @ turn[:, low:high]
            values += NOISE * np.random.default_rng([SEED, 5, low, number]).standard_normal(values.shape)
            columns = {field: values[:, k].astype(np.float32) for k, field in enumerate(fields)}
            pq.write_table(pa.table(columns), folder / name / f"part.{number}.parquet", compression="none")
    (folder / "step.json").write_text(json.dumps(int(step)))


def _factors(entity: np.ndarray) -> np.ndarray:
    """Return Laplace factors of entities by their numbers alone, from a hash of both."""
    found = np.empty((len(entity), RANK), dtype=np.float64)
    for k in range(RANK):
        word = entity.astype(np.uint64) * np.uint64(RANK) + np.uint64(k + 1)
        for shift, times in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            word = (word + np.uint64(0x9E3779B97F4A7C15)) if shift == 30 else word
            word = (word ^ (word >> np.uint64(shift))) * np.uint64(times)
        uniform = ((word >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53 - 0.5
        found[:, k] = -np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) * np.sqrt(0.5)
    return found


class _Memory:
    """The most memory of its own that this process held."""

    def __init__(self) -> None:
        self.most, self._end = 0.0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            self.most = max(self.most, *(int(x.split()[1]) / 1e6 for x in lines if x.startswith("RssAnon")))

    def end(self) -> float:
        self._end.set()
        return self.most


def linked(folder: Path, *, workers: int = 0, shard: int | None = None) -> dict[str, Any]:
    """Link two folders, with a cluster of so many workers or without, and compare with the truth.

    Args:
        folder: holds both.
        workers: how many.
        shard: rows of shards and cells; None: as always. Of fewer rows there is more to do beside the search itself.
    """
    if shard is not None:
        shards.SHARD = nearest_rows.CELL = shard
    stages: dict[str, float] = {}
    began, busy = time.perf_counter(), time.process_time()
    last = began

    def watch(stage: str, *_: Any) -> None:
        nonlocal last
        now = time.perf_counter()
        stages[stage] = stages.get(stage, 0.0) + now - last
        last = now
        print(
            f"{stage}: {stages[stage]:.0f} s, {time.process_time() - busy:.0f} s of processor",
            file=sys.stderr,
            flush=True,
        )

    memory = _Memory()
    moved: dict[str, Any] = {}
    if workers:
        from dask.distributed import Client, LocalCluster  # noqa: PLC0415 — an extra

        with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as made, Client(made) as one:
            began = last = time.perf_counter()
            links = keyless.link(folder / "a", folder / "b", random_state=0, callback=watch)
            seconds = time.perf_counter() - began
            sent = one.run(lambda dask_worker: sum(e["total"] for e in dask_worker.transfer_outgoing_log))
            spent = sum(one.run(time.process_time).values())
            moved = {
                "processor seconds of workers": round(spent, 1),
                "MB from worker to worker or to this process": round(sum(sent.values()) / 1e6),
            }
    else:
        links = keyless.link(folder / "a", folder / "b", random_state=0, callback=watch)
        seconds = time.perf_counter() - began
    stages["last steps"] = time.perf_counter() - last
    found, rows = links.permutations["b"], len(links.permutations["b"])
    step = json.loads((folder / "step.json").read_text())
    right = sum(
        int((found[s : s + PART] == (np.arange(s, min(s + PART, rows)) * step + 1) % rows).sum())
        for s in range(0, rows, PART)
    )
    return {
        "rows": rows,
        "workers": workers or "none",
        "rows of a shard": shards.SHARD,
        "seconds": f"{seconds:.0f}",
        "processor seconds of this process": f"{time.process_time() - busy:.0f}",
        "GB held by this process": round(memory.end(), 2),
        **moved,
        "right": f"{right / rows:.5f}",
        "verdict": links.evidence.verdict,
        "expected right": f"{links.found['b'].probability.mean():.5f}",
        "distances per row": round(links.choices["work"]["distances"] / rows),
        "seconds of stages": ", ".join(f"{name} {spent:.0f}" for name, spent in stages.items()),
    }


def alone(folder: Path, **options: Any) -> dict[str, Any]:
    """Return what `linked` gives in a fresh process."""
    call = json.dumps({"folder": str(folder)} | options)
    done = subprocess.run([sys.executable, __file__, "--call", call], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    print(done.stdout.strip(), flush=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(sizes: tuple[int, ...], workers: tuple[int, ...], **options: Any) -> list[dict[str, Any]]:
    """Link tables of several sizes, with clusters of several sizes."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=os.environ.get("KEYLESS_SCRATCH")) as folder:
            subprocess.run([sys.executable, __file__, "--write", folder, "--rows", str(size)], check=True)
            rows += [alone(Path(folder), workers=count, **options) for count in workers]
    return rows


CASES = {
    "growth": ("Growth on one machine", lambda: measured((300_000, 1_000_000, 3_000_000), (0,))),
    "overhead": ("Two workers against none", lambda: measured((1_000_000,), (0, 2), shard=2**17)),
    "thirty-million": ("One and thirty million rows on one machine", lambda: measured((1_000_000, 30_000_000), (0,))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["growth", "overhead"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--call")
    given = parser.parse_args()
    if given.write is not None:
        write(given.write, given.rows)
    elif given.call is not None:
        options = json.loads(given.call)
        print(json.dumps(linked(Path(options.pop("folder")), **options), ensure_ascii=False))
    else:
        report_sections(
            QUESTION,
            {CASES[name][0]: CASES[name][1]() for name in given.cases},
            settings={"seed": SEED, "columns": WIDTHS, "rank": RANK, "noise": NOISE},
            out=given.out,
            order=[title for title, _ in CASES.values()],
        )


if __name__ == "__main__":
    main()
