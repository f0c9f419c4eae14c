"""Saved results are checked, not trusted: every defect is one `InputError` of one line, and takes little memory."""

import io
import json
import random
import struct
import time
import tracemalloc
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyless
from hostile.archives import (
    array_of,
    document_of,
    hostile_archive,
    loaded_or_refused,
    members_of,
    with_array,
    with_document,
    write,
)
from hostile.making import links_of
from keyless.errors import InputError
from keyless.report import render
from keyless.saved import archive
from keyless.saved.archive import write_archive
from keyless.saved.checkpoints import Checkpoints

NAN = float("nan")


def tables():
    rng = np.random.default_rng(0)
    first = pd.DataFrame(rng.normal(size=(12, 3)), columns=list("abc"))
    first["sex"] = ["f", "m"] * 6
    first.iloc[2, 0] = NAN
    second = pd.DataFrame(rng.normal(size=(10, 2)), columns=["d", "e"])
    return {"clinic": first, "lab": second}


@cache
def saved_members():
    with TemporaryDirectory() as folder:
        links_of(tables()).save(Path(folder) / "links.keyless")
        return members_of(Path(folder) / "links.keyless")


@pytest.fixture
def saved():
    return saved_members()


def refused(path):
    with pytest.raises(InputError) as caught:
        keyless.load(path)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) <= 2_000
    return said


def test_what_is_unchanged_is_read(saved, tmp_path):
    write(tmp_path / "links.keyless", saved)
    assert keyless.load(tmp_path / "links.keyless").reference == "clinic"


@pytest.mark.parametrize(
    ("name", "change", "because"),
    [
        (
            "1.probability",
            lambda a: np.where(np.arange(len(a)) == 3, NAN, a),
            "probability must be numbers from 0 to 1",
        ),
        ("1.probability", lambda a: a + 7.5, "probability must be numbers from 0 to 1"),
        ("1.probability", lambda a: a[:-1], "probability must have shape 12"),
        ("1.probability", lambda a: a.astype("U5"), "probability must be real numbers"),
        ("1.alone", lambda a: a - 7.5, "alone must be numbers from 0 to 1"),
        ("1.alone", lambda a: a * NAN, "alone must be numbers from 0 to 1"),
        ("1.alone", lambda a: a[:-1], "alone must have shape 12"),
        ("1.margin", lambda a: a * NAN, "margin must be"),
        ("1.permutation", lambda a: a + 5, "permutation must be numbers of rows, from -1 to 9"),
        ("1.permutation", lambda a: a - 3, "permutation must be numbers of rows"),
        ("1.permutation", np.zeros_like, "permutation must name each row once"),
        ("1.permutation", lambda a: a.astype(float), "permutation must be 12 whole numbers"),
        ("1.coupling", lambda a: a.T, "coupling must have shape 12 × 10"),
        ("1.coupling", lambda a: a * np.inf, "coupling must be"),
        ("1.correlations", lambda _: np.array([2.0]), "correlations must be numbers from -1 to 1"),
        ("model.loadings", lambda a: a * NAN, "loadings must be"),
        ("model.loadings", lambda a: a[:-1], "must have shape"),
        ("model.noise", lambda a: -a, "noise must be numbers from 0"),
        ("model.spread", lambda a: a[:, :-1], "spread must have shape"),
        ("0.values", lambda a: a[:-1], ""),
        ("0.values", lambda a: a * np.inf, "values must be"),
        ("0.mask", lambda a: a[:, :-1], ""),
        ("0.mask", lambda a: a.astype(float), ""),
    ],
)
def test_arrays_of_another_type_shape_or_range_are_refused(saved, tmp_path, name, change, because):
    path = tmp_path / "links.keyless"
    with np.errstate(invalid="ignore"):
        write(path, with_array(saved, name, change(array_of(saved, name))))
    assert because in refused(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["tables"].pop(),
        lambda d: d["tables"][0].update(columns=["a"]),
        lambda d: d["tables"][0].update(form="pickle"),
        lambda d: d["tables"][0]["uses"][3]["coding"].update(exemplars=[99, 0]),
        lambda d: d["tables"][0]["uses"][0]["coding"].update(width=10**9),
        lambda d: d["tables"][0]["uses"][0]["coding"].update(form="%s" * 100),
        lambda d: d["tables"][0]["scales"][0].update(spread=NAN),
        lambda d: d["tables"][0]["scales"].pop(),
        lambda d: d["tables"][0].update(kept={"path": 7, "size": 0, "changed": 0}),
        lambda d: d["evidence"].update(other=d["evidence"].pop("lab")),
        lambda d: d["evidence"]["lab"].update(verdict="surely"),
        lambda d: d["evidence"]["lab"].update(score="high"),
        lambda d: d["evidence"]["lab"].update(doubt="perhaps"),
        lambda d: d["evidence"]["lab"].update(doubt=None),
        lambda d: d["evidence"]["lab"].update(belief=1.5),
        lambda d: d["evidence"]["lab"].update(belief=-0.5),
        lambda d: d["evidence"]["lab"].update(belief=NAN),
        lambda d: d["evidence"]["lab"].update(belief="high"),
        lambda d: d.update(history=[{"stage": 1}]),
        lambda d: d.update(starts=[7]),
        lambda d: d.update(seed=-1),
        lambda d: d.update(status={"reason": []}),
        lambda d: d.update(choices=[]),
    ],
)
def test_documents_that_do_not_fit_are_refused(saved, tmp_path, change):
    document = json.loads(json.dumps(document_of(saved)))
    change(document)
    path = tmp_path / "links.keyless"
    write(path, with_document(saved, document))
    assert "links.keyless: must be a saved keyless result" in refused(path)


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(saved, tmp_path):
    path = tmp_path / "links.keyless"
    array = np.zeros(2**26, dtype=np.uint8)
    buffer = io.BytesIO()
    np.save(buffer, array)
    with zipfile.ZipFile(path, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for name, content in saved.items():
            made.writestr(name, content)
        for number in range(12):
            made.writestr(f"arrays/9.{number}.npy", buffer.getvalue())
    assert path.stat().st_size < 5e6
    tracemalloc.start()
    said = refused(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "unpacked it would take 8" in said
    assert "of memory, and 537 MB are allowed" in said
    assert peak < 20e6


def test_a_header_that_promises_more_numbers_than_there_are_takes_no_memory(saved, tmp_path):
    path = tmp_path / "links.keyless"
    content = bytearray(saved["arrays/1.probability.npy"])
    at = content.index(b"(12,)")
    content[at : at + 20] = b"(999999999999,), }  "
    write(path, saved | {"arrays/1.probability.npy": bytes(content)})
    assert "damaged" in refused(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_is_refused(saved, tmp_path, method):
    write(tmp_path / "links.keyless", saved, compression=method)
    assert "damaged or of another kind" in refused(tmp_path / "links.keyless")


def test_encrypted_parts_are_refused(saved, tmp_path):
    path = tmp_path / "links.keyless"
    write(path, saved)
    content = bytearray(path.read_bytes())
    # The mark of encryption, in every entry of the directory at the end.
    at = content.find(b"PK\x01\x02")
    while at >= 0:
        struct.pack_into("<H", content, at + 8, 1)
        at = content.find(b"PK\x01\x02", at + 4)
    path.write_bytes(content)
    assert "damaged or of another kind" in refused(path)


def test_the_same_part_twice_is_refused(saved, tmp_path):
    path = tmp_path / "links.keyless"
    write(path, saved)
    with zipfile.ZipFile(path, "a") as made, pytest.warns(UserWarning, match="Duplicate"):
        made.writestr("links.json", saved["links.json"])
    assert "damaged or of another kind" in refused(path)


def test_deep_json_is_refused(saved, tmp_path):
    write(tmp_path / "links.keyless", saved | {"links.json": b"[" * 200_000})
    assert "damaged or of another kind" in refused(tmp_path / "links.keyless")


def test_large_documents_are_stored_and_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_LONG_DOCUMENT", 1_000)
    write_archive(tmp_path / "long", {"x": "y" * 2_000}, {})
    assert archive.read_archive(tmp_path / "long")[0] == {"x": "y" * 2_000}
    with zipfile.ZipFile(tmp_path / "packed", "w", compression=zipfile.ZIP_DEFLATED) as made:
        made.writestr("links.json", members_of(tmp_path / "long")["links.json"])
    with pytest.raises(InputError, match="unpacked it would take"):
        archive.read_archive(tmp_path / "packed")


@settings(max_examples=60, deadline=None)
@given(draw=st.randoms(use_true_random=False))
def test_whatever_is_changed_the_answer_is_a_result_or_one_line(draw):
    content = hostile_archive(saved_members(), draw)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "links.keyless"
        path.write_bytes(content)
        loaded_or_refused(path)
        assert path.read_bytes() == content


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_truncated_stage_says_how_to_go_on(tmp_path):
    Checkpoints(tmp_path, "key").stage("search", lambda: (1.0, np.arange(500.0)))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"damaged or of another kind\. Leave --resume out, or remove the checkpoint"):
        Checkpoints(tmp_path, "key").stage("search", lambda: pytest.fail("made again"))


@pytest.mark.parametrize(
    "stage",
    [
        {"class": ["os", "system"], "fields": {}},
        {"class": ["keyless.places", "remove"], "fields": {"path": "/"}},
        {"class": ["keyless.errors", "Status"], "fields": {"unknown": 1}},
        {"class": ["keyless.nowhere", "Status"], "fields": {}},
        {"array": "missing"},
        {"sparse": [{"array": "0"}], "shape": [1]},
        {"other": 1},
    ],
)
def test_stages_that_keyless_did_not_write_are_refused(tmp_path, stage):
    write_archive(tmp_path / "search-key.stage", {"stage": stage}, {"0": np.arange(3.0)})
    with pytest.raises(InputError, match=r"Leave --resume out, or remove the checkpoint, to start from the beginning"):
        Checkpoints(tmp_path, "key").stage("search", lambda: pytest.fail("made again"))


# --- equal runs ------------------------------------------------------------------------------------------------------


def test_equal_results_give_equal_files_whenever_they_are_written(tmp_path, monkeypatch):
    links = links_of(tables())
    links.save(tmp_path / "one")
    later = time.time() + 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(later))
    links_of(tables()).save(tmp_path / "two")
    keyless.load(tmp_path / "one").save(tmp_path / "three")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "three").read_bytes()


def test_times_are_no_part_of_a_saved_result(tmp_path):
    links = links_of(tables())
    assert "seconds" in links.history[0]
    links.save(tmp_path / "links")
    assert b"seconds" not in members_of(tmp_path / "links")["links.json"]
    assert keyless.load(tmp_path / "links").plot_objective().get_xlabel() == "steps"


def test_the_pages_of_equal_runs_are_equal_however_long_they_took(tmp_path):
    links = links_of(tables())
    slower = replace(links, history=tuple(record | {"seconds": 77.0} for record in links.history))
    links.save(tmp_path / "links")
    pages = {render(links), render(slower), render(keyless.load(tmp_path / "links"))}
    assert len(pages) == 1


def test_seeded_changes_are_the_same_each_time(saved):
    assert hostile_archive(saved, random.Random(5)) != hostile_archive(saved, random.Random(6))
