"""Where the table is in a file: titles, names of two lines, blank lines, totals and notes."""

from __future__ import annotations

import numpy as np
import pytest

from keyless.errors import InputError
from keyless.tables import Reading, read_table

ROWS = "".join(f"P{i:02d};{i * 1.5:.1f};{100 + i}\n" for i in range(8))
PLAIN = "id;Fe;Na\n" + ROWS
SUM = f"{sum(i * 1.5 for i in range(8)):.1f};{sum(100 + i for i in range(8))}"
MEAN = f"{np.mean([i * 1.5 for i in range(8)]):.2f};{np.mean([100 + i for i in range(8)]):.1f}"


@pytest.fixture
def read(tmp_path):
    def made(content, **options):
        path = tmp_path / "lab.csv"
        path.write_text(content, encoding="utf-8")
        return read_table(path, name="lab", reading=Reading(door="command line", **options))

    return made


def same(table, expected):
    assert table.columns == expected.columns
    assert table.row_ids == expected.row_ids
    np.testing.assert_array_equal(table.block.values, expected.block.values)


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (
            "Lab report 2021;;\n;;\n" + PLAIN,
            "the first 2 lines are not part of the table and skipped: 'Lab report 2021'",
        ),
        ("Lab\u2028report\n" + PLAIN, "the first line is not part of the table and skipped: 'Lab\\u2028report'"),
        ("Lab report, final\n\n" + PLAIN, "the first line is not part of the table and skipped: 'Lab report, final'"),
        (
            '"Lab\nreport"\nby Dr. X\n' + PLAIN,
            "the first 2 lines are not part of the table and skipped: 'Lab\\nreport', 'by Dr. X'",
        ),
        (PLAIN + ";;\n;;\n", "blank lines are skipped: 2, line 10 first"),
        (PLAIN.replace("P03", ";;\nP03"), "blank lines are skipped: 1, line 5 first"),
        (PLAIN + f"Total;{SUM}\n", f"the last line is not a row and skipped: 'Total {SUM.replace(';', ' ')}'"),
        (
            PLAIN + f";;\nSumme:;{SUM}\n;;\n",
            f"the last line is not a row and skipped: 'Summe: {SUM.replace(';', ' ')}'",
        ),
        (
            PLAIN + f"Mittelwert;{MEAN}\n",
            f"the last line is not a row and skipped: 'Mittelwert {MEAN.replace(';', ' ')}'",
        ),
        (PLAIN + "Total;42\n", "the last line is not a row and skipped: 'Total 42'"),
        (PLAIN + "Source: the hospital\n", "the last line is not a row and skipped: 'Source: the hospital'"),
        (PLAIN + "Source: the hospital;;\n", "the last line is not a row and skipped: 'Source: the hospital'"),
        (PLAIN + ";;\n* preliminary;;\n", "the last line is not a row and skipped: '* preliminary'"),
        (PLAIN.replace("\n", ";\n"), "columns without a name and without entries are skipped: 1"),
    ],
)
def test_what_is_sure_is_skipped_and_said(read, content, note):
    table = read(content)
    same(table, read(PLAIN))
    assert table.notes == ("cells are separated by ';'", note)


def test_lines_are_counted_as_in_the_file(read):
    broken = PLAIN.replace("4.5", "broken")
    for above, below in (("", ""), ("A title\n\n", ""), (";;\n", ";;\n")):
        with pytest.raises(InputError) as caught:
            read(above + broken.replace("P02", f"{below}P02"))
        line = 5 + above.count("\n") + below.count("\n")
        assert f"row 3: 'broken' is not a number (line {line} of the file)" in str(caught.value)


def test_totals_that_do_not_add_up_are_asked_about(read):
    content = PLAIN + "Total;999.0;1\n"
    with pytest.raises(InputError) as caught:
        read(content)
    assert str(caught.value) == (
        "lab.csv, line 10: 'Total 999.0 1' may be a line of totals or a row of the table. "
        "Say --footer 1 to leave it out, --footer 0 to keep it."
    )
    same(read(content, footer=1), read(PLAIN))
    assert read(content, footer=0).row_ids[-1] == "Total"
    same(read(content, footer={"lab": 1}), read(PLAIN))


def test_totals_inside_are_told(read):
    table = read(PLAIN.replace("P03", "Subtotal"))
    assert "line 5 looks like totals ('Subtotal') and is taken for a row" in table.notes


@pytest.mark.parametrize("last", ["P08;;\n", "P08;1.5;\n"])
def test_rows_of_which_little_is_known_stay(read, last):
    assert read(PLAIN + last).row_ids[-1] == "P08"


@pytest.mark.parametrize("last", ["P08\n", "P08;1.5\n", "P08;1.5;3;4\n"])
def test_lines_that_were_cut_off_are_refused(read, last):
    with pytest.raises(InputError, match=r"line 10: must have 3 cells, as the first line has; found"):
        read(PLAIN + last)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (";Blood;;Urine\nid;Na;K;Na\n", ("Blood Na", "Blood K", "Urine Na")),
        ("id;Blood;;Urine\n;Na;K;Na\n", ("Blood Na", "Blood K", "Urine Na")),
        ("Report;;;\n;Blood;;\nid;Na;K;Cl\n", ("Blood Na", "Blood K", "Blood Cl")),
        ("id;weight;height;n\n;kg;cm;\n", ("weight kg", "height cm", "n")),
        ("id;weight;height;n\n[-];[kg];[cm];[1]\n", ("weight [kg]", "height [cm]", "n [1]")),
    ],
)
def test_names_of_two_lines(read, names, expected):
    rows = "".join(f"P{i};{i + 60};{2 * i + 150};{i * i}\n" for i in range(8))
    table = read(names + rows)
    assert table.columns == expected
    assert table.id_column == "id"
    assert len(table.row_ids) == 8
    assert any(note.startswith("the column names take two lines, as in ") for note in table.notes)
    assert read(names + rows, skip=names.count("\n") - 2, header=2).columns == expected


def test_what_is_given_is_not_searched_for(read):
    same(read("x;y;z\n" + PLAIN, skip=1), read(PLAIN))
    table = read(ROWS, header=0)
    assert [use.name for use in table.uses] == ["column 1", "column 2", "column 3"]
    assert len(table.row_ids) == 8
    with pytest.raises(InputError, match="must have 20 lines of column names, as --header says; found 9"):
        read(PLAIN, header=20)
    with pytest.raises(InputError, match="must name one of the tables, 'lab'; found 'labor'"):
        read(PLAIN, skip={"labor": 1})
    with pytest.raises(InputError, match="--skip: must be a whole number of at least 0; found -1"):
        read(PLAIN, skip=-1)


@pytest.mark.parametrize(
    "content",
    [
        ",x\n" + "".join(f"{i},{i * i}\n" for i in range(6)),
        ",x,y\n" + "".join(f"{i},{i * i},3{i}\n" for i in range(6)),
        "x,y\n" + "".join(f"{'NA' if i == 0 else i},{i * i}\n" for i in range(6)),
        "a,b,c\nu,v,w\n" + "".join(f"x{i % 2},y,{i}\n" for i in range(6)).replace("y", "z"),
    ],
)
def test_ordinary_files_stay_as_they_are(read, content):
    try:
        table = read(content)
    except InputError as error:
        assert "is not a number" in str(error)  # noqa: PT017 the last one: a first row of words
    else:
        assert not any("skipped" in note or "two lines" in note for note in table.notes)
