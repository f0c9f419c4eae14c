"""Numbers as people write them: what can mean one thing only is read, what can mean two is asked."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyless.errors import InputError
from keyless.tables import MISSING, Reading, read_like, read_table
from keyless.tables.cells import written_numbers
from keyless.tables.numbers import NumberStyle, Written, styled


def column(tmp_path, cells, **options):
    """Read a file with a name and one column of cells, each quoted."""
    path = tmp_path / "lab.csv"
    quoted = "".join(f'n{i:02d},"{cell}"\n' for i, cell in enumerate(cells))
    path.write_text("name,x\n" + quoted, encoding="utf-8")
    return read_table(path, name="lab", reading=Reading(door="command line", **options))


def numbers(table):
    at = table.columns.index("x")
    return np.where(table.block.mask[:, at], table.block.values[:, at], np.nan).tolist()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["10.010,0", "3,5"], [10010, 3.5]),
        (["10,010.0", "3.5"], [10010, 3.5]),
        (["10 010", "5"], [10010, 5]),
        (["10\u00a0010", "-5"], [10010, -5]),
        (["10\u202f010,5", "5"], [10010.5, 5]),
        (["10'010.5", "5"], [10010.5, 5]),
        (["1,234,567", "8"], [1234567, 8]),
        (["1.234.567", "8"], [1234567, 8]),
        (["12,650", "3.5"], [12650, 3.5]),
        (["12.650", "3,5"], [12650, 3.5]),
        (["0,123", "0,456"], [0.123, 0.456]),
        (["12 %", "3.5 %"], [12, 3.5]),
        (["12,5%", "3%"], [12.5, 3]),
        (["$1,200.50", "-$3"], [1200.5, -3]),
        (["€ 1.200,50", "€ 3"], [1200.5, 3]),
        (["1.200,50 €", "3,00 €"], [1200.5, 3]),
        (["12 CHF", "-3 CHF"], [12, -3]),
        (["61.5 kg", "70 kg"], [61.5, 70]),
        (["61kg", "70kg"], [61, 70]),
        (["5 mg/dl", "7 mg/dl"], [5, 7]),
        (["37,2 °C", "-3 °C"], [37.2, -3]),
        (["(1,234.50)", "7"], [-1234.5, 7]),
        (["($12)", "$7"], [-12, 7]),
        (["\u22125", "3"], [-5, 3]),
        (["3,5", "k.A.", "-", "n/a", "\u2013", "4,25"], [3.5, np.nan, np.nan, np.nan, np.nan, 4.25]),
        (["3.5", "#DIV/0!", "--", "#N/A", "2"], [3.5, np.nan, np.nan, np.nan, 2]),
    ],
)
def test_what_can_mean_one_thing_is_read(tmp_path, cells, expected):
    np.testing.assert_array_equal(numbers(column(tmp_path, cells)), expected)


@pytest.mark.parametrize(
    ("cells", "with_comma", "with_point"),
    [
        (["12,650", "3,000"], [12.65, 3], [12650, 3000]),
        (["12,650", "7"], [12.65, 7], [12650, 7]),
        (["$12,650", "$7"], [12.65, 7], [12650, 7]),
    ],
)
def test_what_can_mean_two_things_is_asked(tmp_path, cells, with_comma, with_point):
    with pytest.raises(InputError) as caught:
        column(tmp_path, cells)
    assert str(caught.value) == (
        f"lab.csv, column 'x', row 0: the comma of {cells[0]!r} may be a decimal mark or divide thousands (line 2 of "
        "the file). Say --decimal , if it is a decimal mark, --decimal . if it divides thousands."
    )
    assert numbers(column(tmp_path, cells, decimal=",")) == with_comma
    assert numbers(column(tmp_path, cells, decimal=".")) == with_point
    assert numbers(column(tmp_path, cells, decimal={"lab": ","})) == with_comma


def test_points_are_asked_about_where_other_columns_have_commas(tmp_path):
    path = tmp_path / "lab.csv"
    path.write_text("a;b\n" + "".join(f"{i},5;1{i}.650\n" for i in range(8)), encoding="utf-8")
    with pytest.raises(
        InputError, match=r"the point of '10.650' may be a decimal mark or divide thousands, and column"
    ):
        read_table(path, name="lab")
    for mark, expected in ((",", 10650.0), (".", 10.65)):
        table = read_table(path, name="lab", reading=Reading(decimal=mark))
        assert table.block.values[0].tolist() == [0.5, expected], "the advice is right: the other column stays readable"
    path.write_text("a;b\n" + "".join(f"{i}.5;1{i}.650\n" for i in range(8)), encoding="utf-8")
    assert read_table(path, name="lab").block.values[0].tolist() == [0.5, 10.65]


def test_points_are_asked_about_where_small_numbers_have_none(tmp_path):
    with pytest.raises(InputError, match=r"the point of '1.234' may be a decimal mark or divide thousands"):
        column(tmp_path, ["950", "1.234", "12.650"])
    assert numbers(column(tmp_path, ["950", "1.234", "12.650"], decimal=",")) == [950, 1234, 12650]
    assert numbers(column(tmp_path, ["950", "1.234", "12.650"], decimal=".")) == [950, 1.234, 12.65]
    assert numbers(column(tmp_path, ["1.234", "12.650"])) == [1.234, 12.65], "as usual where all have one"
    assert numbers(column(tmp_path, ["950", "1.234", "0.650"])) == [950, 1.234, 0.65], "no thousands begin with 0"
    assert numbers(column(tmp_path, ["9500", "1.234"])) == [9500, 1.234], "9500 has no divider"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1.5", "2.5", "3,5", "4.5"], "'3,5' and '1.5' in row 0 have different decimal marks (line 4 of the file)"),
        (
            ["3,5", "4,5", "unknown", "5,5"],
            "row 2: 'unknown' is not a number (line 4 of the file). Name it missing with",
        ),
        (["kg", "4,5", "6,5", "5,5"], "If it belongs to the column names, say --header 2."),
        (["1,5", "4,5", "6,5", "all"], "If its line is not a row, say --footer 1."),
        ([*["5 kg", "6 kg"] * 20, "500 g"], "'500 g' is not a number like '5 kg'"),
    ],
)
def test_nearly_numbers_are_refused_with_the_cell_that_is_none(tmp_path, cells, message):
    with pytest.raises(InputError) as caught:
        column(tmp_path, cells)
    assert message in str(caught.value)


def test_the_advice_is_that_of_the_door(tmp_path):
    cells = ["3,5", "4,5", "not done", "5,5"]
    with pytest.raises(
        InputError, match="Name it missing with --missing 'not done', or leave the column out with --drop x"
    ):
        column(tmp_path, cells)
    assert numbers(column(tmp_path, cells, missing=(*MISSING, "not done")))[:2] == [3.5, 4.5]
    with pytest.raises(InputError) as caught:
        read_table(tmp_path / "lab.csv", name="lab")
    assert "Reading(missing=(*MISSING, 'not done'))" in str(caught.value)
    assert "Reading(drop='x')" in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["+", "-"] * 4, "category"),
        (["1 room", "2 rooms", "2 rooms", "1 room"] * 3, "category"),
        (["12A", "13A", "14B", "15A"], "id"),
        (["0012x", "0013x", "0014x"], "id"),
        (["(1)", "(2)", "(3)"], "id"),
        (["030 123", "0171 12", "089 1"], "id"),
    ],
)
def test_words_with_digits_stay_words(tmp_path, cells, kind):
    table = column(tmp_path, cells, drop="name") if kind == "category" else None
    if table is None:
        path = tmp_path / "lab.csv"
        path.write_text("x,y\n" + "".join(f"{cell},{i * i}\n" for i, cell in enumerate(cells)), encoding="utf-8")
        table = read_table(path, name="lab")
    assert next(use.kind for use in table.uses if use.name == "x") == kind


def test_several_units_are_named(tmp_path):
    path = tmp_path / "lab.csv"
    path.write_text("x,y\n" + "".join(f"{i} {'kg' if i % 2 else 'g'},{i}\n" for i in range(9)), encoding="utf-8")
    table = read_table(path, name="lab")
    assert "numbers with different units" in table.uses[0].reason
    cells = [f"<{i}" if i % 5 == 0 else str(i) for i in range(25)]
    path.write_text("x,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)), encoding="utf-8")
    assert (
        read_table(path, name="lab")
        .uses[0]
        .reason.endswith("80% are numbers, others such as '<0' are not; it names the rows")
    )


@given(
    st.lists(st.decimals(-(10**7), 10**7, places=2, allow_nan=False, allow_infinity=False), min_size=1, max_size=8),
    st.sampled_from([".", ","]),
    st.sampled_from(["", ",", ".", " ", "\u00a0", "'"]),
    st.sampled_from([("", ""), ("$", ""), ("€ ", ""), ("", " %"), ("", " kg"), ("", " €")]),
    st.booleans(),
)
def test_written_and_read_again(values, decimal, thousands, dress, parentheses):
    """Whatever the style, cells read as the numbers they were written from."""
    if decimal == thousands:
        thousands = ""
    style = NumberStyle(decimal, thousands, *dress, parentheses)
    texts = [f"{value:.2f}" for value in values]
    cells = style.written(texts)
    assert [float(text) for text in style.plain(cells)] == [float(text) for text in texts]
    found = styled(Written(pa.array(cells, type=pa.large_string())), decimal)
    if not (parentheses and all(cell.startswith("(") for cell in cells)):
        assert found is not None
        assert [float(text) for text in found.plain.to_pylist()] == [float(text) for text in texts]


def test_filled_cells_are_written_like_the_others_and_new_rows_read_alike(tmp_path):
    table = column(tmp_path, ["€ 10.010,50", "-", "(€ 3,00)", "€ 4,25"])
    made = table.rebuilt(np.array([[0.0], [-1234.567], [0.0], [0.0]]), np.arange(4))
    assert made["x"].tolist() == ["€ 10.010,50", "(€ 1.234,57)", "(€ 3,00)", "€ 4,25"]
    fresh = tmp_path / "new.csv"
    fresh.write_text('name,x\nz,"€ 2.000,00"\ny,-\n', encoding="utf-8")
    again = read_like(fresh, like=table)
    assert again.block.values[0, 0] == 2000
    assert again.block.mask[:, 0].tolist() == [True, False]


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (0.01476957658693648333, 20, "0.0147696"), (-0.338364492581128551, 18, "-0.338364"), (12.5, 9, "12.5"),
        (1234567.891234567, 9, "1234568"), (-1e-12, 9, "0"), (1.23456789e-7, 12, "0.000000123457"),
        (3.14159, 2, "3.14"), (1234567.891, 2, "1234567.89"),
    ],
)  # fmt: skip
def test_numbers_that_are_filled_in_have_no_more_digits_than_make_sense(value, decimals, text):
    assert written_numbers(np.array([value]), decimals=decimals, style=NumberStyle(), width=0) == [text]


def test_few_digits_in_the_style_of_the_column():
    style = NumberStyle(decimal=",", after=" %")
    assert written_numbers(np.array([12.345678901]), decimals=9, style=style, width=0) == ["12,3457 %"]
