"""Whatever can be linked can be written, and what cannot is refused when it is read, in one line."""

import datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyless
from hostile.making import links_of
from hostile.odd_tables import ODD, odd_reading, odd_table
from hostile.outcomes import table_outcome, written
from keyless.errors import InputError
from keyless.runs.outputs import _pandas, write_parquet
from keyless.tables import Reading, read_table

ROWS = 12


def beside(kind=pd.DataFrame):
    rng = np.random.default_rng(1)
    return kind({"b": rng.normal(size=ROWS).tolist(), "c": rng.normal(size=ROWS).tolist()})


@settings(max_examples=40, deadline=None)
@given(draw=st.randoms(use_true_random=False))
def test_odd_tables_are_linked_and_written_or_refused_in_one_line(draw):
    with TemporaryDirectory() as folder:
        outcome = table_outcome(odd_table(draw), beside(), odd_reading(draw), Path(folder))
        # What is refused writes nothing.
        assert bool(list(Path(folder).iterdir())) == (outcome == "result")


NESTED = {
    "map": pa.array([[("k", i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    "list": pa.array([None if i % 3 else [i] for i in range(ROWS)], pa.list_(pa.int64())),
    "struct": pa.array([{"x": i, "y": [i]} for i in range(ROWS)]),
    "time64[ns]": pa.array(range(1, ROWS + 1), pa.int64()).cast(pa.time64("ns")),
    "decimal256": pa.array([Decimal(i) / 4 for i in range(ROWS)], pa.decimal256(50, 3)),
    "uint64": pa.array([2**64 - 1 - i for i in range(ROWS)], pa.uint64()),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("reference", [pd.DataFrame, pa.table])
def test_parquet_columns_of_every_type_are_carried_through(tmp_path, kind, reference):
    numbers = [float(number) for number in range(ROWS)]
    pq.write_table(pa.table({"a": numbers, "odd": NESTED[kind]}), tmp_path / "odd.parquet")
    links = links_of({"plain": beside(reference), "odd": tmp_path / "odd.parquet"})
    written(links, tmp_path)
    assert pq.read_table(tmp_path / "joined.parquet").num_rows == ROWS


@pytest.mark.parametrize("kind", ["map", "time64[ns]"])
def test_what_python_has_no_type_for_comes_back_as_it_was(tmp_path, kind):
    numbers = [float(number) for number in range(ROWS)]
    pq.write_table(pa.table({"a": numbers, "odd": NESTED[kind]}), tmp_path / "odd.parquet")
    links = links_of({"odd": tmp_path / "odd.parquet", "plain": beside()})
    write_parquet(_pandas(links.completed["odd"]), tmp_path / "back.parquet")
    assert pq.read_table(tmp_path / "back.parquet").column("odd").combine_chunks().equals(NESTED[kind])


def test_sparse_columns_are_filled_and_come_back_sparse(tmp_path):
    frame = pd.DataFrame({"a": np.arange(12.0), "odd": pd.arrays.SparseArray([np.nan, 1.0, 2.0] * 4)})
    links = links_of({"odd": frame, "plain": beside()})
    written(links, tmp_path)
    assert not links.completed["odd"]["odd"].isna().any()
    again = keyless.load(tmp_path / "links.keyless")
    pd.testing.assert_frame_equal(again.tables[0].native, frame)


def test_halves_of_characters_are_saved_exactly_and_written_as_escapes(tmp_path):
    halves = pd.Series([f"\ud800{i}" for i in range(12)], dtype=object)  # newer pandas keeps other text as UTF-8
    frame = pd.DataFrame({"a": np.arange(12.0), "halves": halves})
    links = links_of({"odd": frame, "plain": beside()})
    written(links, tmp_path)
    again = keyless.load(tmp_path / "links.keyless")
    pd.testing.assert_frame_equal(again.tables[0].native, frame)
    assert "\\ud8000" in (tmp_path / "joined.csv").read_text(encoding="utf-8")
    assert pq.read_table(tmp_path / "joined.parquet").column("halves")[3].as_py() == "\\ud8003"


def test_halves_of_characters_in_the_name_of_a_column_are_refused():
    frame = pd.DataFrame([[1.0, 2.0]] * 3).set_axis(pd.Index(["a", "\udc80 name"], dtype=object), axis=1)
    with pytest.raises(InputError, match=r"^odd: must have column names that are text; '\\udc80 name' holds half"):
        read_table(frame, name="odd")


@pytest.mark.parametrize("entries", [[object()] * 12, [{1, 2}] * 12, [1, "a", None, 2.5] * 3, [datetime.time(1)] * 12])
@pytest.mark.parametrize("reference", [pa.table, pd.DataFrame])
def test_python_objects_beside_arrow_are_written_as_text(tmp_path, entries, reference):
    frame = pd.DataFrame({"a": np.arange(12.0), "odd": pd.Series(entries, dtype=object)})
    links = links_of({"plain": beside(reference), "odd": frame})
    written(links, tmp_path)
    assert _pandas(links.joined())["odd"].notna().sum() == frame["odd"].notna().sum()


# --- these were taken for mistakes in keyless ------------------------------------------------------------------------


def test_numbers_that_signal_are_refused_where_they_stand():
    entries = [Decimal(1), Decimal("sNaN"), Decimal(3)]
    message = r"^odd, column 'x', row 1: must be a number or missing; found sNaN\. Replace it by NaN\.$"
    with pytest.raises(InputError, match=message):
        read_table(pd.DataFrame({"x": entries}), name="odd")
    with pytest.raises(InputError, match=message):
        read_table([{"x": entry} for entry in entries], name="odd")


@pytest.mark.parametrize("labels", [["sNaN", "7", "7"], ["NaN", "7", "7"], ["1", "2", "NaN"]])
def test_labels_that_cannot_be_compared_are_refused(labels):
    frame = pd.DataFrame({"x": [1.0, 2.0, 4.0]}, index=pd.Index([Decimal(label) for label in labels], dtype=object))
    with pytest.raises(InputError, match=r"^odd, index, row \d: must be a label; found s?NaN\. Replace it\.$"):
        read_table(frame, name="odd")


def test_decimals_with_gaps_are_filled(tmp_path):
    frame = pd.DataFrame({"x": [Decimal("NaN"), *(Decimal(i) / 4 for i in range(11))]})
    links = links_of({"odd": frame, "plain": beside()})
    written(links, tmp_path)
    assert isinstance(links.completed["odd"]["x"][0], Decimal)
    assert links.completed["odd"]["x"][0].is_finite()


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_matrices_of_numpy_are_arrays():
    matrix = np.asmatrix(np.random.default_rng(0).normal(size=(12, 3)))
    links = links_of({"odd": matrix, "plain": beside()})
    np.testing.assert_array_equal(links.completed["odd"], np.asarray(matrix))
    np.testing.assert_array_equal(keyless.SoftImpute().fit_transform(matrix), np.asarray(matrix))


@pytest.mark.parametrize(
    "about", [b"{", b"[]", b"\xff", b'{"index_columns": [7], "columns": 3}', b'{"columns": [{}]}', b"[" * 100_000]
)
def test_nonsense_about_pandas_in_a_parquet_file_is_ignored(tmp_path, about):
    table = pa.table({"a": [1.5, 2.5, 3.5, 0.0, 9.0]}).replace_schema_metadata({b"pandas": about})
    pq.write_table(table, tmp_path / "odd.parquet")
    read = read_table(tmp_path / "odd.parquet", name="odd")
    np.testing.assert_array_equal(read.block.values[:, 0], [1.5, 2.5, 3.5, 0.0, 9.0])


FAR = {
    "date32": (pa.date32(), 2**31 - 1),
    "date32 before": (pa.date32(), -(2**31 - 1)),
    "seconds": (pa.timestamp("s"), 2**50),
    "with a zone": (pa.timestamp("ms", "Europe/Berlin"), 2**60),
    "microseconds": (pa.timestamp("us"), 2**62),
    "durations": (pa.duration("s"), 2**50),
}
"""Moments and durations that Python or a count of microseconds does not have."""


@pytest.mark.parametrize("kind", FAR)
@pytest.mark.parametrize("door", ["frame", "file"])
def test_dates_beyond_python_are_refused_where_they_stand(tmp_path, kind, door):
    given, far = FAR[kind]
    counts = pa.array([1, far, 3, 4], pa.int64())
    counts = counts.cast(pa.int32()) if given == pa.date32() else counts
    table = pa.table({"a": [1.5, 2.5, 3.5, 0.0], "x": counts.cast(given)})
    try:
        pq.write_table(table, tmp_path / "t.parquet")
    except pa.ArrowInvalid:
        pytest.skip("Parquet does not have these")
    with pytest.raises(InputError, match=r"column 'x', row 1: must be a (date of the years|duration of at most)"):
        read_table(table if door == "frame" else tmp_path / "t.parquet", name="t")


def test_a_time_zone_that_nobody_knows_is_refused(tmp_path):
    moments = pa.array([1, 2, 3, 4], pa.timestamp("ms", "Nowhere/At all"))
    pq.write_table(pa.table({"a": [1.5, 2.5, 3.5, 0.0], "x": moments}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"^t\.parquet: must have entries that pandas can hold"):
        read_table(tmp_path / "t.parquet", name="t")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_every_unit_count_in_days(unit):
    moments = pd.Series(pd.to_datetime(["1970-01-02 00:00:00", "2001-09-09 01:46:40", None])).dt.as_unit(unit)
    zoned, spans = moments.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"), moments - pd.Timestamp(0).as_unit(unit)
    for column in (moments, zoned, spans):
        block = read_table(pd.DataFrame({"x": column}), name="t").block
        np.testing.assert_allclose(block.values[:2, 0], [1, 1e9 / 86_400], rtol=1e-15)
        assert block.mask[:, 0].tolist() == [True, True, False]


@pytest.mark.parametrize("place", ["row", "column"])
def test_tuples_name_rows_and_columns_of_the_long_layout(tmp_path, place):
    pairs = [(row, column) for row in [(1, 2), (1, 3), (2, 2)] for column in "ab"]
    if place == "column":
        pairs = [(column, row) for row, column in pairs]
    frame = pd.DataFrame({"row": [row for row, _ in pairs], "column": [column for _, column in pairs]})
    frame["value"] = [1.0, 2.5, 3.0, 0.5, 4.0, 9.0]
    links = links_of({"odd": frame, "plain": frame.assign(value=frame["value"] ** 2)}, reading=Reading(layout="long"))
    assert links.tables[0].block.shape == ((3, 2) if place == "row" else (2, 3))
    written(links, tmp_path)


def test_every_kind_of_odd_column_is_tried():
    assert {"maps", "nanoseconds", "sparse", "signalling", "objects"} <= set(ODD)
