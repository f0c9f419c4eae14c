"""Finished stages are kept and read again, never pickled."""

from dataclasses import fields, is_dataclass

import numpy as np
import pandas as pd
import pytest

import keyless
from keyless.datasets import make_shuffled_tables
from keyless.engine import Crossing, Side, Task, link_pair
from keyless.errors import InputError
from keyless.saved.archive import write_archive
from keyless.saved.checkpoints import Checkpoints, fingerprint


def assert_same(first, second):
    assert type(first) is type(second)
    if is_dataclass(first):
        for field in fields(first):
            assert_same(getattr(first, field.name), getattr(second, field.name))
    elif isinstance(first, np.ndarray):
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)
    elif isinstance(first, tuple | list):
        assert len(first) == len(second)
        for one, two in zip(first, second, strict=True):
            assert_same(one, two)
    else:
        assert first == second


def made_once(value):
    calls = []

    def make():
        calls.append(1)
        return value

    return make, calls


@pytest.fixture(scope="module")
def tables():
    return make_shuffled_tables(40, (12, 10), rank=3, random_state=4).tables


def pairs(tables):
    return link_pair(*map(Side, tables.values()), Task(comparisons=1, seed=3))


def test_a_stage_comes_back_as_it_was(tables, tmp_path):
    value = pairs(tables)
    make, calls = made_once(value)
    first = Checkpoints(tmp_path, "key").stage("search", make)
    again = Checkpoints(tmp_path, "key").stage("search", make)
    assert first is value
    assert len(calls) == 1
    assert_same(again, value)


def test_plain_values_come_back(tmp_path):
    value = (Crossing(1.5, -0.25), [1, 2.5, None, "ü", True], (np.float32(1.5).item(), float("inf")))
    make, _ = made_once(value)
    Checkpoints(tmp_path, "key").stage("plain", make)
    assert_same(Checkpoints(tmp_path, "key").stage("plain", make), value)


def test_other_inputs_see_nothing_of_it(tmp_path):
    make, calls = made_once(1.0)
    for key in ("one", "two"):
        Checkpoints(tmp_path, key).stage("stage", make)
    assert len(calls) == 2


def test_what_is_unfinished_is_not_kept(tmp_path):
    make, calls = made_once(1.0)
    for _ in range(2):
        Checkpoints(tmp_path, "key", finished=lambda: False).stage("stage", make)
    assert len(calls) == 2
    assert not list(tmp_path.iterdir())


def test_nothing_is_kept_without_a_folder():
    make, calls = made_once(1.0)
    checkpoints = Checkpoints(None, "key")
    assert checkpoints.stage("stage", make) == checkpoints.stage("stage", make) == 1.0
    assert len(calls) == 2


def test_only_own_results_are_read(tmp_path):
    write_archive(tmp_path / "stage-key.stage", {"stage": {"class": ["os", "system"], "fields": {"command": "x"}}}, {})
    with pytest.raises(InputError, match=r"found os\.system"):
        Checkpoints(tmp_path, "key").stage("stage", lambda: None)


def test_unknown_values_are_refused(tmp_path):
    with pytest.raises(TypeError, match="cannot keep a set"):
        Checkpoints(tmp_path, "key").stage("stage", lambda: {1})


def test_a_fingerprint_differs_when_anything_does():
    table = np.arange(6.0).reshape(2, 3)
    prints = {fingerprint(parts) for parts in ([table], [table.T], [table, None], [table + 1], [table.astype("f4")])}
    assert len(prints) == 5
    assert fingerprint([table, "a"]) == fingerprint([table.copy(), "a"])


@pytest.mark.slow
def test_every_pair_that_is_ruled_out_counts(tables, tmp_path):
    """Frames so long that their text is cut short differ in one pair in the middle."""
    pairs = pd.DataFrame([(row, (row + shift) % 40) for row in range(40) for shift in (1, 2, 3)])
    other = pairs.copy()
    other.iloc[60] = (20, 37)
    assert repr(pairs) == repr(other)
    searched = []
    for forbid in (pairs, other):
        stages = []
        keyless.link(
            tables,
            forbid=forbid,
            checkpoint=tmp_path,
            callback=lambda stage, *_, stages=stages: stages.append(stage),
            effort="quick",
            random_state=0,
            max_time=10,
        )
        searched.append("search" in stages)
    assert searched == [True, True]


def test_a_run_that_was_cut_off_goes_on(tables, tmp_path):
    """Interrupted while it looks at chance, the run does not search again, and ends as if it had not been cut off."""
    options = {"random_state": 1, "effort": "quick"}
    whole = keyless.link(tables, **options)

    def cut(stage, *_):
        if stage == "chance":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keyless.link(tables, checkpoint=tmp_path, callback=cut, **options)
    stages = []
    again = keyless.link(tables, checkpoint=tmp_path, callback=lambda stage, *_: stages.append(stage), **options)
    assert not {"search", "tables", "joins"} & set(stages)
    for name in whole.found:
        for part in ("permutation", "probability", "margin", "coupling"):
            np.testing.assert_array_equal(getattr(again.found[name], part), getattr(whole.found[name], part))
        assert again.evidence_for(name) == whole.evidence_for(name)
