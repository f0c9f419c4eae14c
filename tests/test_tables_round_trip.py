"""Frame → keyless → frame is exact: what was observed comes back as it was, of every library and every type."""

import datetime
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyless
from keyless.errors import CONVERGED
from keyless.evidence import Evidence
from keyless.links import Links, TableLink
from keyless.model.factor_model import FactorModel
from keyless.model.joint_model import JointModel
from keyless.model.scales import scale_table
from keyless.tables import Reading, read_tables

pl = pytest.importorskip("polars", reason="polars is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
sp = pytest.importorskip("scipy.sparse")


def linked(first, second, permutation):
    """Links whose permutation is given and whose model is made up."""
    rng = np.random.default_rng(0)
    # Numbers of three decimals beside whole ones would be asked about.
    read, _ = read_tables({"first": first, "second": second}, reading=Reading(decimal="."))
    scales = tuple(scale_table(table.block.values, table.block.mask)[1] for table in read)
    width = sum(table.block.shape[1] for table in read)
    factors = FactorModel(
        rng.normal(size=(width, 2)),
        rng.normal(size=width) / 5,
        rng.uniform(0.1, 0.4, width),
        np.zeros((width, 3, 3)),
        np.ones(3),
    )
    permutation = np.asarray(permutation)
    size = len(permutation)
    evidence = Evidence("linked", 5.5, (1.0, 1.25), 3.0, 1.0, 3)
    coupling = np.full((size, read[1].block.shape[0]), 1 / size)
    link = TableLink(permutation, np.ones(size), np.ones(size), coupling, evidence)
    return Links(read, {"second": link}, JointModel(factors, scales), CONVERGED)


# --- columns ---------------------------------------------------------------------------------------------------------

ROWS = 12
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
DAYS = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))
MOMENTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
SPANS = st.timedeltas(datetime.timedelta(-999), datetime.timedelta(999))
WORDS = st.sampled_from(["", "a", "ä ö", "NA", "x\ny", '"quoted"', "😀", "../up"])
LEVELS = st.sampled_from(["low", "mid", "high"])
DECIMALS = st.decimals(-1000, 1000, places=2, allow_nan=False, allow_infinity=False)
SMALL, BIG = st.integers(-100, 100), st.integers(-(2**62), 2**62)

PANDAS = {
    "float64": (FLOATS, "float64", True),
    "float32": (FLOATS, "float32", True),
    "int64": (BIG, "int64", False),
    "int8": (SMALL, "int8", False),
    "uint8": (st.integers(0, 255), "uint8", False),
    "bool": (st.booleans(), "bool", False),
    "Int64": (BIG, "Int64", True),
    "Int8": (SMALL, "Int8", True),
    "boolean": (st.booleans(), "boolean", True),
    "Float64": (FLOATS, "Float64", True),
    "text": (WORDS, "object", True),
    "string": (WORDS, "string", True),
    "category": (LEVELS, "category", True),
    "ordered": (LEVELS, pd.CategoricalDtype(["low", "mid", "high"], ordered=True), True),
    "numbered": (st.integers(0, 3), "category", True),
    "days": (DAYS, "object", True),
    "times": (MOMENTS, "datetime64[us]", True),
    "seconds": (MOMENTS.map(lambda t: t.replace(microsecond=0)), "datetime64[s]", True),
    "zoned": (MOMENTS.map(lambda t: t.replace(tzinfo=datetime.UTC)), "datetime64[ns, Europe/Berlin]", True),
    "spans": (SPANS, "timedelta64[us]", True),
    "decimals": (DECIMALS, "object", True),
    "objects": (st.sampled_from([1, 2.5, True, "x"]), "object", True),
    "arrow dates": (DAYS, pd.ArrowDtype(pa.date32()), True),
    "arrow decimals": (DECIMALS, pd.ArrowDtype(pa.decimal128(12, 2)), True),
    "arrow ints": (BIG, pd.ArrowDtype(pa.int64()), True),
    "arrow text": (WORDS, pd.ArrowDtype(pa.string()), True),
}
POLARS = {
    "floats": (FLOATS, pl.Float64),
    "singles": (FLOATS, pl.Float32),
    "ints": (BIG, pl.Int64),
    "bytes": (st.integers(0, 255), pl.UInt8),
    "bools": (st.booleans(), pl.Boolean),
    "text": (WORDS, pl.String),
    "categories": (LEVELS, pl.Categorical),
    "enum": (LEVELS, pl.Enum(["low", "mid", "high"])),
    "days": (DAYS, pl.Date),
    "times": (MOMENTS, pl.Datetime("us")),
    "nanos": (MOMENTS, pl.Datetime("ns")),
    "zoned": (MOMENTS.map(lambda t: t.replace(tzinfo=datetime.UTC)), pl.Datetime("us", "Europe/Berlin")),
    "spans": (SPANS, pl.Duration("us")),
    "decimals": (DECIMALS, pl.Decimal(12, 2)),
    "clock": (st.times(), pl.Time),
    "lists": (st.lists(st.integers(0, 3), max_size=2), pl.List(pl.Int64)),
}


def entries(draw, strategy, *, gaps=True):
    kept = draw(st.lists(strategy, min_size=ROWS, max_size=ROWS))
    if not gaps:
        return kept
    missing = draw(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
    return [None if gone else entry for entry, gone in zip(kept, missing, strict=True)]


def column_of(draw, kind):
    strategy, dtype, gaps = PANDAS[kind]
    values = entries(draw, strategy, gaps=gaps)
    if dtype == "object":
        return pd.Series(values, dtype=object)
    if isinstance(dtype, str) and dtype.startswith("datetime64[ns, "):
        return pd.Series(pd.to_datetime(values, utc=True).tz_convert("Europe/Berlin").as_unit("ns"))
    return pd.Series(pd.array(values, dtype=dtype))


LABELS = st.one_of(st.text(max_size=4), st.integers(-9, 9), st.tuples(st.integers(0, 3), st.text(max_size=2)))


@st.composite
def pandas_frames(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(PANDAS)), min_size=1, max_size=5))
    labels = draw(st.lists(LABELS, min_size=len(kinds) + 1, max_size=len(kinds) + 1, unique_by=str))
    columns = [*(column_of(draw, kind) for kind in kinds), pd.Series(np.arange(ROWS) / 8)]
    frame = pd.concat(columns, axis=1)
    frame.columns = pd.Index(labels, tupleize_cols=False, name=draw(st.sampled_from([None, "field"])))
    index = draw(st.sampled_from(["none", "text", "twice", "times", "levels"]))
    if index == "text":
        frame.index = pd.Index([f"p{i}" for i in range(ROWS)], name="patient")
    elif index == "twice":
        frame.index = pd.Index([i // 2 for i in range(ROWS)])
    elif index == "times":
        frame.index = pd.date_range("2020", periods=ROWS, tz="UTC", unit="ns")
    elif index == "levels":
        frame.index = pd.MultiIndex.from_tuples([(i // 3, f"{i % 3}") for i in range(ROWS)], names=["a", None])
    return frame


@st.composite
def polars_frames(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(POLARS)), min_size=1, max_size=5))
    columns = {
        f"{k} {kind}": pl.Series(entries(draw, POLARS[kind][0]), dtype=POLARS[kind][1], strict=False)
        for k, kind in enumerate(kinds)
    }
    return pl.DataFrame({**columns, "last": np.arange(ROWS) / 8})


PERMUTATIONS = st.permutations(range(ROWS)).flatmap(
    lambda order: st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(
        lambda alone: [-1 if gone else row for row, gone in zip(order, alone, strict=True)]
    )
)


# --- the law ---------------------------------------------------------------------------------------------------------


def same(one, two):
    if isinstance(one, float) and isinstance(two, float):
        return math.copysign(1, one) == math.copysign(1, two) and one == two
    return type(one) is type(two) and one == two


def is_missing(entry):
    return entry is None or entry is pd.NA or entry is pd.NaT or (isinstance(entry, float) and math.isnan(entry))


def check_law(before, after, marks, table, rows):
    """Lists of entries by column: observed ones are the same, used ones are all there, filled ones are marked."""
    for use, old, new, marked in zip(table.uses, before, after, marks, strict=True):
        for place, row in enumerate(rows):
            given = None if row < 0 else old[row]
            if not is_missing(given):
                assert same(given, new[place]), (use, given, new[place])
                assert not marked[place]
            elif use.columns:
                assert not is_missing(new[place])
                assert marked[place]
            else:
                assert is_missing(new[place])
                assert not marked[place]


@pytest.mark.slow
@settings(max_examples=60)
@given(pandas_frames(), PERMUTATIONS)
def test_pandas(tmp_path_factory, frame, permutation):
    kept = frame.copy(deep=True)
    reference = pd.DataFrame({"a": np.arange(ROWS) / 2}, index=[f"r{i}" for i in range(ROWS)])
    links = linked(reference, frame, permutation)
    table, made, marks = links.tables[1], links.completed["second"], links.filled["second"]
    pd.testing.assert_frame_equal(frame, kept)
    pd.testing.assert_index_equal(made.index, reference.index)
    pd.testing.assert_index_equal(made.columns, frame.columns)
    for place, use in enumerate(table.uses):
        if use.columns or -1 not in permutation:
            assert made.dtypes.iloc[place] == frame.dtypes.iloc[place]
    assert marks.dtypes.map(str).eq("bool").all()
    columns = [[part.iloc[:, k].tolist() for k in range(part.shape[1])] for part in (frame, made, marks)]
    check_law(*columns, table, permutation)
    path = tmp_path_factory.getbasetemp() / "run.keyless"
    links.save(path)
    again = keyless.load(path)
    pd.testing.assert_frame_equal(again.completed["second"], made)
    pd.testing.assert_frame_equal(again.tables[1].native, frame)
    assert again.tables[1].row_ids == table.row_ids
    assert again.tables[1].uses == table.uses


@settings(max_examples=50)
@given(polars_frames(), PERMUTATIONS, st.sampled_from(["polars", "lazy", "pyarrow"]))
def test_polars_and_arrow(tmp_path_factory, frame, permutation, kind):
    native = {"polars": lambda f: f, "lazy": pl.DataFrame.lazy, "pyarrow": pl.DataFrame.to_arrow}[kind](frame)
    links = linked(native, native, permutation)
    made, marks = links.completed["second"], links.filled["second"]
    assert type(made) is type(native)
    if kind == "lazy":
        native, made, marks = native.collect(), made.collect(), marks.collect()
    assert made.schema == native.schema

    def listed(part):
        if kind == "pyarrow":
            return [column.to_pylist() for column in part.columns]
        return [column.to_list() for column in part.get_columns()]

    check_law(listed(native), listed(made), listed(marks), links.tables[1], permutation)
    path = tmp_path_factory.getbasetemp() / "run.keyless"
    links.save(path)
    again = keyless.load(path).completed["second"]
    assert (again.collect() if kind == "lazy" else again).equals(made)


@settings(max_examples=40)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"x": st.one_of(st.none(), SMALL, FLOATS)},
            optional={"sex": st.sampled_from(["F", "M"]), "when": DAYS, "big": BIG, 7: DECIMALS},
        ),
        min_size=ROWS,
        max_size=ROWS,
    ),
    PERMUTATIONS,
)
def test_dictionaries(records, permutation):
    records = [record | {"last": k} for k, record in enumerate(records)]
    links = linked(records, records, permutation)
    made, marks = links.completed["second"], links.filled["second"]
    assert isinstance(made, list)
    labels = list(made[0])
    columns = [[[record.get(label) for record in part] for label in labels] for part in (records, made, marks)]
    check_law(*columns, links.tables[1], permutation)


@settings(max_examples=40)
@given(
    st.sampled_from(["float64", "float32", "int64", "int16", "uint8", "bool"]),
    st.integers(0, 10**6),
    PERMUTATIONS,
)
def test_arrays(dtype, seed, permutation):
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 2 if dtype == "bool" else 100, (ROWS, 3)).astype(dtype)
    if dtype == "int64":
        array += 2**60
    if dtype.startswith("float"):
        array /= 7
        array[rng.random(array.shape) < 0.3] = np.nan
    links = linked(array, array, permutation)
    made, marks = links.completed["second"], links.filled["second"]
    assert made.dtype == array.dtype
    rows = np.asarray(permutation)
    given_ = array[np.maximum(rows, 0)]
    seen = (rows >= 0)[:, None] & (given_ == given_)  # noqa: PLR0124 — NaN is not itself
    assert made[seen].tobytes() == given_[seen].tobytes()
    np.testing.assert_array_equal(marks, ~seen)
    assert np.isfinite(made).all()


@settings(max_examples=40)
@given(
    st.sampled_from(["csr_array", "csc_matrix", "coo_array", "lil_matrix"]),
    st.sampled_from(["float64", "float32", "int32"]),
    st.integers(0, 10**6),
    PERMUTATIONS,
)
def test_sparse_matrices(tmp_path_factory, kind, dtype, seed, permutation):
    rng = np.random.default_rng(seed)
    seen = rng.random((ROWS, 4)) < 0.6
    seen[:2] = True
    values = rng.integers(0, 5, (ROWS, 4)).astype(dtype)
    values[0], values[1] = 0, 1
    rows, columns = np.nonzero(seen)
    matrix = getattr(sp, kind)(sp.coo_array((values[rows, columns], (rows, columns)), shape=seen.shape))
    links = linked(matrix, matrix, permutation)
    made, marks = links.completed["second"], links.filled["second"]
    assert type(made) is type(matrix)
    assert made.dtype == matrix.dtype
    assert made.nnz == ROWS * 4
    place = np.asarray(permutation)
    kept = seen[np.maximum(place, 0)] & (place >= 0)[:, None]
    np.testing.assert_array_equal(made.toarray()[kept], values[np.maximum(place, 0)][kept])
    np.testing.assert_array_equal(marks.toarray(), ~kept)
    path = tmp_path_factory.getbasetemp() / "run.keyless"
    links.save(path)
    again = keyless.load(path).completed["second"]
    assert type(again) is type(matrix)
    np.testing.assert_array_equal(again.toarray(), made.toarray())


# --- text files ------------------------------------------------------------------------------------------------------

CELLS = {
    "number": st.one_of(
        # With three decimals the points of a column may divide thousands, and the caller is asked.
        st.decimals(-999, 999, places=4, allow_nan=False, allow_infinity=False).map(str),
        st.sampled_from(["", "NA", "1.50", "+2", " 7.0 ", "1e3", "-0"]),
    ),
    "integer": st.one_of(st.integers(-99, 99).map(str), st.sampled_from(["", "n/a", "+5"])),
    "word": st.one_of(LEVELS, st.sampled_from(["", " low", "null"])),
    "date": st.one_of(DAYS.map(str), st.just("")),
    "truth": st.sampled_from(["true", "FALSE", "True", ""]),
    "free": st.text(
        st.characters(codec="utf-8", exclude_characters="\r\0\ufeff", exclude_categories=["Cs"]), max_size=6
    ),
}


@settings(max_examples=40)
@given(st.data(), PERMUTATIONS)
def test_text_files(tmp_path_factory, data, permutation):
    columns = {name: data.draw(st.lists(cell, min_size=ROWS, max_size=ROWS)) for name, cell in CELLS.items()}
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    frame = pd.DataFrame({**columns, "last": [str(k) for k in range(ROWS)]})
    frame.to_csv(path, index=False, encoding="utf-8")
    links = linked(path, path, permutation)
    table, made, marks = links.tables[1], links.completed["second"], links.filled["second"]
    used = {use.name for use in table.uses if use.columns}
    for name in frame:
        for place, row in enumerate(permutation):
            cell = made[name].iloc[place]
            if name not in used:
                assert pd.isna(cell) if row < 0 else cell == frame[name][row]
            elif not marks[name].iloc[place]:
                assert cell == frame[name][row]
            else:
                assert row < 0 or frame[name][row].strip() in ("", "NA", "n/a", "null")
                assert isinstance(cell, str)
                assert cell
    # Written and read again, it says the same.
    again = tmp_path_factory.getbasetemp() / "again.csv"
    made.fillna("").to_csv(again, index=False)
    from keyless.tables.files import open_file, read_text

    assert read_text(open_file(again), Reading()).frame.to_dict("list") == made.fillna("").to_dict("list")


def test_filled_cells_look_like_the_others(tmp_path):
    path = tmp_path / "lab.csv"
    rng = np.random.default_rng(1)
    lines = [
        f"{'' if i == 3 else 20 + i},{'' if i == 4 else f'{rng.normal():.2f}'},{'' if i == 5 else f'0{i % 9}'},"
        f'{"" if i == 6 else f"2020-02-{i + 1:02d}"},"{"" if i == 7 else f"{i},5"}",{"FM"[i % 2] if i != 8 else ""},'
        f"{'' if i == 9 else f'{rng.normal():.3e}'}"
        for i in range(12)
    ]
    path.write_text("age,iron,code,seen,comma,sex,tiny\n" + "\n".join(lines) + "\n", encoding="utf-8")
    made = linked(path, path, range(12)).completed["first"]
    assert made["age"][3].lstrip("-").isdigit()
    assert len(made["iron"][4].split(".")[1]) == 2
    assert len(made["code"][5]) == 2
    assert pd.Timestamp(made["seen"][6]).strftime("%Y-%m-%d") == made["seen"][6]
    assert "," in made["comma"][7]
    assert "." not in made["comma"][7]
    assert made["sex"][8] in "FM"
    assert math.isfinite(float(made["tiny"][9]))


def test_types_of_filled_entries():
    given_ = pd.DataFrame(
        {
            "d": pd.Series([Decimal("1.50"), None, Decimal("2.25"), Decimal("9.00")], dtype=object),
            "u": np.array([0, 3, 250, 255], dtype="uint8"),
        }
    )
    links = linked(given_, given_, [0, 1, 2, -1])
    made = links.completed["first"]["d"]
    assert isinstance(made[1], Decimal)
    assert made[1].as_tuple().exponent == -2
    assert links.completed["second"]["u"].dtype == "uint8"


@pytest.mark.parametrize("days", [-1e30, 1e30, np.inf])
def test_dates_are_filled_within_the_calendar(days):
    frame = pl.DataFrame({"when": [datetime.date(2020, 1, 1), None, datetime.date(2021, 5, 5)], "x": [1.0, 2.0, 3.5]})
    frame = frame.with_columns(pl.col("when").cast(pl.Datetime("us")).alias("moment"))
    (table, _), _ = read_tables({"first": frame, "second": frame})
    made = table.rebuilt(np.full((3, 3), days), np.arange(3))
    for column in ("when", "moment"):
        assert made[column].to_list()[1].year == (1 if days < 0 else 9999)
        assert made[column].to_list()[::2] == frame[column].to_list()[::2]
