"""Sheets of spreadsheets, tables of databases and AnnData files: read like the text files that hold the same."""

from __future__ import annotations

import builtins
import datetime
import sqlite3
import zipfile
from xml.sax.saxutils import escape

import numpy as np
import pandas as pd
import pytest

from keyless.errors import InputError
from keyless.tables import Reading, read_like, read_table, stem

openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
pytest.importorskip("python_calamine", reason="python-calamine is not installed")

NAMES = ["id", "age", "weight", "seen", "ill", "ward", "note"]
RECORDS = [
    [
        f"P{i:02d}",
        20 + i,
        None if i == 3 else 60 + i * 1.5,
        datetime.date(2020, 1, i + 1),
        i % 3 == 0,
        ["north", "south"][i % 2],
        f"remark {i}",
    ]
    for i in range(12)
]
KINDS = ["id", "integer", "number", "date", "boolean", "category", "left out"]


def as_cell(value):
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


@pytest.fixture
def text(tmp_path):
    """The same table as a text file."""
    path = tmp_path / "text.csv"
    lines = [",".join(map(as_cell, row)) for row in [NAMES, *RECORDS]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_table(path, name="lab")


def write_xlsx(path, rows, *, sheet="Sheet1", more=(), merged=()):
    book = openpyxl.Workbook()
    page = book.active
    page.title = sheet
    for row in rows:
        page.append(list(row))
    for cells in merged:
        page.merge_cells(cells)
    for name in more:
        book.create_sheet(name).append(["x"])
    book.save(path)
    return path


def write_ods(path, rows):
    """As few bytes as make an OpenDocument spreadsheet, written by hand."""

    def cell(value):
        if value is None:
            return "<table:table-cell/>"
        if isinstance(value, bool):
            kind, said = "boolean", f'office:boolean-value="{str(value).lower()}"'
        elif isinstance(value, int | float):
            kind, said = "float", f'office:value="{value!r}"'
        elif isinstance(value, datetime.date):
            kind, said = "date", f'office:date-value="{value.isoformat()}"'
        else:
            kind, said = "string", ""
        return (
            f'<table:table-cell office:value-type="{kind}" {said}>'
            f"<text:p>{escape(str(value))}</text:p></table:table-cell>"
        )

    lines = "".join(f"<table:table-row>{''.join(map(cell, row))}</table:table-row>" for row in rows)
    spaces = "".join(
        f' xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
    )
    content = (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document-content{spaces} office:version="1.2"><office:body>'
        f'<office:spreadsheet><table:table table:name="Tabelle1">{lines}</table:table></office:spreadsheet>'
        "</office:body></office:document-content>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("content.xml", content)
        archive.writestr(
            "META-INF/manifest.xml",
            '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>',
        )
    return path


def write_sqlite(path, **tables):
    connection = sqlite3.connect(path)
    for table, rows in tables.items():
        name = table.replace('"', '""')
        names, *records = rows
        connection.execute(f'CREATE TABLE "{name}" ({", ".join(names)})')
        values = [[e.isoformat() if isinstance(e, datetime.date) else as_truth(e) for e in row] for row in records]
        connection.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(names))})', values)
    connection.commit()
    connection.close()
    return path


def as_truth(value):
    return str(value).lower() if isinstance(value, bool) else value


def refusal(path, **options):
    with pytest.raises(InputError) as caught:
        read_table(path, name="lab", reading=Reading(door="command line", **options))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", ["xlsx", "ods", "sqlite"])
def test_every_kind_reads_like_text(tmp_path, text, kind):
    rows = [NAMES, *RECORDS]
    if kind == "xlsx":
        path = write_xlsx(tmp_path / "lab.xlsx", rows)
    elif kind == "ods":
        path = write_ods(tmp_path / "lab.ods", rows)
    else:
        path = write_sqlite(tmp_path / "lab.db", lab=rows)
    table = read_table(path, name="lab")
    assert [use.kind for use in table.uses] == [use.kind for use in text.uses] == KINDS
    assert table.columns == text.columns
    assert tuple(table.row_ids) == tuple(text.row_ids)
    np.testing.assert_array_equal(table.block.values, text.block.values)
    np.testing.assert_array_equal(table.block.mask, text.block.mask)
    assert table.notes == ()
    assert table.source == str(path)
    fresh = read_like(path, like=text)
    np.testing.assert_array_equal(fresh.block.values, text.block.values)


def test_duckdb_keeps_types(tmp_path):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    path = tmp_path / "study.duckdb"
    frame = pd.DataFrame(RECORDS, columns=NAMES)
    with duckdb.connect(str(path)) as connection:
        connection.register("given", frame)
        connection.execute("CREATE TABLE lab AS SELECT * REPLACE (CAST(seen AS DATE) AS seen) FROM given")
        connection.execute("CREATE TABLE other AS SELECT 1 AS x")
    before = path.read_bytes()
    table = read_table(f"{path}::lab", name="lab")
    assert [use.kind for use in table.uses] == KINDS
    assert table.block.values[0].tolist()[:2] == [20, 60]
    assert refusal(path) == (
        "study.duckdb: must say which table is meant; there are 'lab', 'other'. Name one as study.duckdb::lab."
    )
    assert refusal(f"{path}::none") == "study.duckdb::none: must name a table; there are 'lab', 'other'."
    assert path.read_bytes() == before


def test_an_anndata_file(tmp_path):
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    values = np.random.default_rng(0).poisson(3, (10, 4)).astype(np.float32)
    made = anndata.AnnData(values)
    made.obs_names = [f"cell{i}" for i in range(10)]
    made.write_h5ad(tmp_path / "cells.h5ad")
    table = read_table(tmp_path / "cells.h5ad", name="cells")
    assert table.form == "anndata"
    np.testing.assert_array_equal(table.block.values, values)
    assert tuple(table.row_ids) == tuple(made.obs_names)
    assert table.source == str(tmp_path / "cells.h5ad")
    (tmp_path / "bad.h5ad").write_bytes(b"no such thing")
    assert refusal(tmp_path / "bad.h5ad").startswith(
        "bad.h5ad: must be an AnnData file; it is damaged or of another kind"
    )


def test_the_sheet_is_named_or_asked_for(tmp_path):
    path = write_xlsx(tmp_path / "book.xlsx", [["x", "y"], [1, 2], [2, 3], [4, 7]], sheet="Lab", more=("Notes",))
    assert refusal(path) == (
        "book.xlsx: must say which sheet is meant; there are 'Lab', 'Notes'. Name one as book.xlsx::Lab."
    )
    assert refusal(f"{path}::Laboratory") == "book.xlsx::Laboratory: must name a sheet; there are 'Lab', 'Notes'."
    assert read_table(f"{path}::Lab", name="lab").block.values.tolist() == [[1, 2], [2, 3], [4, 7]]
    assert stem(f"{path}::Lab") == "Lab"
    assert stem(f"{path}::Sheet1") == stem(path) == "book"
    assert stem("study.db::patients") == "patients"
    assert refusal(tmp_path / "lab.csv::x").startswith("lab.csv: must be a spreadsheet or a database to name a part")


def test_titles_merged_names_totals_and_marks_in_a_sheet(tmp_path):
    rows = [
        ["Lab report", None, None, None],
        [None, None, None, None],
        [None, "Blood", None, "Urine"],
        ["id", "Na", "K", "Na"],
        *[[f"P{i}", 140 + i, "k.A." if i == 2 else 4 + i / 10, "-" if i == 3 else 80.5 + i] for i in range(8)],
        [None, None, None, None],
        ["Total", sum(140 + i for i in range(8)), None, None],
    ]
    path = write_xlsx(tmp_path / "lab.xlsx", rows, merged=("A1:D1", "B3:C3"))
    table = read_table(path, name="lab")
    assert table.columns == ("Blood Na", "Blood K", "Urine Na")
    assert table.row_ids == tuple(f"P{i}" for i in range(8))
    assert table.block.mask.all(axis=1).tolist() == [i not in (2, 3) for i in range(8)]
    assert [note.split(":")[0] for note in table.notes] == [
        "the first 2 lines are not part of the table and skipped",
        "the column names take two lines, as in 'Urine Na'",
        "the last line is not a row and skipped",
    ]
    rows[6][2] = "none"
    write_xlsx(path, rows, merged=("A1:D1", "B3:C3"))
    assert "column 'Blood K', row 2: 'none' is not a number (line 7 of the file)" in refusal(path)


def test_a_cell_merged_over_rows_holds_for_each(tmp_path):
    rows = [["ward", "x"], *[["north" if i == 0 else "south" if i == 4 else None, i * i] for i in range(8)]]
    table = read_table(write_xlsx(tmp_path / "lab.xlsx", rows, merged=("A2:A5", "A6:A9")), name="lab")
    assert table.column("ward") == ["north"] * 4 + ["south"] * 4


def test_numbers_of_a_sheet_are_not_asked_about(tmp_path):
    """A number that is stored as such has no decimal mark to be in doubt about, whatever text stands beside it."""
    rows = [["a", "b", "c"], *[[f"{i},5", i + 0.125, f"1{i}.650"] for i in range(8)]]
    path = write_xlsx(tmp_path / "lab.xlsx", rows)
    message = refusal(path)
    assert message.startswith("lab.xlsx, column 'c', row 0: the point of '10.650' may be a decimal mark")
    for mark, wanted in ((",", 10650), (".", 10.65)):
        table = read_table(path, name="lab", reading=Reading(decimal=mark))
        assert table.block.values[0].tolist() == [0.5, 0.125, wanted]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("lab.xlsx", b"PK\x03\x04", "lab.xlsx: must be a spreadsheet; it is damaged or of another kind"),
        ("lab.ods", b"", "lab.ods: must be a spreadsheet; it is damaged or of another kind"),
        ("lab.db", b"hello, this is not a database at all", "lab.db: must be a database of SQLite or DuckDB; file is"),
        ("lab.sqlite", b"", "lab.sqlite: must have a table; it is an empty database."),
    ],
)
def test_what_is_something_else_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert refusal(tmp_path / name).startswith(message)
    (tmp_path / name).unlink()
    assert refusal(tmp_path / name).startswith(f"{name}: must be ")
    assert not (tmp_path / name).exists(), "a database that is not there is not made"


@pytest.mark.parametrize(
    ("name", "library", "said"),
    [
        ("lab.xlsx", "python_calamine", ("spreadsheets", "excel")),
        ("lab.h5ad", "anndata", ("AnnData files", "anndata")),
        ("lab.duckdb", "duckdb", ("databases of DuckDB", "duckdb")),
    ],
)
def test_what_is_not_installed_is_said_in_one_line(tmp_path, monkeypatch, name, library, said):
    (tmp_path / name).write_bytes(b"12345678DUCK")
    real = builtins.__import__

    def without(wanted, *rest):
        if wanted == library:
            raise ImportError(wanted)
        return real(wanted, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert refusal(tmp_path / name) == (
        f'{name}: {said[0]} need a library that is not installed. Run: pip install "keyless[{said[1]}]"'
    )


def test_two_tables_of_one_database(tmp_path):
    rows = [["name", "x"], *[[f"p{i}", i * i] for i in range(6)]]
    path = write_sqlite(tmp_path / "study.db", clinic=rows, lab=rows)
    before = path.read_bytes()
    assert refusal(path).startswith("study.db: must say which table is meant; there are 'clinic', 'lab'.")
    assert read_table(f"{path}::clinic", name="clinic").column("x") == [i * i for i in range(6)]
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["study.db"]
    quoted = write_sqlite(tmp_path / "odd.db", **{'say "hi"': rows})
    assert read_table(f'{quoted}::say "hi"', name="odd").block.shape == (6, 1)
    assert refusal(f"{path}::lab", max_memory=10).startswith("study.db::lab: must fit in memory")


def test_what_unpacks_to_more_than_fits_is_refused(tmp_path):
    path = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b" " * 10**7)
    assert path.stat().st_size < 10**5
    assert refusal(path, max_memory=10**6).startswith(
        "bomb.xlsx: must fit in memory; a spreadsheet of 10 MB, unpacked, needs about 30 MB"
    )
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "bomb.h5ad", "w") as file:
        file.create_dataset("X", shape=(10**5, 10**4), dtype="f8", chunks=(1000, 1000), compression="gzip")
    assert refusal(tmp_path / "bomb.h5ad", max_memory=10**6).startswith(
        "bomb.h5ad: must fit in memory; an AnnData of 8 GB needs about 16 GB"
    )


def test_views_are_not_run(tmp_path):
    path = tmp_path / "endless.db"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE VIEW lab AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    )
    connection.close()
    assert refusal(f"{path}::lab") == "endless.db::lab: must have a table; it is an empty database."
