"""Folders of Parquet files: read as one table, small ones whole, large ones onto the disk."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import keyless
from keyless import runs
from keyless.cluster import OnDisk
from keyless.datasets import make_shuffled_tables
from keyless.errors import CONVERGED, InputError
from keyless.evidence import Evidence
from keyless.links import Links, TableLink
from keyless.model import shards
from keyless.model.factor_model import FactorModel
from keyless.model.joint_model import JointModel
from keyless.model.scales import scale_table
from keyless.pairs import nearest_rows
from keyless.tables import Reading, batches, memory, read_table, read_tables, with_missingness
from keyless.tables.parquet import parquet_files


@pytest.fixture
def large(monkeypatch):
    """Every table is large."""
    monkeypatch.setattr(memory, "LARGE_CELLS", 1)


@pytest.fixture
def write(tmp_path):
    def make(frame, name="lab", *, parts=3):
        folder = tmp_path / name
        folder.mkdir()
        for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
            pq.write_table(pa.Table.from_pandas(frame.iloc[rows], preserve_index=False), folder / f"{number}.parquet")
        return folder

    return make


def frame(rng, rows=90, *, gaps=True):
    made = pd.DataFrame({"x": rng.normal(size=rows), "n": rng.integers(0, 9, rows), "y": rng.normal(size=rows)})
    made["flag"] = rng.random(rows) < 0.5
    made["same"] = 3.0
    if gaps:
        # In the second of three files only.
        made.loc[rows // 2, "y"] = np.nan
    return made


def made_up(left, right, permutation):
    """Links of two folders with a given permutation and a model of nothing in particular."""
    tables, _ = read_tables([left, right])
    rng = np.random.default_rng(1)
    width = sum(table.block.shape[1] for table in tables)
    factors = FactorModel(
        rng.normal(size=(width, 2)) / 2,
        np.zeros(width),
        np.full(width, 0.3),
        0.01 * np.broadcast_to(np.eye(3), (width, 3, 3)),
        np.ones(3),
    )
    scales = tuple(scale_table(table.block.values, table.block.mask, kind="identity")[1] for table in tables)
    coupling = sparse.csr_array((len(permutation), tables[1].block.shape[0]))
    chance = rng.random(len(permutation))
    evidence = Evidence("linked", 5.5, (1.0,), 3.0, 1.0, 3)
    link = TableLink(permutation, chance, np.ones(len(permutation)), coupling, evidence)
    return Links(tables, {"b": link}, JointModel(factors, scales), CONVERGED, {"route": "columns"})


def test_files_are_in_the_order_of_their_numbers(tmp_path):
    names = ["part.10.parquet", "part.9.parquet", "part.2.parquet", "deep=1/part.0.parquet", "x.csv", "_meta.parquet"]
    for name in [*names, ".hidden/a.parquet"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in parquet_files(tmp_path)]
    assert found == ["deep=1/part.0.parquet", "part.2.parquet", "part.9.parquet", "part.10.parquet"]


def test_a_small_folder_is_the_frame_of_all_its_files(rng, write):
    given = frame(rng)
    given["word"] = list("abc") * 30
    read = read_table(write(given), name="lab")
    expected = read_table(given, name="lab")
    assert read.large_file is None
    np.testing.assert_array_equal(read.block.values, expected.block.values)
    assert read.columns == expected.columns


@pytest.mark.parametrize("gaps", [True, False])
@pytest.mark.usefixtures("large")
def test_a_large_folder_is_on_disk_and_the_same_as_one_file(rng, write, tmp_path, gaps):
    given = frame(rng, gaps=gaps)
    pq.write_table(pa.Table.from_pandas(given), tmp_path / "one.parquet")
    one, folder = read_table(tmp_path / "one.parquet", name="lab"), read_table(write(given), name="lab")
    assert OnDisk.behind(folder.block.values) is not None
    assert folder.block.values.dtype == one.block.values.dtype == np.float32
    np.testing.assert_array_equal(folder.block.values, one.block.values)
    np.testing.assert_array_equal(folder.block.mask, one.block.mask)
    assert bool(folder.block.mask.all()) is not gaps
    assert any(folder.block.mask.strides) is gaps
    assert folder.uses == one.uses
    assert folder.left_out == ("same",)
    for use in folder.uses:
        assert pd.Series(folder.column(use.name)).equals(pd.Series(one.column(use.name)))


@pytest.mark.usefixtures("large")
def test_numbers_that_need_double_precision_get_it_whichever_file_they_are_in(rng, write):
    given = pd.DataFrame({"x": rng.normal(size=90), "time": 1.7e9 + np.r_[np.zeros(60), rng.random(30)]})
    read = read_table(write(given), name="lab")
    assert read.block.values.dtype == np.float64
    np.testing.assert_array_equal(read.block.values, given)


@pytest.mark.parametrize("gaps", [True, False])
@pytest.mark.usefixtures("large")
def test_a_column_that_is_constant_in_each_file_is_read_to_the_end(rng, write, monkeypatch, gaps):
    """Rounding 0.1 loses something, and in one file nothing varies beside it; over all files it is little."""
    monkeypatch.setattr(batches, "_CELLS_AT_A_TIME", 1)
    monkeypatch.setattr(batches, "_ROWS_AT_A_TIME", 8)
    given = pd.DataFrame({"x": rng.normal(size=90), "day": np.repeat([0.1, 0.2, 0.3], 30)})
    if gaps:
        given.loc[[3, 20, 35], "x"] = np.nan
    read = read_table(write(given), name="lab")
    assert read.block.values.dtype == np.float32
    np.testing.assert_array_equal(read.block.mask, given.notna())
    np.testing.assert_array_equal(read.block.values, given.fillna(0).astype(np.float32))


@pytest.mark.usefixtures("large")
def test_what_is_kept_on_disk_goes_away_with_the_table(rng, write, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("KEYLESS_SCRATCH", str(scratch))
    read = read_table(write(frame(rng)), name="lab")
    assert any(scratch.rglob("*"))
    del read
    assert not any(scratch.rglob("*"))
    monkeypatch.setenv("KEYLESS_SCRATCH", str(scratch / "none"))
    with pytest.raises(InputError, match="KEYLESS_SCRATCH: must name a folder"):
        read_table(write(frame(rng), "other"), name="other")


@pytest.mark.usefixtures("large")
def test_a_disk_must_have_room_for_numbers_and_mask(rng, write, monkeypatch):
    """Of 90 rows × 5 columns: 4 bytes each, and 1."""
    folder = write(frame(rng))
    for free, enough in ((90 * 5 * 5, True), (90 * 5 * 5 - 1, False)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        with nullcontext() if enough else pytest.raises(InputError, match="KEYLESS_SCRATCH to a folder with more room"):
            read_table(folder, name="lab")


@pytest.mark.usefixtures("large")
def test_folders_that_cannot_be_read_are_refused(rng, write, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="none: must hold Parquet files"):
        read_table(tmp_path / "none", name="x")
    folder = write(frame(rng))
    pq.write_table(pa.table({"x": [1.0]}), folder / "9.parquet")
    with pytest.raises(InputError, match=r"9\.parquet: must have the same columns as 0\.parquet"):
        read_table(folder, name="x")
    (folder / "9.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"9\.parquet: must be a Parquet file"):
        read_table(folder, name="x")
    bad = frame(rng)
    bad.loc[70, "x"] = np.inf
    with pytest.raises(InputError, match="column 'x', row 70"):
        read_table(write(bad, "bad"), name="bad")


@pytest.mark.usefixtures("large")
def test_what_is_missing_is_not_made_into_columns_in_memory(rng, write):
    with pytest.raises(InputError, match="missingness: must not be asked for where numbers are on disk, as those of"):
        keyless.link(write(frame(rng), "a"), write(frame(rng), "b"), reading=Reading(missingness=True))
    complete = read_table(write(frame(rng, gaps=False)), name="lab")
    assert with_missingness(complete) is complete


@pytest.mark.usefixtures("large")
def test_a_folder_that_has_changed_is_refused(rng, write):
    folder = write(frame(rng))
    read = read_table(folder, name="lab")
    os.utime(folder / "1.parquet", ns=(1, 2**60 + 10**18))
    with pytest.raises(InputError, match="it has changed since"):
        read.column("x")


@pytest.mark.usefixtures("large")
def test_a_folder_whose_files_were_exchanged_is_refused(rng, write):
    folder = write(frame(rng))
    read = read_table(folder, name="lab")
    (folder / "0.parquet").rename(folder / "other")
    (folder / "1.parquet").rename(folder / "0.parquet")
    (folder / "other").rename(folder / "1.parquet")
    with pytest.raises(InputError, match="it has changed since"):
        read.column("x")


def test_a_folder_inside_may_be_called_as_files_are(rng, write):
    given = frame(rng)
    folder = write(given)
    (folder / "0.parquet").rename(folder / "first")
    (folder / "0.parquet").mkdir()
    (folder / "first").rename(folder / "0.parquet" / "0.parquet")
    expected = read_table(given, name="lab")
    np.testing.assert_array_equal(read_table(folder, name="lab").block.values, expected.block.values)


@pytest.mark.parametrize("cells", [1, 10**9])
def test_results_are_parquet_partitioned_as_the_reference(rng, write, tmp_path, monkeypatch, cells):
    """Column by column on disk, against the same result made whole in memory; of a large folder and of a small one."""
    monkeypatch.setattr(memory, "LARGE_CELLS", cells)
    one, other = frame(rng).drop(columns="same"), frame(rng, rows=80).drop(columns="same").add_prefix("b")
    rows = np.r_[rng.permutation(80)[:70], np.full(20, -1)]
    links = made_up(write(one, "a"), write(other, "b", parts=2), rows)
    options = {"how": "left", "min_probability": None, "fill": True}
    for number, joining in enumerate(
        [options, options | {"how": "inner"}, options | {"how": "outer", "fill": False, "min_probability": 0.3}]
    ):
        out = tmp_path / f"run{number}"
        runs.write_run(links, out, joining=joining)
        parts = [pq.read_table(out / "joined" / f"part.{k}.parquet").to_pandas() for k in range(3)]
        joined = pd.concat(parts, ignore_index=True)
        expected = links.joined(**joining)
        assert list(joined.columns) == ["reference_id", *expected.columns]
        for name in expected.columns:
            gone = expected[name].isna().to_numpy()
            assert (joined[name].isna().to_numpy() == gone).all(), name
            np.testing.assert_array_equal(
                joined[name][~gone].to_numpy(float), expected[name][~gone].to_numpy(float), err_msg=name
            )
        if joining["how"] == "left":
            assert [len(part) for part in parts] == [30, 30, 30]
            assert joined["reference_id"].tolist() == list(range(90))
    matches = pq.read_table(out / "matches").to_pandas()
    assert matches["row_id"].fillna(-1).tolist() == rows.tolist()
    np.testing.assert_array_equal(matches["probability"], links.found["b"].probability)
    for name, given in (("a", one), ("b", other)):
        completed = pq.read_table(out / "completed" / name).to_pandas().drop(columns="reference_id")
        pd.testing.assert_frame_equal(completed, links.completed[name], check_dtype=False)
        marks = pq.read_table(out / "completed" / f"{name}.filled").to_pandas().drop(columns="reference_id")
        np.testing.assert_array_equal(marks.astype(bool), links.filled[name])
        assert len(completed.columns) == len(given.columns)
    assert not list(out.glob("*.csv"))
    # The run can be replaced, and read again; the numbers are those of the folders, and not saved beside them.
    runs.write_run(links, out, joining=options)
    again = runs.read_run(out).links
    assert (again.permutations["b"] == rows).all()
    for before, after in zip(links.tables, again.tables, strict=True):
        np.testing.assert_array_equal(after.block.values, before.block.values)
        np.testing.assert_array_equal(after.block.mask, before.block.mask)
        assert (OnDisk.behind(after.block.values) is not None) is (cells == 1)
    if cells > 1:
        return
    os.utime(tmp_path / "a" / "0.parquet", ns=(1, 2**60))
    with pytest.raises(InputError, match="a: must be as it was when it was read"):
        runs.read_run(out)


@pytest.mark.soak
def test_folders_are_linked_as_frames_are(write, monkeypatch):
    """In memory, in one piece, against on disk, in four shards of each and eight cells."""
    tables, truth = make_shuffled_tables(5_000, (20, 15), rank=6, noise=0.05, random_state=3)
    frames = [
        pd.DataFrame(values).rename(columns=lambda k, t=t: f"{t}{k}")
        for t, values in zip("ab", tables.values(), strict=True)
    ]
    whole = keyless.link({"a": frames[0], "b": frames[1]}, random_state=0)
    monkeypatch.setattr(memory, "LARGE_CELLS", 1)
    monkeypatch.setattr(shards, "SHARD", 1_500)
    monkeypatch.setattr(nearest_rows, "CELL", 1_000)
    links = keyless.link(write(frames[0], "a"), write(frames[1], "b"), random_state=0)
    assert OnDisk.behind(links.tables[0].block.values) is not None
    np.testing.assert_array_equal(links.permutations["b"], whole.permutations["b"])
    np.testing.assert_array_equal(links.permutations["b"], truth["table1"])
    np.testing.assert_allclose(links.found["b"].probability, whole.found["b"].probability, atol=1e-3)
    pd.testing.assert_frame_equal(links.joined(), whole.joined(), check_exact=False, rtol=1e-5)
