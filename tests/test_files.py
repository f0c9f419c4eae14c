"""Files become tables: what should work works and says so, what cannot is refused with where and what to do."""

import bz2
import gzip
import io
import lzma
import sys

import numpy as np
import pandas as pd
import pytest

from keyless.errors import InputError
from keyless.parallel import workers
from keyless.tables import Reading, files, memory_needed, read_like, read_table, read_tables, stem
from keyless.tables.files import open_file, read_text

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

LINES = [
    f"{i:03d},{20 + i % 7},{'FM'[i % 2]},{60 + i * 1.5:.2f},2020-01-{i + 1:02d},{'true' if i % 3 else 'false'}"
    for i in range(12)
]
LAB = "id,age,sex,weight,seen,ill\n" + "\n".join(LINES) + "\n"
KINDS = ["id", "integer", "category", "number", "date", "boolean"]


@pytest.fixture
def write(tmp_path):
    def written(content, name="lab.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return path

    return written


def kinds(table):
    return [use.kind for use in table.uses]


def refusal(path, reading=None):
    with pytest.raises(InputError) as caught:
        read_table(path, name="lab", reading=reading)
    return str(caught.value)


# --- what works ------------------------------------------------------------------------------------------------------


def test_a_text_file(write):
    path = write(LAB)
    table = read_table(path, name="lab")
    assert kinds(table) == KINDS
    assert table.columns == ("age", "sex=F", "weight", "seen", "ill")
    assert table.row_ids[:2] == ("000", "001")
    assert table.id_column == "id"
    assert table.source == str(path)
    assert table.notes == ()
    assert table.block.values[1].tolist() == [21.0, 0.0, 61.5, 18263.0, 1.0]
    assert table.native["weight"][0] == "60.00"
    assert table.column("age")[:2] == [20, 21]
    assert table.column("sex")[:2] == ["F", "M"]
    assert isinstance(read_table(str(path), name="lab").native, pd.DataFrame)


def zstd(content):
    return pa.compress(content, codec="zstd", asbytes=True)


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)],
)
@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_every_compression_reads_alike(write, ending, pack, form):
    content = (LAB.replace(",", "\t") if form == "tsv" else LAB).encode()
    if form == "parquet":
        buffer = io.BytesIO()
        pd.read_csv(io.StringIO(LAB), dtype={"id": str}, parse_dates=["seen"]).to_parquet(buffer)
        content = buffer.getvalue()
    path = write(pack(content), f"lab.{form}{ending}")
    table = read_table(path, name="lab")
    assert kinds(table) == KINDS
    np.testing.assert_array_equal(table.block.values, read_table(write(LAB, "plain.csv"), name="lab").block.values)
    assert table.row_ids[1] == "001"
    assert stem(path) == "lab"


@pytest.mark.parametrize(
    ("content", "encoding", "note"),
    [
        (LAB, "utf-8", None),
        (LAB, "utf-8-sig", None),
        (LAB, "utf-16", "encoded as UTF-16"),
        (LAB.replace("F", "Fä"), "utf-8", None),
        (
            LAB.replace("F", "Fä€"),
            "cp1252",
            "line 2 is not UTF-8, so the file was read as cp1252; to change that, use encoding",
        ),
        (
            LAB.replace("F", "Fä"),
            "latin-1",
            "line 2 is not UTF-8, so the file was read as latin-1; to change that, use encoding",
        ),
    ],
)
def test_encodings_are_recognised_and_said(write, content, encoding, note):
    table = read_table(write(content, encoding=encoding), name="lab")
    assert kinds(table) == KINDS
    assert table.uses[0].name == "id"
    assert table.notes == (() if note is None else (note,))
    assert table.column("sex")[0] == ("Fä€" if "€" in content else "Fä" if "ä" in content else "F")


def test_an_encoding_may_be_named(write):
    path = write(LAB.replace("F", "Fё"), encoding="cp1251")
    table = read_table(path, name="lab", reading=Reading(encoding="cp1251"))
    assert table.column("sex")[0] == "Fё"
    assert table.notes == ()
    message = refusal(path, Reading(encoding="ascii"))
    assert message.startswith("lab.csv: must be text in ascii; it is not")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_recognised(write, separator):
    table = read_table(write(LAB.replace(",", separator)), name="lab")
    assert kinds(table) == KINDS
    assert table.notes == (f"cells are separated by {separator!r}",)


def test_decimal_commas(write):
    path = write(LAB.replace(",", ";").replace(".", ","))
    table = read_table(path, name="lab")
    assert table.uses[3].reason == "numbers with decimal commas"
    assert table.block.values[1, 2] == 61.5
    explicit = read_table(path, name="lab", reading=Reading(decimal=","))
    np.testing.assert_array_equal(explicit.block.values, table.block.values)
    thousands = write('a,b\n"1,234",1\n"2,345",2\n', "money.csv")
    assert refusal(thousands) == (
        "money.csv, column 'a', row 0: the comma of '1,234' may be a decimal mark or divide thousands "
        "(line 2 of the file). Say Reading(decimal=',') if it is a decimal mark, Reading(decimal='.') if it divides "
        "thousands."
    )
    assert read_table(thousands, name="m", reading=Reading(decimal=",")).block.values[0, 0] == 1.234


def test_lines_with_carriage_returns_blank_lines_and_quotes(write):
    table = read_table(write('"a ""x""",b\r\n1,"2"\r\n\r\n3,"4"\r\n'), name="lab")
    assert table.columns == ('a "x"', "b")
    assert table.block.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_in_one_column_an_empty_line_is_an_empty_cell(write):
    assert read_table(write("x\n1\n\n3\n"), name="lab").block.mask[:, 0].tolist() == [True, False, True]


def test_numbers_are_read_as_python_reads_them(write):
    cells = ["+1.5", "-2.", ".5", "1e3", "0.1", "123456789.123456789", " 7 ", "5e-324", "-0", "9007199254740993"]
    table = read_table(write("x\n" + "\n".join(cells) + "\n"), name="lab")
    assert table.block.values[:, 0].tolist() == [float(cell) for cell in cells]
    assert table.native["x"].tolist() == cells


def test_missing_markers_are_configurable(write):
    path = write("a,b\n1,-99\n2,5\n,7\nNA,8\n")
    assert read_table(path, name="lab").block.mask[:, 0].tolist() == [True, True, False, False]
    table = read_table(path, name="lab", reading=Reading(missing=("-99", "", "NA")))
    assert table.block.mask[:, 1].tolist() == [False, True, True, True]
    assert "row 3: 'NA' is not a number" in refusal(path, Reading(missing=("-99", "")))


@pytest.mark.slow
def test_ten_thousand_constant_columns(write):
    head = ",".join(f"c{k}" for k in range(10_000))
    table = read_table(write(f"{head},x\n" + "".join("1," * 10_000 + f"{i}\n" for i in range(6))), name="lab")
    assert table.columns == ("x",)
    assert len(table.left_out) == 10_000
    assert table.uses[0].reason == "every observed entry is the same, '1'"


def test_three_rows_are_read_with_a_note(write):
    table = read_table(write("a,b\n1,5\n2,3\n4,9\n"), name="lab")
    assert table.notes == ("3 rows are too few to tell a link from chance",)


def test_standard_input(monkeypatch):
    class Stream:
        def __init__(self, content):
            self.buffer = io.BytesIO(content)

    for content in (LAB.encode(), gzip.compress(LAB.encode())):
        monkeypatch.setattr(sys, "stdin", Stream(content))
        tables, reference = read_tables(["-", np.arange(24.0).reshape(12, 2)])
        assert reference == "stdin"
        assert kinds(tables[0]) == KINDS
        assert tables[0].source is None
    monkeypatch.setattr(sys, "stdin", Stream(b"a,b\n1,2\n3\n"))
    assert refusal("-").startswith("standard input, line 3: must have 2 cells")
    with pytest.raises(InputError, match=r"^tables: must name standard input \('-'\) once; found it twice\.$"):
        read_tables(["-", "-"])


def test_files_in_order_are_named_after_themselves(write, tmp_path):
    (tmp_path / "b").mkdir()
    paths = [write(LAB), write(LAB, "b/lab.csv"), str(write(gzip.compress(LAB.encode()), "x.csv.gz")), np.ones((2, 2))]
    tables, reference = read_tables(paths)
    assert [table.name for table in tables] == ["lab", "lab-2", "x", "table3"]
    assert reference == "lab"
    tables, _ = read_tables({"one": paths[0], "two": tables[2]}, reference="two")
    assert [table.name for table in tables] == ["two", "one"]


@pytest.mark.parametrize("name", ['quo"te', "new\nline", "😀", "..", "a.b", "-"])
def test_odd_file_names(tmp_path, name):
    path = tmp_path / f"{name}.csv"
    path.write_text(LAB, encoding="utf-8")
    (table, _), reference = read_tables([path, np.ones((2, 2))])
    assert reference == table.name == name
    path.write_text("a,b\n1\n", encoding="utf-8")
    assert "\n" not in refusal(path)


def test_long_layout(write):
    lines = ["user,item,rating,time", "u2,i1,3,9", "u2,i2,4.5,8", "u1,i1,5,8", "u1,i3,2,7", "u3,i3,1,7", "u3,i2,2.5,6"]
    path = write("\n".join(lines))
    table = read_table(path, name="ratings", reading=Reading(layout="long"))
    assert table.row_ids == ("u2", "u1", "u3")
    assert table.columns == ("i1", "i2", "i3")
    expected = [[3.0, 4.5, np.nan], [5.0, np.nan, 2.0], [np.nan, 2.5, 1.0]]
    np.testing.assert_array_equal(np.where(table.block.mask, table.block.values, np.nan), expected)
    assert "not used in the long layout: 'time'" in table.notes
    rebuilt = table.rebuilt(np.full((3, 3), 3.14159), np.arange(3))
    assert rebuilt["i1"].tolist() == ["3", "5", "3"]
    assert rebuilt["i2"].tolist() == ["4.5", "3.1", "2.5"]
    zero = read_table(path, name="ratings", reading=Reading(layout="long", unstored="zero"))
    np.testing.assert_array_equal(zero.block.values, np.nan_to_num(expected))
    assert zero.block.mask.all()
    frame = pd.read_csv(path)
    again = read_table(
        frame[["rating", "item", "user"]].set_axis(["value", "column", "row"], axis=1),
        name="r",
        reading=Reading(layout="long"),
    )
    np.testing.assert_array_equal(again.block.mask, table.block.mask)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "lab.csv: must be a table with column names in the first line; it is empty."),
        ("\n \n", "lab.csv: must be a table with column names in the first line; it is empty."),
        ("a,b\n", "lab.csv: must have rows below the line of column names; found none."),
        (
            "a,b\n1,2\n\n3,4,5\n",
            "lab.csv, line 4: must have 2 cells, as the first line has; found 3. "
            "Quote cells that hold the separator (such as decimal commas), or mend the line; --skip and --footer leave "
            "lines above and below the table out.",
        ),
        (
            'a,b\n1,2\n"x\ny",3\n4\n5,6\n',
            "lab.csv, line 5: must have 2 cells, as the first line has; found 1. "
            "Quote cells that hold the separator (such as decimal commas), or mend the line; --skip and --footer leave "
            "lines above and below the table out.",
        ),
        (
            "a,b,a\n1,2,3\n",
            "lab.csv: must have different column names; 'a' is the name of columns 1 and 3. Rename one.",
        ),
        (
            'a,b\n1,"x\n2,y\n3,4\n',
            "lab.csv, line 2: must close every quote; a quoted cell never ends. Look for a quote too many or too few.",
        ),
        (b"PK\x03\x04\0\0", "lab.csv, line 1: must be text; found a zero byte. It is a file of another format."),
        (
            "a,b\nx,hello\ny,world\n",
            "lab.csv: must have at least one row and one column of numbers, categories or dates whose entries differ; "
            "found shape (2, 2). 'a': text, every entry different; it names the rows; "
            "'b': text, every entry different.",
        ),
        (
            "name,age\n" + "".join(f"p{i},{i}\n" for i in range(12)) + "q,n/k\n",
            "lab.csv, column 'age', row 12: 'n/k' is not a number (line 14 of the file). "
            "Name it missing with --missing n/k, or leave the column out with --drop age. If its line is not a row, "
            "say --footer 1.",
        ),
        (
            "name,age\n" + "".join(f"p{i},{i}\n" for i in range(12)) + "q,-inf\n",
            "lab.csv, column 'age', row 12: '-inf' is an infinity, not a finite number (line 14 of the file). "
            "Name it missing with --missing -inf, or leave the column out with --drop age.",
        ),
        (
            "a;b\n" + "".join(f"{i},5;{i}\n" for i in range(9)) + "1.5;3\n",
            "lab.csv, column 'a', row 9: '1.5' and '0,5' in row 0 have different decimal marks (line 11 of the file). "
            "Write all numbers of the column with one of them, or leave it out with --drop a.",
        ),
    ],
)
def test_bad_text_files_are_refused(write, content, message):
    assert refusal(write(content), Reading(door="command line")) == message


def test_files_that_cannot_be_read_are_refused(write, tmp_path, monkeypatch):
    assert refusal(tmp_path / "no.csv").startswith("no.csv: must be a file; there is none at ")
    assert refusal(tmp_path).endswith("must hold Parquet files (.parquet); it is a folder without any.")
    assert refusal(write(b"PK", "lab.doc")).startswith("lab.doc: must end in one of .csv, .txt, .tsv, .tab, .parquet")
    assert refusal(write(b"", "lab")).endswith("found ''. Rename or convert the file.")
    assert refusal(write(b"hello", "lab.parquet")) == (
        "lab.parquet: must be a Parquet file; it is damaged or of another kind."
    )
    assert refusal(write(b"hello", "lab.csv.gz")).startswith("lab.csv.gz: must be a whole file compressed as .gz")
    for ending, pack in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)):
        whole = pack(LAB.encode() * 40)
        assert "damaged or of another kind" in refusal(write(whole[: len(whole) // 2], f"cut.csv{ending}"))
    path = write(LAB)

    def denied(self, *_arguments, **_options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(type(path), "open", denied)
    assert refusal(path) == "lab.csv: must be readable; permission is denied. Change its permissions."


def test_mixed_encodings_are_refused(write):
    content = "a,b\né,1\n".encode() + "è,2\n".encode("latin-1")
    assert refusal(write(content)) == (
        "lab.csv: must be in one encoding; line 2 is UTF-8 and line 3 is not. "
        "Save it in one encoding, or name the one to use with Reading(encoding='cp1252')."
    )


def test_an_endless_line_is_refused(write):
    path = write("a,b\n1,2\n3," + "4" * 3000 + "\n")
    message = refusal(path, Reading(max_line=1000))
    assert message == (
        "lab.csv, line 3: must be at most 1 kB long; it is longer. Raise max_line if the table is that wide."
    )
    wide = write(",".join(f"c{k}" for k in range(500)) + "\n" + ",".join("1" * 500) + "\n", "wide.csv")
    assert refusal(wide, Reading(max_line=100)).startswith("wide.csv, line 1: must be at most 100 bytes long")


def test_ids_must_tell_rows_apart(write):
    path = write("code,x\na,1\nb,2\na,3\n,4\n")
    assert refusal(path, Reading(id="code")) == (
        "lab.csv, column 'code', row 2: 'a' is the id of row 0, too (line 4 of the file). "
        "Ids must tell rows apart: name another id column, or take one of the rows out."
    )
    gap = write("code,x\na,1\n,2\n", "gap.csv")
    assert "row 1: an id must not be missing" in refusal(gap, Reading(id="code"))
    named = read_table(write("id,x\na,1\na,2\nb,3\n", "named.csv"), name="lab")
    assert named.row_ids == (0, 1, 2)
    assert "column 'id' is no id: it has 2 different entries in 3 rows" in named.notes


def test_numbers_may_be_ids(write):
    path = write("number,x\n7,1\n5,2\n6,3\n")
    table = read_table(path, name="lab", reading=Reading(id="lab:number"))
    assert table.row_ids == ("7", "5", "6")
    assert table.columns == ("x",)
    assert read_table(path, name="lab").columns == ("number", "x")


def test_what_cannot_fit_is_refused_with_the_number(write):
    message = refusal(write(LAB), Reading(max_memory=500))
    assert message.startswith("lab.csv: must fit in memory; a table of 12 × 6 cells needs about ")
    assert "500 bytes are allowed by max_memory" in message
    buffer = io.BytesIO()
    pd.DataFrame(np.arange(100.0).reshape(50, 2), columns=["a", "b"]).to_parquet(buffer)
    assert refusal(write(buffer.getvalue(), "lab.parquet"), Reading(max_memory=500)).startswith(
        "lab.parquet: must fit in memory; a table of 50 × 2 entries needs about "
    )
    tables = [np.random.default_rng(0).normal(size=(100, 2)) for _ in range(2)]
    with pytest.raises(
        InputError, match=r"^tables: must fit in memory; linking tables of 100 and 100 rows needs about"
    ):
        read_tables(tables, reading=Reading(max_memory=10_000))
    searched = (200 + 40 * workers()) * 100 * 100
    assert memory_needed([(100, 2), (100, 2)]) == 160 * 100 * 100 + searched + 2 * 100 * 2 * 25 + 10**8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "must have three columns, row, column and value, in the long layout; found 2."),
        ("r,c,v\nu,i,1\nu,i,2\n", "row 1: must give every entry once; row 'u', column 'i' was given in row 0."),
        ("r,c,v\nu,i,1\nu,,2\n", "column 'c', row 1: must not be missing in the long layout."),
    ],
)
def test_bad_long_layouts_are_refused(write, content, message):
    assert message in refusal(write(content), Reading(layout="long"))


def test_many_batches_read_as_one(write, monkeypatch):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(30_000, 6)).round(4)
    frame = pd.DataFrame(values, columns=list("abcdef"))
    content = frame.to_csv(index=False)
    assert len(content) > 2**20
    monkeypatch.setattr(files, "_CHUNK", 2**12)
    table = read_table(write(content), name="lab")
    np.testing.assert_array_equal(table.block.values, values)
    assert read_text(open_file(write(content)), Reading()).line(20_000) == 20_002


def test_whole_numbers_with_gaps_in_parquet(write):
    buffer = io.BytesIO()
    arrow = pa.table({"n": [2**60 + 1, None, 3], "d": pa.array([1, None, 3], pa.date32()), "b": [True, None, False]})
    pa.parquet.write_table(arrow, buffer)
    table = read_table(write(buffer.getvalue(), "lab.parquet"), name="lab")
    assert kinds(table) == ["integer", "date", "boolean"]
    rebuilt = table.rebuilt(np.full((3, 3), 0.8), np.array([2, 1, 0]))
    assert rebuilt["n"].tolist() == [3, 1, 2**60 + 1]
    assert rebuilt["n"].dtype == "Int64"


def test_new_rows_of_a_file(write):
    table = read_table(write(LAB), name="lab")
    lines = "id,ill,age,sex,weight,seen\n900,true,NA,M,7.5,2021-01-01\n901,false,30,?,NA,2021-01-01\n"
    fresh = read_like(write(lines, "new.csv"), like=table)
    assert fresh.columns == table.columns
    assert fresh.row_ids == ("900", "901")
    assert fresh.block.mask.tolist() == [[False, True, True, True, True], [True, False, False, True, True]]
    assert fresh.block.values[0].tolist() == [0.0, 0.0, 7.5, 18628.0, 1.0]
    bad = write("id,ill,age,sex,weight,seen\n900,true,old,M,7.5,2021-01-01\n", "bad.csv")
    with pytest.raises(InputError, match=r"^bad\.csv, column 'age', row 0: 'old' is not a number"):
        read_like(bad, like=table)
