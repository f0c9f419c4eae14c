"""Large tables: read in batches, held once, given back exactly, and never a matrix per row for all rows at once."""

import os
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import keyless
from keyless.block import Block
from keyless.engine import search
from keyless.errors import CONVERGED, InputError
from keyless.evidence import Evidence
from keyless.links import Links, TableLink
from keyless.model import joint_model
from keyless.model.factor_model import FactorModel, information, posterior
from keyless.model.joint_model import JointModel
from keyless.model.scales import scale_table
from keyless.pairs import placing
from keyless.parallel import workers
from keyless.report.matches import match_table, second_best
from keyless.runs.outputs import match_records
from keyless.sizes import LARGE_ROWS
from keyless.tables import Reading, memory, memory_needed, read_table, read_tables, with_missingness
from keyless.tables import batches as large_room

NAN = np.nan
EVIDENCE = Evidence("linked", 5.5, (1.0, 1.25), 3.0, 1.0, 3)


@pytest.fixture
def tiny(monkeypatch):
    """Every table is large, and is read a few rows at a time."""
    monkeypatch.setattr(memory, "LARGE_CELLS", 1)
    monkeypatch.setattr(large_room, "_CELLS_AT_A_TIME", 64)
    monkeypatch.setattr(large_room, "_ROWS_AT_A_TIME", 7)


@pytest.fixture
def write(tmp_path):
    def make(columns, name="lab", *, rows_per_group=40, **options):
        path = tmp_path / f"{name}.parquet"
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, path, row_group_size=rows_per_group, **options)
        return path

    return make


def mixed(rows=150, seed=0):
    """Columns of every type that is read in batches, with both kinds of gaps."""
    rng = np.random.default_rng(seed)
    gone = rng.random((6, rows)) < 0.2
    wide = rng.normal(size=rows)
    wide[gone[0]] = NAN
    return {
        "serial_id": pa.array(rng.permutation(rows) + 5, pa.int64()),
        "wide": pa.array(wide),
        "null": pa.array(rng.normal(size=rows), mask=gone[1]),
        "narrow": pa.array(rng.normal(size=rows).astype(np.float32), mask=gone[2]),
        "half": pa.array(rng.normal(size=rows).astype(np.float16)),
        "long": pa.array(rng.integers(-50, 10**6, rows), pa.int64(), mask=gone[3]),
        "byte": pa.array(rng.integers(0, 200, rows), pa.uint8()),
        "yes": pa.array(rng.random(rows) < 0.5, mask=gone[4]),
        "no": pa.array(np.zeros(rows, dtype=bool), mask=gone[5]),
        "same": pa.array(np.full(rows, 2.5)),
        "empty": pa.array([None] * rows, pa.float64()),
    }


def both(path, monkeypatch, reading=None, *, name="lab"):
    """The same file read in batches and whole."""
    batched = read_table(path, name=name, reading=reading)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "LARGE_CELLS", 10**9)
        return batched, read_table(path, name=name, reading=reading)


def linked(tables, permutations, *, model=None, shared=True, coupling=None):
    """Links whose permutations are given and whose model is made up."""
    rng = np.random.default_rng(1)
    read = read_tables(tables)[0]
    width, rank = sum(table.block.shape[1] for table in read), 3
    if model is None:
        factors = FactorModel(
            rng.normal(size=(width, rank)) / 2,
            rng.normal(size=width) / 5,
            rng.uniform(0.1, 0.4, width),
            0.01 * np.broadcast_to(np.eye(rank + 1), (width, rank + 1, rank + 1)),
            np.ones(rank + 1),
        )
        scales = tuple(scale_table(table.block.values, table.block.mask, kind="identity")[1] for table in read)
        model = JointModel(factors, scales, shared=shared)
    found = {}
    for table, permutation in zip(read[1:], permutations, strict=True):
        shape = len(permutation), table.block.shape[0]
        soft = np.full(shape, 1 / shape[1]) if coupling is None else coupling
        found[table.name] = TableLink(np.asarray(permutation), rng.random(shape[0]), np.ones(shape[0]), soft, EVIDENCE)
    return Links(read, found, model, CONVERGED, {"route": "pairs"})


def test_a_large_frame_is_held_beside_its_numbers_only(monkeypatch, rng):
    """A frame of 80 MB in double precision: 40 MB of numbers, and no more than a few columns at a time."""
    frame = pd.DataFrame(rng.normal(size=(200_000, 50))).add_prefix("x")
    monkeypatch.setattr(memory, "LARGE_CELLS", 10**6)
    tracemalloc.start()
    table = read_table(frame, name="lab")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert table.block.values.dtype == np.float32
    np.testing.assert_array_equal(table.block.values, frame.to_numpy(dtype=np.float32))
    assert not any(table.block.mask.strides)
    assert peak < 40e6 + 12 * 200_000 * 8


@pytest.mark.usefixtures("tiny")
def test_a_large_frame_is_read_as_a_small_one_is(monkeypatch, rng):
    frame = pa.table(mixed()).to_pandas().drop(columns="half")
    frame["word"] = rng.choice(["u", "v", "w", "x"], len(frame))
    frame.loc[3, "word"] = None
    exact = frame.assign(time=1.7e9 + rng.random(len(frame)))
    for given, dtype in ((frame, np.float32), (exact, np.float64)):
        large = read_table(given, name="lab")
        with monkeypatch.context() as patch:
            patch.setattr(memory, "LARGE_CELLS", 10**9)
            small = read_table(given, name="lab")
        assert large.block.values.dtype == dtype
        np.testing.assert_array_equal(large.block.mask, small.block.mask)
        np.testing.assert_array_equal(large.block.values, small.block.values.astype(dtype))
        assert (large.uses, large.columns, large.notes) == (small.uses, small.columns, small.notes)


# --- reading in batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop": ("wide", "lab:yes")},
        {"within": "byte"},
        {"as_number": ("serial_id", "long")},
        {"id": "serial_id", "drop": "null"},
        {"drop": ("serial_id", "half", "same", "long")},
    ],
)
@pytest.mark.usefixtures("tiny")
def test_a_file_read_in_batches_is_the_file_read_whole(write, monkeypatch, options):
    batched, whole = both(write(mixed()), monkeypatch, Reading(**options))
    assert batched.large_file is not None
    assert batched.native is None
    assert whole.large_file is None
    assert batched.block.values.dtype == np.float32
    np.testing.assert_array_equal(batched.block.mask, whole.block.mask)
    np.testing.assert_array_equal(batched.block.values, whole.block.values.astype(np.float32))
    for part in ("uses", "columns", "notes", "id_column", "left_out", "source", "indexed", "index"):
        assert getattr(batched, part) == getattr(whole, part)
    assert batched.all_columns == tuple(whole.all_columns)
    assert list(batched.row_ids) == list(whole.row_ids)
    for use in batched.uses:
        assert pd.Series(batched.column(use.name)).equals(pd.Series(whole.column(use.name)))
        assert batched.levels(use) == whole.levels(use)


@pytest.mark.usefixtures("tiny")
def test_groups_of_rows_of_any_size_are_read(write, monkeypatch):
    for size in (1, 13, 1000):
        batched, whole = both(write(mixed(), rows_per_group=size), monkeypatch)
        np.testing.assert_array_equal(batched.block.values, whole.block.values.astype(np.float32))


@pytest.mark.usefixtures("tiny")
def test_a_complete_table_has_a_mask_that_takes_no_memory(write, rng):
    columns = {f"x{k}": rng.normal(size=50) for k in range(4)}
    block = read_table(write(columns), name="lab").block
    assert block.mask.all()
    assert block.mask.shape == (50, 4)
    assert block.mask.strides == (0, 0)
    assert not block.mask.flags.writeable
    columns["x2"][7] = NAN
    block = read_table(write(columns), name="lab").block
    assert np.argwhere(~block.mask).tolist() == [[7, 2]]
    assert block.values[7, 2] == 0


@pytest.mark.usefixtures("tiny")
def test_text_in_a_column_that_is_not_used_does_not_hinder(write, monkeypatch):
    rng = np.random.default_rng(3)
    columns = {"x": rng.normal(size=30), "y": rng.normal(size=30), "note": [f"n{i}" for i in range(30)]}
    path = write(columns)
    assert read_table(path, name="lab").large_file is None
    for reading in (Reading(drop="note"), Reading(id="note")):
        batched, whole = both(path, monkeypatch, reading)
        assert batched.large_file is not None
        assert batched.uses == whole.uses
        assert batched.row_ids == whole.row_ids
        assert batched.column("note") == columns["note"]


@pytest.mark.parametrize(
    ("make", "reading"),
    [
        (lambda frame: frame.assign(c=list("ab") * 10), Reading()),
        (lambda frame: frame.assign(t=pd.date_range("2020", periods=20)), Reading()),
        (lambda frame: frame.assign(k=[1, 2] * 10), Reading(as_category="k")),
        (lambda frame: frame.set_axis([f"r{i}" for i in range(20)]), Reading()),
        (lambda frame: frame.set_axis(range(5, 25)), Reading()),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_other_files_are_read_whole(tmp_path, rng, make, reading):
    frame = make(pd.DataFrame(rng.normal(size=(20, 3)), columns=list("uvw")))
    frame.to_parquet(tmp_path / "lab.parquet")
    table = read_table(tmp_path / "lab.parquet", name="lab", reading=reading)
    assert table.large_file is None
    assert isinstance(table.native, pd.DataFrame)


@pytest.mark.usefixtures("tiny")
def test_files_that_pandas_wrote_are_read_in_batches(tmp_path, monkeypatch, rng):
    frame = pd.DataFrame(rng.normal(size=(90, 3)), columns=["a", "a.b", "c"]).assign(k=rng.integers(0, 9, 90))
    frame.to_parquet(tmp_path / "lab.parquet", row_group_size=25)
    batched, whole = both(tmp_path / "lab.parquet", monkeypatch)
    assert batched.large_file is not None
    np.testing.assert_array_equal(batched.block.values, whole.block.values.astype(np.float32))
    rows = np.arange(90)[::-1]
    pd.testing.assert_frame_equal(batched.rebuilt(np.zeros((90, 4)), rows), whole.rebuilt(np.zeros((90, 4)), rows))


def test_small_files_and_arrays_stay_as_they_are(write, rng):
    table = read_table(write({"x": rng.normal(size=50).astype(np.float32)}), name="lab")
    assert table.large_file is None
    assert table.block.values.dtype == np.float64
    assert table.row_ids == tuple(range(50))
    given = rng.normal(size=(50, 2)).astype(np.float32)
    block = read_table(given, name="lab").block
    assert block.values.dtype == np.float64
    assert not np.shares_memory(block.values, given)


@pytest.mark.parametrize(
    ("entries", "dtype"),
    [
        (np.arange(40) + 2**24, np.float64),
        (np.arange(40) * 2**20, np.float32),
        (1.7e9 + np.arange(40) / 7, np.float64),
        (np.linspace(-3, 3, 40), np.float32),
        (np.linspace(1, 2, 40) * 1e300, np.float64),
        (np.linspace(1, 2, 40) * 1e-50, np.float64),
        (10.0 ** np.arange(-20, 20), np.float32),
        (np.where(np.arange(40) < 39, 0.5, 2.0**24 + 1), np.float32),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_precision_is_as_high_as_the_columns_need(write, monkeypatch, entries, dtype):
    path = write({"x": entries, "y": np.linspace(0, 1, 40).astype(np.float32)})
    batched, whole = both(path, monkeypatch)
    assert batched.block.values.dtype == dtype
    np.testing.assert_allclose(batched.block.values, whole.block.values, rtol=1e-7 if dtype == np.float32 else 0)


@pytest.mark.usefixtures("tiny")
def test_precision_that_only_later_rows_need(write, monkeypatch):
    rng = np.random.default_rng(0)
    late = np.concatenate([np.zeros(60), 1e300 * rng.random(60)])
    batched, whole = both(write({"x": late, "y": rng.normal(size=120)}), monkeypatch)
    assert batched.block.values.dtype == np.float64
    np.testing.assert_array_equal(batched.block.values, whole.block.values)


@pytest.mark.usefixtures("tiny")
def test_what_cannot_be_used_is_refused_in_the_same_words(write, monkeypatch):
    rng = np.random.default_rng(0)
    infinite = rng.normal(size=(2, 60))
    infinite[:, 33] = np.inf
    cases = [
        (write({"x": infinite[0], "y": infinite[1]}, "inf"), Reading()),
        (write({"x": np.ones(60), "y": np.zeros(60)}, "same"), Reading()),
        (write({"x": [1, 1, 2], "y": rng.normal(size=3)}, "ids"), Reading(id="x")),
        (write({"x": [1, 2, 3], "y": [4, 5, 6]}, "two"), Reading(id=("x", "y"))),
        (write({"x": rng.normal(size=60)}, "option"), Reading(drop="z")),
    ]
    for path, reading in cases:
        with pytest.raises(InputError) as batched:
            read_table(path, name="lab", reading=reading)
        with monkeypatch.context() as patch:
            patch.setattr(memory, "LARGE_CELLS", 10**9)
            with pytest.raises(InputError) as whole:
                read_table(path, name="lab", reading=reading)
        assert str(batched.value) == str(whole.value)
    with pytest.raises(InputError, match=r"^inf\.parquet: must fit in memory; a table of 60 × 2 numbers needs about"):
        read_table(cases[0][0], name="lab", reading=Reading(max_memory=1000))
    damaged = cases[0][0]
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"^inf\.parquet: must be a Parquet file; it is damaged"):
        read_table(damaged, name="lab")


def test_reading_never_holds_the_table_twice(write, monkeypatch):
    rows, width = 400_000, 30
    rng = np.random.default_rng(0)
    columns = {f"x{k}": rng.normal(size=rows) for k in range(width - 1)}
    path = write(columns | {"constant": np.ones(rows)}, rows_per_group=rows, compression="none")
    del columns
    monkeypatch.setattr(memory, "LARGE_CELLS", 10**6)
    # A pool of its own says how much the library that reads the file takes.
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        table = read_table(path, name="lab")
        _, numbers = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    size = 4 * rows * width
    assert table.large_file is not None
    assert table.block.shape == (rows, width - 1)
    assert numbers < 1.4 * size
    # A page of each column and a batch, whatever the size of the file; all of it would be twice the size, or more.
    assert pool.max_memory() < 1.5 * size


# --- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.usefixtures("tiny")
def test_large_arrays_are_used_where_they_are(tmp_path, rng, dtype):
    given = rng.normal(size=(60, 4)).astype(dtype)
    np.save(tmp_path / "given.npy", given)
    for array in (given, np.load(tmp_path / "given.npy", mmap_mode="r"), np.asfortranarray(given)):
        table = read_table(array, name="lab")
        assert np.shares_memory(table.block.values, array)
        assert table.block.values.dtype == dtype
        assert table.matrix is None
        again = read_tables({"a": table, "b": array})[0][0]
        assert np.shares_memory(again.block.values, array)
        assert with_missingness(table) is table
        back = table.rebuilt(np.zeros((60, 4)), np.arange(60)[::-1])
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, given[::-1])
    assert given.flags.writeable


@pytest.mark.usefixtures("tiny")
def test_large_arrays_are_copied_once_where_they_must_be(rng, monkeypatch):
    gaps = rng.normal(size=(60, 4)).astype(np.float32)
    gaps[rng.random(gaps.shape) < 0.3] = NAN
    cases = [
        (gaps, np.float32, Reading()),
        (gaps, np.float32, Reading(drop="lab_1")),
        (gaps.astype(np.float16), np.float32, Reading()),
        (gaps.astype(">f4"), np.float32, Reading()),
        (rng.integers(0, 99, (60, 4)).astype(np.int16), np.float32, Reading(drop="lab_0")),
        (rng.integers(0, 2**60, (60, 4)), np.float64, Reading()),
        (rng.random((60, 4)) < 0.5, np.float32, Reading()),
    ]
    rows = rng.permutation(60)
    rows[:5] = -1
    for given, dtype, reading in cases:
        batched, whole = both(given, monkeypatch, reading)
        assert batched.block.values.dtype == dtype
        assert batched.uses == whole.uses
        np.testing.assert_array_equal(batched.block.mask, whole.block.mask)
        np.testing.assert_array_equal(batched.block.values, whole.block.values.astype(dtype))
        filled = rng.random(whole.block.shape) * 50
        one, two = batched.rebuilt(filled, rows), whole.rebuilt(filled, rows)
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(batched.marked(rows), whole.marked(rows))


@pytest.mark.usefixtures("tiny")
def test_bad_large_arrays_are_refused():
    with pytest.raises(InputError, match=r"^lab, row 2, column 1: must be a finite number; found an infinity"):
        read_table(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, np.inf]]), name="lab")
    with pytest.raises(InputError, match="masked array"):
        read_table(np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[True, False], [False, False]]), name="lab")
    with pytest.raises(InputError, match="all are named in drop"):
        read_table(np.eye(3), name="lab", reading=Reading(drop=("lab_0", "lab_1", "lab_2")))


def test_a_block_copies_what_can_be_written_to_and_only_that(rng):
    values = rng.normal(size=(5, 3)).astype(np.float32)
    mask = rng.random((5, 3)) < 0.5
    assert not np.shares_memory(Block(values, mask).values, values)
    settled = np.where(mask, values, np.float32(0))
    settled.flags.writeable = False
    assert np.shares_memory(Block(settled, mask).values, settled)
    values.flags.writeable = False
    np.testing.assert_array_equal(Block(values, mask).values, settled)
    everything = np.broadcast_to(np.True_, (5, 3))
    assert Block(values, everything).mask.strides == (0, 0)
    nothing = np.broadcast_to(np.False_, (5, 3))
    assert not Block(values, nothing).values.any()
    assert Block(values, row_ids=range(5)).row_ids == range(5)
    with pytest.raises(InputError, match="row_ids: must hold 5 labels; found 4"):
        Block(values, row_ids=range(4))


# --- the way back ----------------------------------------------------------------------------------------------------


def two_files(write, *, rows=150):
    lab = mixed(rows, seed=1)
    lab = {f"l_{name}": column for name, column in lab.items() if name not in ("serial_id", "half")}
    return {"clinic": write(mixed(rows), "clinic"), "lab": write(lab | {"wide": mixed(rows, seed=2)["wide"]}, "lab")}


@pytest.fixture
def permutation(rng):
    found = rng.permutation(150)
    found[rng.random(150) < 0.1] = -1
    return found


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.usefixtures("tiny")
def test_what_was_observed_comes_back_bit_for_bit(write, monkeypatch, permutation, shared):
    files = two_files(write)
    found = linked(files, [permutation], shared=shared)
    assert found._large
    with monkeypatch.context() as patch:
        patch.setattr(memory, "LARGE_CELLS", 10**9)
        whole = linked(files, [permutation], model=found.model)
        expected = {name: (whole.completed[name], whole.filled[name], whole.standard_errors[name]) for name in files}
        joined, factors = whole.joined(), whole.factors
    for name, (completed, filled, errors) in expected.items():
        again = found.completed[name]
        assert list(again.columns) == list(completed.columns)
        assert again.dtypes.equals(completed.dtypes)
        pd.testing.assert_frame_equal(found.filled[name], filled)
        for column in completed.columns:
            seen = ~filled[column].to_numpy()
            assert again[column][seen].equals(completed[column][seen])
        close = {"rtol": 1e-5, "atol": 1e-5}
        used = list(found.tables[list(files).index(name)].columns)
        np.testing.assert_allclose(again[used].astype(float), completed[used].astype(float), **close)
        np.testing.assert_allclose(found.standard_errors[name], errors, **close)
        np.testing.assert_array_equal(found.standard_errors[name] == 0, errors == 0)
    assert found.joined().columns.tolist() == joined.columns.tolist()
    assert found.joined().dtypes.equals(joined.dtypes)
    np.testing.assert_allclose(found.factors, factors, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("tiny")
def test_a_file_that_has_changed_is_refused(write, permutation):
    files = two_files(write)
    found = linked(files, [permutation])
    assert found.completed["lab"].shape == (150, 10)
    table = pq.read_table(files["lab"])
    pq.write_table(table.slice(0, 149), files["lab"])
    changed = r"^lab\.parquet: must be as it was when it was read; it has changed since\. .* link the tables again\.$"
    for ask in (lambda: found.completed["lab"], found.joined, lambda: found.tables[1].column("l_wide")):
        with pytest.raises(InputError, match=changed):
            ask()
    assert found.completed["clinic"].shape == (150, 11)
    # The same size, and written later: it may hold anything.
    status = files["clinic"].stat()
    os.utime(files["clinic"], ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(InputError, match=r"^clinic\.parquet: must be as it was"):
        _ = found.completed["clinic"]
    os.utime(files["clinic"], ns=(status.st_atime_ns, status.st_mtime_ns))
    files["lab"].unlink()
    with pytest.raises(InputError, match=r"^lab\.parquet: must still be where it was read; there is nothing at"):
        found.joined()
    # What the numbers say needs no file.
    assert found.factors.shape == (150, 3)
    assert len(found.matches) == 150


@pytest.mark.usefixtures("tiny")
def test_a_large_result_is_saved_with_the_way_to_its_file(write, tmp_path, permutation, monkeypatch):
    found = linked(two_files(write), [permutation])
    found.save(tmp_path / "run.keyless")
    monkeypatch.chdir("/")
    again = keyless.load(tmp_path / "run.keyless")
    for before, after in zip(found.tables, again.tables, strict=True):
        assert after.large_file == before.large_file
        assert after.uses == before.uses
        assert after.row_ids == before.row_ids
        assert after.block.values.dtype == np.float32
        np.testing.assert_array_equal(after.block.values, before.block.values)
        np.testing.assert_array_equal(after.block.mask, before.block.mask)
    for name in found.completed:
        pd.testing.assert_frame_equal(found.completed[name], again.completed[name])


# --- some rows at a time ---------------------------------------------------------------------------------------------


def all_at_once(model, blocks, rows):
    """Filling with a matrix per row for all rows: the formulas as they are written."""
    known = []
    for t, (block, index) in enumerate(zip(blocks, rows, strict=True)):
        scores = np.zeros(block.shape)
        for k, scale in enumerate(model.scales[t]):
            scores[block.mask[:, k], k] = scale.apply(block.values[block.mask[:, k], k])
        known.append(information(model.table_factors(t), scores, block.mask).gathered(index))
    total = known[0]
    for part in known[1:]:
        total = total + part
    filled = []
    for t, (block, index) in enumerate(zip(blocks, rows, strict=True)):
        columns = model.table_factors(t)
        means, covariance, _ = posterior(total if model.shared else known[t])
        scores = means @ columns.loadings.T + columns.offsets
        deviation = np.sqrt(np.einsum("nab,ka,kb->nk", covariance, columns.loadings, columns.loadings) + columns.noise)
        scales = model.scales[t]
        values = np.column_stack([scale.undo(scores[:, k]) for k, scale in enumerate(scales)])
        errors = np.column_stack([scale.slope(scores[:, k]) * deviation[:, k] for k, scale in enumerate(scales)])
        observed = block.mask[np.maximum(index, 0)] & (index >= 0)[:, None]
        values[observed] = block.values[np.maximum(index, 0)][observed]
        errors[observed] = 0.0
        filled.append((values, errors))
    return filled, posterior(total if model.shared else known[0])[0], total


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("gaps", [True, False])
def test_filling_some_rows_at_a_time_changes_nothing(rng, monkeypatch, shared, gaps):
    tables = {"a": rng.normal(size=(200, 6)), "b": rng.normal(size=(190, 5)), "c": rng.normal(size=(200, 4))}
    places = [rng.permutation(200), rng.permutation(200)]
    places[0] = np.where(places[0] < 190, places[0], -1)
    if gaps:
        for table in tables.values():
            table[rng.random(table.shape) < 0.3] = NAN
    found = linked(tables, places, shared=shared)
    blocks, rows = found._placed
    expected, factors, total = all_at_once(found.model, blocks, rows)
    monkeypatch.setattr(joint_model, "_CELLS_AT_A_TIME", 1)
    assert len(list(found.model.parts(200))) == 4
    for (values, errors), (wanted, deviations) in zip(found.model.complete(blocks, rows), expected, strict=True):
        np.testing.assert_allclose(values, wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(errors, deviations, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.factors, factors, rtol=1e-12, atol=1e-12)
    told = found.model.entity_information(blocks, rows)
    np.testing.assert_allclose(told.precision, total.precision, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(told.shift, total.shift, rtol=1e-12, atol=1e-12)
    for number, (wanted, deviations) in enumerate(expected):
        missing = deviations > 0
        part = found.model.gaps(number, blocks, rows)
        np.testing.assert_allclose(part[missing], wanted[missing], rtol=1e-12)
        assert not part[~missing].any()
        np.testing.assert_allclose(found.model.gap_errors(number, blocks, rows), deviations, rtol=1e-12, atol=1e-12)


def test_no_matrix_per_row_is_held_for_all_rows(rng):
    """50,000 rows at rank 12: a matrix for each row would take 58 MB, and filling made four of them."""
    rows, rank = 50_000, 12
    values = rng.normal(size=(rows, 14))
    values[rng.random(values.shape) < 0.2] = NAN
    blocks = [Block(values[:, :8], ~np.isnan(values[:, :8])), Block(values[:, 8:], ~np.isnan(values[:, 8:]))]
    scales = tuple(scale_table(block.values, block.mask, kind="identity")[1] for block in blocks)
    factors = FactorModel(
        rng.normal(size=(14, rank)), np.zeros(14), np.ones(14), np.zeros((14, rank + 1, rank + 1)), np.ones(rank + 1)
    )
    model, places = JointModel(factors, scales), [np.arange(rows)] * 2
    tracemalloc.start()
    try:
        model.complete(blocks, places)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 8 * values.size + 8 * rows * rank**2


@pytest.mark.parametrize("gaps", [True, False])
@pytest.mark.parametrize("approximately", [True, False])
def test_new_rows_are_placed_the_same_whole_or_in_parts(rng, monkeypatch, gaps, approximately):
    latent = rng.normal(size=(300, 3))
    tables = {name: latent @ rng.normal(size=(3, 6)) + 0.1 * rng.normal(size=(300, 6)) for name in "ab"}
    fresh = tables["b"][rng.permutation(300)[:40]] + 0.05 * rng.normal(size=(40, 6))
    if gaps:
        for table in tables.values():
            table[rng.random(table.shape) < 0.15] = NAN
    found = linked(tables, [np.arange(300)])

    def placed():
        """The candidates of each new row, and apart from them how likely it is nobody."""
        lines = found.place(fresh, table="b", candidates=7)
        nobody = lines["reference_id"].isna()
        return lines[~nobody].reset_index(drop=True), lines[nobody].sort_values("row")["probability"].to_numpy()

    whole, nobody = placed()
    if gaps:
        # All pairs exactly, as few pairs are compared.
        blocks, rows = found._placed
        known = found.model.entity_information(blocks, rows, without=1)
        new = found.model.information(1, Block(fresh))
        pairs = [index.ravel() for index in np.indices((40, 300))]
        exact = placing.exact_log_ratio(new, known, *pairs).reshape(40, 300)
        best = np.argsort(-exact, axis=1, kind="stable")[:, :7]
        probability = np.exp(exact) / (300 + np.exp(exact).sum(axis=1, keepdims=True))
        whole["reference_id"] = best.ravel()
        whole["probability"] = np.take_along_axis(probability, best, axis=1).ravel()
        np.testing.assert_allclose(nobody, 1 - probability.sum(axis=1), atol=1e-9)
    monkeypatch.setattr(joint_model, "_CELLS_AT_A_TIME", 1)
    if approximately:
        monkeypatch.setattr(placing, "_EXACT_PAIRS", 700)
        monkeypatch.setattr(placing, "_PAIRS_AT_A_TIME", 1000)
    parts, nobody_in_parts = placed()
    np.testing.assert_allclose(nobody_in_parts, nobody, rtol=0.02 if gaps and approximately else 1e-9, atol=1e-9)
    assert parts["row"].tolist() == whole["row"].tolist()
    if gaps and approximately:
        # Rows beyond the best of each part weigh next to nothing; only those may differ.
        first = parts.groupby("row").head(2)
        assert (first["reference_id"] == whole.loc[first.index, "reference_id"]).all()
        np.testing.assert_allclose(first["probability"], whole.loc[first.index, "probability"], rtol=0.02, atol=1e-4)
    else:
        assert parts["reference_id"].tolist() == whole["reference_id"].tolist()
        np.testing.assert_allclose(parts["probability"], whole["probability"], rtol=1e-9)


# --- many rows -------------------------------------------------------------------------------------------------------


def test_a_sparse_coupling_stays_sparse_and_is_saved(tmp_path, rng):
    tables = [rng.normal(size=(60, 3)), rng.normal(size=(50, 2))]
    soft = sparse.random_array((60, 50), density=0.1, rng=rng, format="csr")
    found = linked(tables, [np.where(np.arange(60) < 50, np.arange(60), -1)], coupling=soft)
    assert found.coupling("table1") is soft
    found.save(tmp_path / "run.keyless")
    again = keyless.load(tmp_path / "run.keyless").coupling("table1")
    assert isinstance(again, sparse.csr_array)
    assert again.shape == (60, 50)
    np.testing.assert_array_equal(again.toarray(), soft.toarray())
    assert len(again.data) == len(soft.data)
    best, likely = second_best(found, "table1")
    dense = replace(found, found={"table1": replace(found.found["table1"], coupling=soft.toarray())})
    for one, two in zip((best, likely), second_best(dense, "table1"), strict=True):
        np.testing.assert_array_equal(one, two)


def test_large_arrays_are_saved_as_they_are(tmp_path, monkeypatch, rng):
    monkeypatch.setattr("keyless.saved.archive._LARGE", 1000)
    found = linked([np.zeros((200, 3)) + rng.normal(size=3), rng.normal(size=(200, 2))], [np.arange(200)])
    found.save(tmp_path / "run.keyless")
    with zipfile.ZipFile(tmp_path / "run.keyless") as archive:
        stored = {entry.filename: entry.compress_type for entry in archive.infolist()}
    assert stored["arrays/0.values.npy"] == zipfile.ZIP_STORED
    assert stored["arrays/0.mask.npy"] == zipfile.ZIP_DEFLATED
    again = keyless.load(tmp_path / "run.keyless")
    np.testing.assert_array_equal(again.tables[0].block.values, found.tables[0].block.values)


def test_a_sparse_coupling_that_does_not_fit_is_refused(tmp_path, rng):
    tables = [rng.normal(size=(6, 3)), rng.normal(size=(6, 2))]
    for soft in (sparse.csr_array(np.eye(6)[:5]), sparse.csr_array(np.eye(6))):
        if soft.shape[0] == 6:
            soft.indices[0] = 77
        linked(tables, [np.arange(6)], coupling=soft).save(tmp_path / "run.keyless")
        with pytest.raises(InputError, match="must be a saved keyless result"):
            keyless.load(tmp_path / "run.keyless")


def test_many_rows_are_numbered_without_a_list_and_matched_at_once(rng):
    count = 200_000
    assert count > LARGE_ROWS
    soft = sparse.eye_array(count, format="csr")
    permutation = rng.permutation(count)
    permutation[:3] = -1
    tables = {"a": rng.normal(size=(count, 1)), "b": pd.DataFrame({"x": rng.normal(size=count)})}
    found = linked(tables, [permutation], coupling=soft)
    assert all(table.row_ids == range(count) for table in found.tables)
    matches = found.matches
    assert matches["reference_id"].equals(pd.Series(np.arange(count), name="reference_id"))
    assert matches["row_id"].dtype == "Int64"
    assert matches["row_id"].isna().sum() == 3
    assert matches["row_id"][3:].tolist() == permutation[3:].tolist()
    assert set(matches["table"]) == {"b"}
    np.testing.assert_array_equal(matches["probability"], found.found["b"].probability)
    listed = replace(
        found, tables=tuple(replace(t, block=replace(t.block, row_ids=tuple(t.row_ids))) for t in found.tables)
    )
    pd.testing.assert_frame_equal(listed.matches, matches)
    records = match_records(found)
    assert [record["reference_id"] for record in records] == [str(row) for row in range(count)]
    assert [record["row_id"] for record in records] == [None if row < 0 else str(row) for row in permutation]
    assert [record["probability"] for record in records] == found.found["b"].probability.tolist()


def test_matches_beyond_what_a_page_holds_are_not_packed(monkeypatch, rng):
    found = linked([rng.normal(size=(80, 2)), rng.normal(size=(80, 2))], [rng.permutation(80)])
    monkeypatch.setattr("keyless.report.matches.MOST", 30)
    table = match_table(found)
    assert (table.kept, table.total) == (30, 80)


def test_memory_grows_with_the_rows_and_not_with_their_square():
    below = LARGE_ROWS - 1
    searched = (200 + 40 * workers()) * search._MOST_ROWS**2
    assert memory_needed([(below, 2), (below, 2)]) == 160 * below**2 + searched + 2 * below * 2 * 25 + 10**8
    linear = [memory_needed([(n, 60), (n, 40)]) for n in (10**6, 2 * 10**6, 3 * 10**6)]
    assert linear[2] - linear[1] == linear[1] - linear[0] > 0
    assert memory_needed([(10**7, 60), (10**7, 40)]) < 18 * 10**9
    assert memory_needed([(LARGE_ROWS, 2), (LARGE_ROWS, 2)]) < 160 * LARGE_ROWS**2


def test_what_is_held_already_is_not_asked_for_twice(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    memory.check_memory(1500, max_memory=None, where="t", what="w", held=500)
    with pytest.raises(InputError, match="must fit in memory"):
        memory.check_memory(1501, max_memory=None, where="t", what="w", held=500)
    with pytest.raises(InputError, match="allowed by max_memory"):
        memory.check_memory(1500, max_memory=1000, where="t", what="w", held=500)
