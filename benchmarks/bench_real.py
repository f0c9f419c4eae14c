"""How well are real tables linked: rows gone, entries missing, tables of other entities?

    python benchmarks/bench_real.py --out benchmarks/results/real.json        # everything, under an hour
    python benchmarks/bench_real.py --cases gaps                              # some of it

Tables of scikit-learn, and the real pairs in the folder that KEYLESS_DATA_HOME names, where there is one. Columns of
one table are dealt to two, rows of the second are shuffled, and shares of the rows are taken away from one table or
from both. Nothing is set by hand. Recall is over the rows that both tables have, precision over the matches stated.
"Other entities" are rows of one half of a table against the columns of the other half: nothing there can be linked.
With `--out` the cases that ran replace those of the file.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

import keyless
from common import one_thread, report_sections

SEED = 7000
"""Seeds from here on are used for nothing but this report."""

GONE = ((0.0, 0.0), (0.05, 0.0), (0.05, 0.05), (0.2, 0.2))
"""Shares of the rows that are taken away from the first and from the second table."""

REAL_PAIRS = ("AquaticTox_moe2D_QuickProp", "AquaticTox_Lcalc_QuickProp", "NCI60_hgu133p2_hgu95", "BRCA_expr_mirna")
"""Real pairs whose ceiling is above one half, by their README."""

OTHERS = ("yeast_alpha+cdc28_cdc15+elu", "breast.TCGA_mrna_protein", "aemet_temp_logprec", "nutrimouse_gene_lipid")
"""Real pairs that cannot be linked, by their README."""


def real_pair(name: str) -> tuple[Any, Any] | None:
    """Return a pair of the data folder; None where there is none."""
    home = os.environ.get("KEYLESS_DATA_HOME")
    path = Path(home or "", "pairs", f"{name}.npz")
    if home is None or not path.exists():
        return None
    with np.load(path) as stored:
        return stored["X"].astype(float), stored["Y"].astype(float)


def digits(rows: int = 600) -> tuple[Any, Any]:
    """Return the squares of a chessboard over scikit-learn's digits: the white ones, and the black ones."""
    data = datasets.load_digits().data[np.random.default_rng(SEED).permutation(1797)[:rows]]
    white = (np.add.outer(np.arange(8), np.arange(8)) % 2 == 0).ravel()
    return data[:, white], data[:, ~white]


def patches(stride: int = 16) -> tuple[Any, Any]:
    """Return 8 × 8 patches of scikit-learn's two photographs, red channel and blue channel."""
    found: list[list[Any]] = [[], []]
    for image in datasets.load_sample_images().images:
        height, width = image.shape[:2]
        for top in range(0, height - 7, stride):
            for left in range(0, width - 7, stride):
                patch = image[top : top + 8, left : left + 8].astype(float)
                found[0].append(patch[:, :, 0].ravel())
                found[1].append(patch[:, :, 2].ravel())
    first, second = (np.array(part) for part in found)
    textured = first.std(axis=1) > np.median(first.std(axis=1))
    return first[textured], second[textured]


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Yield pairs of tables of the same entities, row by row."""
    tumours = datasets.load_breast_cancer().data
    yield "breast cancer 20/10", tumours[:, :20], tumours[:, 20:]
    yield "breast cancer mean/worst", tumours[:, :10], tumours[:, 20:]
    yield "digits, chessboard", *digits()
    yield "photograph patches, red/blue", *patches()
    for name in REAL_PAIRS:
        found = real_pair(name)
        if found is not None:
            yield name, *found


def taken(first: Any, second: Any, gone: tuple[float, float], seed: int) -> tuple[Any, Any, Any]:
    """Return both tables with rows gone and shuffled, and for each row of the first its row of the second."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(first))
    one, two = (int(share * len(first)) for share in gone)
    left = rng.permutation(order[one:])
    right = rng.permutation(np.concatenate([order[:one], order[one + two :]]))
    place = np.full(len(first), -1)
    place[right] = np.arange(len(right))
    return first[left], second[right], place[left]


def linked(name: str, first: Any, second: Any, truth: Any, **more: Any) -> dict[str, Any]:
    """Link two tables, and return how that went."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        links = keyless.link({"first": first, "second": second}, random_state=0)
    seconds = time.process_time() - began
    found, probability = links.permutations["second"], links.found["second"].probability
    stated, common, right = found >= 0, truth >= 0, found == truth
    row = {
        "case": name,
        **more,
        "rows": f"{len(first)}, {len(second)}",
        "verdict": links.evidence.verdict,
        "recall": float(right[common].mean()) if common.any() else None,
        "precision": float(right[stated].mean()) if stated.any() else None,
        "stated": float(probability[stated].mean()) if stated.any() else None,
        "nats above chance": links.evidence.excess,
        "seconds": seconds,
    }
    print(row, flush=True)
    return row


def rows_gone() -> list[dict[str, Any]]:
    return [
        linked(name, *taken(first, second, gone, SEED), gone=f"{gone[0]:.0%}, {gone[1]:.0%}")
        for name, first, second in pairs()
        for gone in GONE
    ]


def gaps() -> list[dict[str, Any]]:
    tumours = datasets.load_breast_cancer().data
    rows = []
    for share in (0.05, 0.1, 0.2):
        for seed in (SEED, SEED + 1):
            first, second, truth = taken(tumours[:, :20], tumours[:, 20:], (0.0, 0.0), seed)
            rng = np.random.default_rng([seed, 1])
            holed = [np.where(rng.random(table.shape) < share, np.nan, table) for table in (first, second)]
            rows.append(linked("breast cancer 20/10", *holed, truth, missing=f"{share:.0%}"))
    return rows


def other_entities() -> list[dict[str, Any]]:
    rows = []
    for name, first, second in pairs():
        order = np.random.default_rng(SEED).permutation(len(first))
        half = len(order) // 2
        one, two = first[order[:half]], second[order[half : 2 * half]]
        rows.append(linked(f"{name}, other entities", one, two, np.full(half, -1)))
    for name in OTHERS:
        found = real_pair(name)
        if found is not None:
            rows.append(linked(name, *taken(*found, (0.0, 0.0), SEED)))
    return rows


def main() -> None:
    one_thread()
    cases = {
        "Rows gone from one table, and from both": rows_gone,
        "Entries missing": gaps,
        "Tables that cannot be linked": other_entities,
    }
    names = dict(zip(("rows", "gaps", "others"), cases, strict=True))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(names), default=list(names))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    sections = {names[case]: cases[names[case]]() for case in arguments.cases}
    report_sections(
        "How well does keyless link real tables: rows gone, entries missing, other entities?",
        sections,
        settings={"first seed": SEED, "threads": 1},
        out=arguments.out,
        order=list(cases),
    )


if __name__ == "__main__":
    main()
