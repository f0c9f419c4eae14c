"""What every test shares: one thread, fixed randomness, the folder of public data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from scipy import sparse
from threadpoolctl import threadpool_limits

from keyless.errors import CONVERGED
from keyless.evidence import Evidence, Verdict
from keyless.links import Links, TableLink
from keyless.model.factor_model import FactorModel
from keyless.model.joint_model import JointModel
from keyless.model.scales import scale_table
from keyless.pairs.likelihood import pair_log_ratio
from keyless.tables import Reading, read_tables

# The tests themselves run in parallel, so each gets one thread: libraries loaded from here on and child processes read
# these variables, libraries already loaded are told below.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

settings.register_profile("keyless", derandomize=True, deadline=None, database=None)
settings.load_profile("keyless")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    with threadpool_limits(limits=1):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """A random generator that starts from the same seed in every test."""
    return np.random.default_rng(20211015)


@pytest.fixture(scope="session")
def data_home() -> Path:
    """The folder of public data sets, which are not part of the project."""
    folder = os.environ.get("KEYLESS_DATA_HOME")
    if folder is None:
        pytest.skip("needs public data: set KEYLESS_DATA_HOME to the folder that holds ml-100k/ and faces/")
    if not Path(folder).is_dir():
        pytest.skip(f"needs public data: KEYLESS_DATA_HOME={folder} is not a folder")
    return Path(folder)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium: the one that `KEYLESS_CHROMIUM` names, or one on the path."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install '.[browser]'"
    )
    names = (os.environ.get("KEYLESS_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium is not installed: name it in KEYLESS_CHROMIUM, or put it on the path")
    with playwright.sync_playwright() as running:
        # Without its sandbox, which containers do not allow; only our own pages are opened.
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def linked_by_hand() -> Callable[..., Links]:
    """Make links without a search: the correspondence is given, the model is that of the joined tables."""

    def make(
        tables: Any, permutations: Any, *, verdict: Verdict = "linked", coupling: Any = None, rank: int = 4
    ) -> Links:
        read, _ = read_tables(tables, reading=Reading(max_memory=10**15))
        scaled = [scale_table(table.block.values, table.block.mask, kind="identity") for table in read]
        places = [np.arange(read[0].block.shape[0]), *map(np.asarray, permutations)]
        joined = np.hstack(
            [np.where((p >= 0)[:, None], s[np.maximum(p, 0)], 0.0) for (s, _), p in zip(scaled, places, strict=True)]
        )
        _, singular, right = np.linalg.svd(joined, full_matrices=False)
        rank, width = min(rank, len(singular)), joined.shape[1]
        loadings = right[:rank].T * singular[:rank] / np.sqrt(len(joined))
        spread = np.zeros((width, rank + 1, rank + 1))
        factors = FactorModel(loadings, np.zeros(width), np.full(width, 0.02), spread, np.ones(rank + 1))
        model = JointModel(factors, tuple(tuple(one) for _, one in scaled), shared=verdict != "unlinkable")
        found = {}
        for number, (table, place) in enumerate(zip(read[1:], places[1:], strict=True), start=1):
            soft = coupling
            if soft is None:
                ratios = pair_log_ratio(model.information(0, read[0].block), model.information(number, table.block))
                soft = np.exp(ratios - ratios.max(axis=1, keepdims=True))
                soft /= 1.001 * soft.sum(axis=1, keepdims=True)
            stated = np.asarray(soft[np.arange(len(place)), np.maximum(place, 0)]).ravel()
            probability = np.where(place >= 0, stated, 0.9)
            margin = np.where(place >= 0, np.log(probability + 1e-6) + 9, np.inf)
            evidence = Evidence(verdict, 12.1 if verdict == "linked" else 1.4, (0.9, 1.2, 1.0), 5.3, 0.93, 7)
            found[table.name] = TableLink(
                place, probability, margin, soft, evidence, np.linspace(0.98, 0.3, rank),
                alone=np.maximum(0.0, 1 - np.asarray(soft.sum(axis=1)).ravel()),
            )  # fmt: skip
        starts = tuple(
            {"route": "pairs", "pair": (0, 1), "start": f"{kind}, rank {k}", "score": 12.1 - k * gap}
            for kind, gap in (("signatures", 0.02), ("components", 0.9))
            for k in range(6)
        )
        history = tuple(
            {"stage": stage, "step": k + 1, "total": 5, "objective": value + k / 5, "seconds": 0.4 * k + late}
            for stage, value, late in (("starts", 9.0, 0.1), ("polishing", 11.3, 2.6))
            for k in range(5)
        )
        return Links(read, found, model, CONVERGED, {"route": "pairs", "rank": rank}, starts, 3, history)

    return make


@pytest.fixture(scope="session")
def links_of_many_rows(linked_by_hand: Callable[..., Links]) -> Callable[[int], Links]:
    """Make links of two tables of so many rows, each with one candidate."""

    def make(count: int) -> Links:
        rng = np.random.default_rng(2)
        order = rng.permutation(count)
        weights = sparse.csr_array((rng.random(count), (np.arange(count), order)), shape=(count, count))
        values = rng.normal(size=(count, 2))
        tables = {"first": values, "second": pd.DataFrame(values[np.argsort(order)], columns=["u", "v"])}
        return linked_by_hand(tables, [order], coupling=weights, rank=1)

    return make


@pytest.fixture(scope="session")
def clinic_lab_and_watch(linked_by_hand: Callable[..., Links]) -> Links:
    """Three tables of one population: ids, gaps, text, a category, and patients without a watch."""
    rng = np.random.default_rng(8)
    latent = rng.normal(size=(60, 4))

    def table(entities: Any, columns: int, prefix: str, letter: str) -> pd.DataFrame:
        values = latent[entities] @ rng.normal(size=(4, columns)) + 0.1 * rng.normal(size=(len(entities), columns))
        values[rng.random(values.shape) < 0.06] = np.nan
        ids = [f"{letter}-{1000 + 7 * i}" for i in range(len(entities))]
        return pd.DataFrame(values * 10 + 50, columns=[f"{prefix} {k}" for k in range(columns)], index=ids)

    orders = rng.permutation(60), rng.permutation(60)[:50]
    clinic, lab, watch = (
        table(entities, columns, prefix, letter)
        for entities, columns, prefix, letter in zip(
            (np.arange(60), *orders), (7, 6, 5), ("vital", "assay", "signal"), "PSW", strict=True
        )
    )
    clinic["ward"] = rng.choice(["north", "south", "east"], 60)
    clinic.loc[clinic.index[:3], "ward"] = None
    clinic["note"] = [f"seen by nurse {i} at noon" for i in range(60)]
    with_watch = np.full(60, -1)
    with_watch[orders[1]] = np.arange(50)
    return linked_by_hand({"clinic": clinic, "lab": lab, "watch": watch}, [np.argsort(orders[0]), with_watch])


_HOSTILE = [
    "<script>window.hacked = 1</script>", "</script><img src=x onerror='window.hacked=1'>", "\"'><b>", "&lt;b&gt;",
    "\u202eevil", "مرحبا", "שלום", "{0}{name}", "$x$", "a\x00b", "\ud800", "x" * 10_000, "", "new\nline",
]  # fmt: skip


@pytest.fixture(scope="session")
def hostile_links(linked_by_hand: Callable[..., Links]) -> Links:
    """Tables whose names, columns, ids and cells mean harm, and a result full of NaN.

    Text of pandas 3 must be valid Unicode, so that what is not is given as Python objects.
    """
    rng = np.random.default_rng(0)
    count = len(_HOSTILE)
    columns = [f"{name}{'!' * k}" for k, name in enumerate(_HOSTILE[:6])]
    first = pd.DataFrame(rng.normal(size=(count, 6)), columns=columns, index=pd.Index(_HOSTILE, dtype=object))
    backwards = pd.Index(_HOSTILE[::-1], dtype=object)
    second = pd.DataFrame(rng.normal(size=(count, 4)), columns=_HOSTILE[6:10], index=backwards)
    first.iloc[::2, 0] = np.nan
    second.iloc[1::2, 1] = np.nan
    second[_HOSTILE[0]] = pd.Series(_HOSTILE, index=backwards, dtype=object)
    links = linked_by_hand({_HOSTILE[0]: first, _HOSTILE[1]: second}, [rng.permutation(count)])
    link, nothing = links.found[_HOSTILE[1]], np.full(count, np.nan)
    worst = replace(link, probability=nothing, margin=nothing, coupling=np.full((count, count), np.nan))
    return replace(links, found={_HOSTILE[1]: worst}, choices={_HOSTILE[0]: _HOSTILE[1]})
