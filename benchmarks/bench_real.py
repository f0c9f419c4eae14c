"""How well are real tables linked: rows gone, entries missing, tables of other entities?

    python benchmarks/bench_real.py --out benchmarks/results/real.json        # everything, under an hour
    python benchmarks/bench_real.py --cases gaps                              # some of it

Tables of scikit-learn, and the real pairs in the folder that KEYLESS_DATA_HOME names, where there is one. Columns of
one table are dealt to two, rows of the second are shuffled, and shares of the rows are taken away from one table or
from both. Of tables in groups the group is given (`within`), and the ceiling is what a model fitted on the true
partners of other rows places. Nothing else is set by hand. Recall is over the rows that both tables have, precision
over the matches stated. "Other entities" are rows of one half of a table against the columns of the other half: nothing
there can be linked. "All other partners known" is no link: every row is placed by a map, and by predictions, that were
fitted to the true partners of all other rows. With `--out` the cases that ran replace those of the file.
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
import pandas as pd
from scipy import sparse
from sklearn import datasets

import keyless
from common import one_thread, report_sections
from keyless.assignment import best_matching
from keyless.engine.listed import ListedRows
from keyless.engine.matches import every_row_matched
from keyless.engine.refine import TARGETS, Refinement, identification
from keyless.engine.side import Side
from keyless.maps.regression import Regression
from keyless.pairs.limits import Limits

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


def squares(stride: int) -> tuple[list[Any], Any]:
    """Return 8 × 8 patches of scikit-learn's two photographs, one table for each colour, and where each patch lies."""
    found: list[Any] = []
    places = []
    for number, image in enumerate(datasets.load_sample_images().images):
        height, width = image.shape[:2]
        for top in range(0, height - 7, stride):
            for left in range(0, width - 7, stride):
                found.append(image[top : top + 8, left : left + 8].astype(float))
                places.append((number, top, left))
    return [np.array(found)[..., colour].reshape(len(found), -1) for colour in range(3)], np.array(places)


def patches(stride: int = 16) -> list[Any]:
    """Return those patches of the photographs that are not smooth, one table for each colour: red, green, blue."""
    tables = squares(stride)[0]
    textured = tables[0].std(axis=1) > np.median(tables[0].std(axis=1))
    return [table[textured] for table in tables]


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Yield pairs of tables of the same entities, row by row."""
    tumours = datasets.load_breast_cancer().data
    yield "breast cancer 20/10", tumours[:, :20], tumours[:, 20:]
    yield "breast cancer mean/worst", tumours[:, :10], tumours[:, 20:]
    yield "digits, chessboard", *digits()
    yield "photograph patches, red/blue", *patches()[::2]
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


def linked(name: str, first: Any, second: Any, truth: Any, within: str | None = None, **more: Any) -> dict[str, Any]:
    """Link two tables, and return how that went."""
    return all_linked(name, {"first": first, "second": second}, {"second": truth}, within, **more)[0]


def all_linked(
    name: str, tables: dict[str, Any], truths: dict[str, Any], within: str | None = None, **more: Any
) -> list[dict[str, Any]]:
    """Link tables, and return how that went for each but the first; time is that of all together."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        links = keyless.link(tables, within=within, shared=None, random_state=0)
    seconds = time.process_time() - began
    rows = []
    for table, truth in truths.items():
        link = links.found[table]
        stated, common, right = link.permutation >= 0, truth >= 0, link.permutation == truth
        rows.append(
            {
                "case": name,
                **more,
                **({"table": table} if len(truths) > 1 else {}),
                "rows": f"{len(truth)}, {len(tables[table])}",
                "verdict": link.evidence.verdict,
                "recall": float(right[common].mean()) if common.any() else None,
                "precision": float(right[stated].mean()) if stated.any() else None,
                "stated": float(link.probability[stated].mean()) if stated.any() else None,
                "nats above chance": link.evidence.excess,
                "seconds": seconds,
            }
        )
        print(rows[-1], flush=True)
    return rows


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


def tiles(stride: int = 6, size: int = 24) -> tuple[Any, Any, Any]:
    """Return patches of the photographs, and the number of the tile that each lies in."""
    (first, _, second), places = squares(stride)
    return first, second, np.unique(places // (1, size, size), axis=0, return_inverse=True)[1].ravel()


def teams(rows: int = 33_000, groups: int = 1_800) -> tuple[Any, Any, Any]:
    """Return drawn tables of 17 and 7 columns: ten common factors, group effects, and factors of each table alone."""
    rng = np.random.default_rng(SEED)
    labels = rng.integers(groups, size=rows)
    common = rng.normal(size=(rows, 10)) + 0.7 * rng.normal(size=(groups, 10))[labels]
    tables = []
    for columns in (17, 7):
        own = rng.normal(size=(rows, 4)) @ rng.normal(size=(4, columns))
        effect = rng.normal(size=(groups, columns))[labels]
        noise = rng.normal(size=(rows, columns))
        tables.append(common @ rng.normal(size=(10, columns)) + 0.7 * own + 0.5 * effect + 2 * noise)
    # Skewed, as counts and amounts are.
    return tables[0], np.exp(tables[1] / 6), labels


def ceiling(first: Any, second: Any, truth: Any, labels: tuple[Any, Any]) -> float:
    """Return the share of common rows that a canonical model fitted on the true partners of other rows places."""
    limits = Limits((len(first), len(second)), labels)
    sides = [Side(table) for table in (first, second)]
    own = limits.reordered(sides[0].order, sides[1].order)
    factors = [side.factors(groups=each) for side, each in zip(sides, own.groups or (), strict=True)]
    partner = np.append(np.argsort(sides[1].order), -1)[truth[sides[0].order]]
    rows = ListedRows("auto", factors[0], factors[1], own, pattern=own.pattern())
    both = np.flatnonzero(partner >= 0)
    shape = len(first), len(second)
    fit = rows.refinement.fitted(sparse.csr_array((np.ones(len(both)), (both, partner[both])), shape=shape))
    ratios = rows.ratios(fit)
    ratios.data += 100.0
    return float(np.mean(best_matching(ratios).permutation[both] == partner[both]))


def in_groups() -> list[dict[str, Any]]:
    rows = []
    for name, (first, second, labels) in {"photograph patches in tiles": tiles(), "drawn teams": teams()}.items():
        for gone in ((0.0, 0.0), (0.1, 0.1)):
            numbers = np.arange(len(first))[:, None]
            one, two, truth = taken(np.hstack([first, numbers]), np.hstack([second, numbers]), gone, SEED)
            groups = tuple(labels[table[:, -1].astype(int)] for table in (one, two))
            best = ceiling(one[:, :-1], two[:, :-1], truth, groups)
            frames = [
                pd.DataFrame(table[:, :-1]).add_prefix(prefix).assign(group=own.astype(str))
                for table, own, prefix in zip((one, two), groups, "ab", strict=True)
            ]
            share = f"{gone[0]:.0%}, {gone[1]:.0%}"
            rows.append(linked(name, *frames, truth, within="group", gone=share, ceiling=best))
        half = np.random.default_rng(SEED).random(len(first)) < 0.5
        frames = [
            pd.DataFrame(table[chosen]).add_prefix(prefix).assign(group=labels[chosen].astype(str))
            for table, chosen, prefix in zip((first, second), (half, ~half), "ab", strict=True)
        ]
        nobody = np.full(int(half.sum()), -1)
        rows.append(linked(f"{name}, other entities of the same groups", *frames, nobody, within="group"))
    return rows


def photographs() -> list[dict[str, Any]]:
    """Return how patches of photographs, many and much alike, are linked by two colours and by three."""
    colours = patches(stride=6)
    rng = np.random.default_rng(SEED)
    orders = [rng.permutation(len(colours[0])) for _ in colours]
    tables = {name: table[order] for name, table, order in zip(("red", "green", "blue"), colours, orders, strict=True)}
    truths = {name: np.argsort(order)[orders[0]] for name, order in zip(tables, orders, strict=True)}
    two = linked("red and blue", tables["red"], tables["blue"], truths["blue"])
    del truths["red"]
    return [two, *all_linked("red, green and blue", tables, truths)]


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


def known_partners() -> list[dict[str, Any]]:
    """Return what a map and what predictions tell of rows whose partners they do not know, all others known."""
    rows = []
    more = [(name, *found) for name in (*OTHERS, "breast.TCGA_mrna_mirna") if (found := real_pair(name)) is not None]
    for name, first, second in [*pairs(), *more]:
        sides = [Side(table) for table in (first, second)]
        shape = len(first), len(second)
        coupling = np.zeros(shape, dtype=np.float32)
        partner = np.argsort(sides[1].order)[sides[0].order]
        coupling[np.arange(len(first)), partner] = 1.0
        found: dict[str, list[Any]] = {"map": [], "predictions": []}
        views = []
        for scales in ("auto", "rank", "identity"):
            for factors in (12, 20, 40, 64, 100):
                compact = [side.factors(scales, factors).compact for side in sides]
                found["map"].append(Refinement(*compact, limits=Limits(shape)).judged(coupling)[1])
            views.append((sides[0].factors(scales, 100), sides[1].factors(scales, 100)))
        regression = Regression(views)
        found["predictions"] = [regression.ratios(coupling, targets) for targets in TARGETS]
        # Of all settings the one by which partners stand out most, as in a link.
        best = {kind: max(each, key=lambda ratios: identification(ratios, coupling)) for kind, each in found.items()}
        row: dict[str, Any] = {"case": name, "rows": len(first), "log n": float(np.log(len(first)))}
        for kind, ratios in best.items():
            row[f"nats by {kind}"] = identification(ratios, coupling)
            row[f"right by {kind}"] = float(np.mean(every_row_matched(ratios) == partner))
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    one_thread()
    cases = {
        "Rows gone from one table, and from both": rows_gone,
        "Entries missing": gaps,
        "Rows that match inside groups": in_groups,
        "Patches of photographs": photographs,
        "Tables that cannot be linked": other_entities,
        "All other partners known: what a map tells, and what predictions tell": known_partners,
    }
    names = dict(zip(("rows", "gaps", "groups", "photographs", "others", "known"), cases, strict=True))
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
