"""Does SoftImpute complete a million rows in the memory of a laptop, and better than an SVD of the zero-filled table?

Ratings of 5,000 columns by 10,000, 100,000 and 1,000,000 rows, 50 a row on average: a rank-20 signal of unit variance
with slowly falling singular values, column levels, noise; activity of rows and popularity of columns are log-normal. A
random 2% of the entries are held out and only ever predicted. All methods have rank 20; each runs in a process of its
own, on one BLAS thread, and reports its processor time and the largest memory it ever held.

- `SoftImpute`: the penalty is chosen on 10,000 of the rows by validation entries among their training entries, then
  multiplied by the root of the ratio of rows. That rule, fixed in advance, is exact for a table of repeated rows.
- scikit-learn's `TruncatedSVD`, missing entries zero; and the same after column means are taken off, which is fairer.

    python benchmarks/bench_large_completion.py --out benchmarks/results/large_completion.json

About seven minutes of an idle core, nearly all for the million rows; `--rows 10000` is a first look.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from common import one_thread, report

SIZES = (10_000, 100_000, 1_000_000)
COLUMNS, PER_ROW, RANK, NOISE, HELD_OUT, SEED = 5_000, 50, 20, 0.5, 0.02, 1
CHOOSING = 10_000
"""Rows to choose the penalty on."""
STEP = 10_000
"""Rows drawn at a time."""
ARRAYS = ("data", "indices", "indptr", "test_rows", "test_columns", "test_values")


def make(rows: int) -> dict[str, Any]:
    """Draw the ratings: the training part as CSR arrays, the test part as a list of entries."""
    generator = np.random.default_rng([SEED, rows])
    popularity = np.cumsum(generator.lognormal(0.0, 1.0, COLUMNS))
    level = 3.5 + 0.5 * generator.standard_normal(COLUMNS)
    scale = np.arange(1, RANK + 1) ** -0.5
    right = generator.standard_normal((COLUMNS, RANK)) * scale / np.linalg.norm(scale)
    model = (popularity, level, right)
    parts = [draw(generator, model, first, min(STEP, rows - first)) for first in range(0, rows, STEP)]
    places, columns, values = (np.concatenate([part[which] for part in parts]) for which in range(3))
    test = generator.random(len(values)) < HELD_OUT
    counts = np.bincount(places[~test], minlength=rows)
    return {
        "data": values[~test],
        "indices": columns[~test],
        "indptr": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        "test_rows": places[test],
        "test_columns": columns[test],
        "test_values": values[test],
    }


def draw(generator: Any, model: tuple[Any, Any, Any], first: int, rows: int) -> tuple[Any, Any, Any]:
    """Draw 50 different entries per row on average; return their rows, columns and values."""
    popularity, level, right = model
    activity = np.cumsum(generator.lognormal(0.0, 0.7, rows))
    wanted, cells = rows * PER_ROW, np.empty(0, dtype=np.int64)
    while len(cells) < wanted:
        count = int(1.1 * (wanted - len(cells))) + 10
        of_row = np.searchsorted(activity, activity[-1] * generator.random(count))
        of_column = np.searchsorted(popularity, popularity[-1] * generator.random(count))
        cells = np.union1d(cells, of_row * COLUMNS + of_column)
    places, columns = np.divmod(np.sort(generator.choice(cells, wanted, replace=False)), COLUMNS)
    left = generator.standard_normal((rows, RANK))
    values = np.einsum("ij,ij->i", left[places], right[columns]) + level[columns]
    values += NOISE * generator.standard_normal(wanted)
    return (places + first).astype(np.int32), columns.astype(np.int32), values.astype(np.float32)


def load(folder: Path) -> tuple[Any, Any, Any, Any]:
    data, indices, indptr, rows, columns, values = (np.load(folder / f"{name}.npy") for name in ARRAYS)
    return sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, COLUMNS)), rows, columns, values


def error(found: Any, truth: Any) -> float:
    return float(np.sqrt(np.mean((found.astype(np.float64) - truth) ** 2)))


def soft_impute(table: Any, rows: Any, columns: Any, truth: Any) -> dict[str, Any]:
    from keyless.completion import SoftImpute  # noqa: PLC0415

    began = time.process_time()
    many = table.shape[0]
    fewer = min(many, CHOOSING)
    chosen = np.sort(np.random.default_rng(0).choice(many, fewer, replace=False))
    penalty = SoftImpute(rank=RANK, tolerance=1e-4).fit(table[chosen]).penalty_ * (many / fewer) ** 0.5
    chose = time.process_time()
    model = SoftImpute(penalty=penalty, rank=RANK, tolerance=1e-4).fit(table)
    fitted = time.process_time()
    found = model.estimate_at(rows, columns)
    return {
        "seconds to choose": chose - began,
        "seconds": fitted - chose,
        "seconds to predict": time.process_time() - fitted,
        "held-out rmse": error(found, truth),
        "penalty": penalty,
        "sweeps": model.n_iter_,
    }


def singular_vectors(table: Any, rows: Any, columns: Any, truth: Any, *, centred: bool) -> dict[str, Any]:
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415

    began = time.process_time()
    level = np.zeros(COLUMNS, dtype=np.float32)
    if centred:
        counts = np.bincount(table.indices, minlength=COLUMNS)
        level = (np.bincount(table.indices, table.data, COLUMNS) / np.maximum(counts, 1)).astype(np.float32)
        table.data -= level[table.indices]
    model = TruncatedSVD(RANK, random_state=0)
    left = model.fit_transform(table)
    fitted = time.process_time()
    found = np.empty(len(rows))
    for first in range(0, len(rows), 100_000):
        part = slice(first, first + 100_000)
        found[part] = np.einsum("ij,ji->i", left[rows[part]], model.components_[:, columns[part]])
    found += level[columns]
    return {
        "seconds": fitted - began,
        "seconds to predict": time.process_time() - fitted,
        "held-out rmse": error(found, truth),
        "column means' rmse": error(level[columns], truth),
    }


METHODS = {
    "keyless.SoftImpute(rank=20)": soft_impute,
    "TruncatedSVD(20), zero-filled": lambda *given: singular_vectors(*given, centred=False),
    "TruncatedSVD(20), column means off": lambda *given: singular_vectors(*given, centred=True),
}


def child(part: str, folder: Path, rows: int) -> dict[str, Any]:
    """Do one part in this process; peak memory is that of the process, the table included."""
    one_thread()
    if part == "make":
        for name, array in make(rows).items():
            np.save(folder / f"{name}.npy", array)
        return {}
    given = load(folder)
    found = METHODS[part](*given)
    found["peak GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"rows": rows, "entries": given[0].nnz + len(given[3]), "method": part} | found


def apart(part: str, folder: Path, rows: int) -> dict[str, Any]:
    """Do one part in a process of its own.

    The data, too, are drawn in one: a process inherits the peak memory of the one that started it.
    """
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder), "--rows", str(rows)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | threads)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=SIZES)
    parser.add_argument("--part", help="what this process is to do; without, everything in processes of their own")
    parser.add_argument("--folder", type=Path)
    arguments, _ = parser.parse_known_args()
    if arguments.part is not None:
        print(json.dumps(child(arguments.part, arguments.folder, arguments.rows[0])))
        return
    results = []
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            apart("make", Path(folder), rows)
            found = [apart(method, Path(folder), rows) for method in METHODS]
        means = found[-1].pop("column means' rmse")
        found[1].pop("column means' rmse")
        for one in found:
            one["rmse / ours"] = one["held-out rmse"] / found[0]["held-out rmse"]
            one["seconds / ours"] = one["seconds"] / found[0]["seconds"]
        results += [*found, {"rows": rows, "method": "column means", "held-out rmse": means}]
    report(
        "Does Soft-Impute complete a million rows in little memory, and better than an SVD of the zero-filled table?",
        results,
        settings={
            "columns": COLUMNS,
            "entries per row": PER_ROW,
            "rank of the signal": RANK,
            "noise, below which no error can fall": NOISE,
            "held out": HELD_OUT,
            "seed": f"{SEED}, and the number of rows",
            "threads": 1,
            "peak GB": "of the whole process, with the table",
        },
    )


if __name__ == "__main__":
    main()
