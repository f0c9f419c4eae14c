"""A link ends within a second and a tenth of its time limit, whatever it is doing at that moment."""

import threading
import time

import numpy as np
import pytest

import keyless
from hostile.mishaps import BEYOND, SHARE
from keyless import linking, searches
from keyless.datasets import make_shuffled_tables
from keyless.model import shards
from keyless.pairs import nearest_rows
from keyless.progress import check_time
from ways import link_by


def late(tables, max_time, **options):
    """Link; return the links, and the seconds that were computed after the time was up."""
    passed = []
    timer = threading.Timer(max_time, lambda: passed.append(time.process_time()))
    timer.start()
    links = keyless.link(tables, max_time=max_time, random_state=0, **options)
    timer.cancel()
    return links, time.process_time() - passed[0] if passed else 0.0


def tables_of(rows, *, count=2, gaps=0.0, columns=20):
    rng = np.random.default_rng(rows)
    entities = rng.normal(size=(rows, 3))
    made = {}
    for number in range(count):
        table = entities @ rng.normal(size=(3, columns)) + 0.05 * rng.normal(size=(rows, columns))
        table[rng.random(table.shape) < gaps] = np.nan
        made[f"table{number}"] = table[rng.permutation(rows)]
    return made


CASES = [
    ({"rows": 60}, 0.1), ({"rows": 60, "count": 3, "gaps": 0.2}, 0.1), ({"rows": 300, "gaps": 0.2}, 0.3),
    ({"rows": 700}, 1.0), ({"rows": 700, "count": 3}, 0.5), ({"rows": 1300, "gaps": 0.2}, 2.0),
    ({"rows": 1300, "columns": 120}, 1.0), ({"rows": 3000}, 1.0), ({"rows": 3000, "count": 3, "gaps": 0.1}, 1.0),
    ({"rows": 6000}, 0.5), ({"rows": 6000, "gaps": 0.2}, 1.0),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("made", "max_time"), CASES, ids=str)
def test_a_link_ends_soon_after_its_time(made, max_time):
    tables = tables_of(**made)
    links, beyond = late(tables, max_time)
    assert beyond <= BEYOND + SHARE * max_time
    for permutation in links.permutations.values():
        matched = permutation[permutation >= 0]
        assert np.unique(matched).size == matched.size
    assert np.isfinite(links.completed["table1"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_a_link_in_shards_and_cells_ends_soon_after_its_time(gaps, monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 1_500)
    monkeypatch.setattr(nearest_rows, "CELL", 700)
    _, beyond = late(tables_of(12_000, gaps=gaps, columns=40), 1.0)
    assert beyond <= BEYOND + SHARE


@pytest.fixture
def small():
    return make_shuffled_tables(60, (12, 10), rank=3, observed=0.9, random_state=0)


def endless(*_arguments, **_options):
    """Stand for work that takes far longer than there is."""
    while True:
        check_time()


def test_before_anything_is_found_nobody_is_matched(small, monkeypatch, tmp_path):
    monkeypatch.setattr(searches, "find_pair", endless)
    links = link_by("pairs", small.tables, max_time=0.1, random_state=0)
    assert links.status.reason == "max_time"
    assert "before any match was found" in links.status.advice
    assert (links.permutations["table1"] == -1).all()
    assert links.evidence.verdict == "uncertain"
    assert not links.coupling("table1").sum()
    links.save(tmp_path / "links.keyless")
    again = keyless.load(tmp_path / "links.keyless")
    assert np.isfinite(again.completed["table1"]).all()
    assert again.matches["probability"].between(0, 1).all()
    assert len(again.joined()) == 60
    assert again.explain(0)


def test_known_pairs_are_kept_where_nothing_else_is_found(small, monkeypatch):
    monkeypatch.setattr(searches, "find_pair", endless)
    links = link_by("pairs", small.tables, known_pairs=[(3, 5)], max_time=0.1, random_state=0)
    assert np.flatnonzero(links.permutations["table1"] >= 0).tolist() == [3]
    assert links.permutations["table1"][3] == 5


@pytest.mark.soak
def test_what_was_found_before_is_returned(monkeypatch):
    made = make_shuffled_tables(230, (12, 10), rank=3, random_state=0)
    monkeypatch.setattr(searches, "find_pair", endless)
    monkeypatch.setattr(linking, "_is_sharp", lambda _route: False)
    links = keyless.link(made.tables, max_time=10, random_state=0)
    assert links.choices["route"] == "columns"
    assert links.status.reason == "max_time"
    assert (links.permutations["table1"] == made.truth["table1"]).mean() > 0.9


@pytest.mark.slow
def test_a_comparison_that_is_cut_short_leaves_the_link(monkeypatch):
    made = make_shuffled_tables(60, (12, 10), rank=3, random_state=0)
    monkeypatch.setattr("keyless.engine.crossing.ColumnModel", endless)
    links = link_by("pairs", made.tables, max_time=8, random_state=0)
    assert links.status.reason == "max_time"
    assert links.evidence.null_scores == ()
    assert links.evidence.verdict == "uncertain"
    assert (links.permutations["table1"] == made.truth["table1"]).mean() > 0.9


@pytest.mark.slow
def test_the_second_run_for_repeated_rows_has_what_the_first_left(monkeypatch):
    made = make_shuffled_tables(40, (8, 8), rank=3, random_state=0).tables
    doubled = {"visits": np.repeat(made["reference"], 3, axis=0), "people": made["table1"]}
    began = time.monotonic()
    deadlines = []
    first = linking.Linking.__init__

    def noted(self, *arguments, **options):
        first(self, *arguments, **options)
        deadlines.append(self.deadline)

    monkeypatch.setattr(linking.Linking, "__init__", noted)
    keyless.link(doubled, repeats="auto", max_time=60, random_state=0)
    assert len(deadlines) == 2
    assert deadlines[0] is deadlines[1]
    assert time.monotonic() - began < 60
