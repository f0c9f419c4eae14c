"""Files that are broken, or unpack to more than there is memory for, are refused in one line and in little time."""

import gzip
import io
import os
import sqlite3
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile.broken_files import broken_file, gzip_of_zeros, workbook
from hostile.outcomes import file_outcome
from keyless.cli.app import _run
from keyless.errors import InputError
from keyless.tables import Reading, read_table
from keyless.tables.cells import TextCells
from keyless.tables.encodings import Encoding

LITTLE = 50_000_000


@settings(max_examples=80, deadline=None)
@given(draw=st.randoms(use_true_random=False))
def test_broken_files_are_read_or_refused_in_one_line(draw):
    ending, content = broken_file(draw)
    with TemporaryDirectory() as folder:
        one, two = (Path(folder) / f"{name}{ending}" for name in ("one", "two"))
        one.write_bytes(content)
        two.write_bytes(content)
        assert file_outcome(one) == file_outcome(two)


def test_unpacking_stops_at_the_memory_that_is_allowed_and_says_what_it_takes(tmp_path):
    # 400 MB of text in 400 kB.
    path = tmp_path / "zeros.csv.gz"
    path.write_bytes(gzip_of_zeros(200_000_000))
    assert path.stat().st_size < 1e6
    began = time.process_time()
    with pytest.raises(InputError) as caught:
        read_table(path, name="zeros", reading=Reading(max_memory=LITTLE))
    assert time.process_time() - began < 2
    said = str(caught.value)
    assert said.startswith("zeros.csv.gz: must fit in memory; a table of at least ")
    assert "needs about" in said
    assert "50 MB are allowed by max_memory" in said


def test_inspect_stops_unpacking_where_the_memory_ends(tmp_path, monkeypatch, capsys):
    path = tmp_path / "zeros.csv.gz"
    path.write_bytes(gzip_of_zeros(100_000_000))
    monkeypatch.setattr("keyless.tables.memory.available_memory", lambda: LITTLE)
    began = time.process_time()
    assert _run(["inspect", str(path)]) == 2
    assert time.process_time() - began < 5
    assert "must fit in memory" in capsys.readouterr().err


def test_a_compressed_parquet_file_is_unpacked_as_far_as_there_is_memory(tmp_path):
    with gzip.open(tmp_path / "zeros.parquet.gz", "wb") as file:
        file.write(b"PAR1" + bytes(60_000_000))
    with pytest.raises(InputError, match="must fit in memory; a Parquet file of at least"):
        read_table(tmp_path / "zeros.parquet.gz", name="zeros", reading=Reading(max_memory=LITTLE))


def test_a_line_with_a_very_long_cell_too_many_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n2\n" + "x" * 200_000 + ",1\n")
    with pytest.raises(InputError, match=r"^t\.csv, line 4: must have 1 cells, as the first line has; found 2"):
        read_table(tmp_path / "t.csv", name="t")


def test_cells_far_apart_in_a_sheet_are_refused(tmp_path):
    # The reader holds all cells between them, 550 GB, and ended the process.
    pytest.importorskip("python_calamine")
    cells = [['<c r="A1"><v>1</v></c>'], ['<c r="XFD1048576"><v>2</v></c>']]
    (tmp_path / "far.xlsx").write_bytes(workbook(cells))
    with pytest.raises(InputError, match=r"must fit in memory; a sheet of 1048576 × 16384 cells needs about 550 GB"):
        read_table(tmp_path / "far.xlsx", name="far", reading=Reading(max_memory=10**10))


@pytest.mark.parametrize("length", [10**7, 10**8])
def test_computed_columns_of_a_database_are_bounded(tmp_path, length):
    # Eight kilobytes: the second column is computed when it is read.
    connection = sqlite3.connect(tmp_path / "t.db")
    connection.execute(f"CREATE TABLE one (a, b AS (zeroblob({length})))")
    connection.executemany("INSERT INTO one (a) VALUES (?)", [(k,) for k in range(50)])
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match=r"must fit in memory|too big"):
        read_table(tmp_path / "t.db", name="t", reading=Reading(max_memory=2 * LITTLE))


LONG = {
    "text": pa.DictionaryArray.from_arrays(np.zeros(2_000, dtype=np.int32), ["x" * 200_000]),
    "lists": pa.array([[0] * 1_000]).take(pa.array(np.zeros(50_000, dtype=np.int64))),
}
"""400 MB each, which Parquet stores in a few kilobytes."""


@pytest.mark.parametrize("kind", LONG)
def test_entries_that_parquet_stores_once_are_bounded(tmp_path, kind):
    table = pa.table({"n": np.arange(len(LONG[kind])) % 7, "x": LONG[kind]})
    pq.write_table(table, tmp_path / "t.parquet", store_schema=False, compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 2e6
    with pytest.raises(InputError, match=r"must fit in memory; a table of \d+ × 2 entries"):
        read_table(tmp_path / "t.parquet", name="t", reading=Reading(max_memory=2 * LITTLE))


def test_entries_that_duckdb_stores_once_are_bounded(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE one AS SELECT i AS n, repeat('x', 100000) AS t FROM range(3000) r(i)")
    with pytest.raises(InputError, match=r"must fit in memory; a table of 3000 × 2 entries"):
        read_table(tmp_path / "t.duckdb", name="t", reading=Reading(max_memory=2 * LITTLE))


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_the_encoding_does_not_depend_on_how_a_file_is_cut(content, cuts):
    """The quick way for plain text says what looking at every line says."""
    content = content.replace(b"\0", b"x")

    def verdict(parts):
        checker, lines = Encoding("file", Reading()), 0
        try:
            for part in parts:
                if part:
                    checker.feed(part, lines)
                    lines += part.count(b"\n")
            return checker.verdict() if content else None
        except InputError as error:
            return str(error)

    places = [0, *sorted(cuts), len(content)]
    assert verdict([content]) == verdict([content[a:b] for a, b in pairwise(places)])


CELLS = st.one_of(st.none(), st.text(max_size=12), st.from_regex(r"[+-]?\d{0,3}[.,]?\d{0,3}(e\d)?"))


@given(st.lists(CELLS, max_size=12))
def test_few_cells_and_many_are_read_alike(cells):
    """Python's way for few cells says what Arrow's way for many says."""

    def facts(count):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("keyless.tables.cells._FEW_CELLS", count)
            column = TextCells(pa.array(cells, type=pa.large_string()), ("", "NA"))
            numeric = [column.are_numbers(decimal).tolist() for decimal in ".,"]
            others = [column.padded, column.are_infinite().tolist()]
            return [column.missing.tolist(), column.constant, column.entries(), *numeric, *others]

    try:
        [cell.encode() for cell in cells if cell is not None]
    except UnicodeEncodeError:
        return
    assert facts(10**9) == facts(-1)


@pytest.mark.slow
def test_many_complete_columns_are_filled_in_no_time(tmp_path, capsys):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3_000)).round(3))
    frame.to_csv(tmp_path / "wide.csv", index=False)
    began = time.process_time()
    assert _run(["fill", str(tmp_path / "wide.csv"), "--out", str(tmp_path / "filled.csv")]) == 0
    # 3,000 columns took six seconds; 20,000 took 44. Now 20,000 take nine, of which seven are to read them.
    assert time.process_time() - began < 3
    assert (tmp_path / "filled.csv").read_bytes() == (tmp_path / "wide.csv").read_bytes()
    assert "filled 0 of 90000 entries" in capsys.readouterr().err


# --- closed streams --------------------------------------------------------------------------------------------------


def shell(command, folder):
    environment = os.environ | {"PYTHONPATH": str(Path(sys.modules["keyless"].__file__).parent.parent)}
    keyless = f'"{sys.executable}" -c "from keyless.cli import main; main()"'
    return subprocess.run(
        command.replace("keyless", keyless, 1), shell=True, cwd=folder, capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell of Unix")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("keyless inspect a.csv >&-", "standard output is closed"),
        pytest.param(
            "keyless inspect - <&-", "standard input: must be open to be read; it is closed", marks=pytest.mark.slow
        ),
        pytest.param("keyless inspect a.csv >/dev/full", "the disk is full", marks=pytest.mark.slow),
        pytest.param("keyless inspect a.csv 2>&-", "", marks=pytest.mark.slow),
    ],
)
def test_closed_streams_are_no_mistakes_of_keyless(tmp_path, command, said):
    buffer = io.StringIO()
    pd.DataFrame(np.random.default_rng(0).normal(size=(9, 2))).to_csv(buffer, index=False)
    (tmp_path / "a.csv").write_text(buffer.getvalue())
    done = shell(command, tmp_path)
    assert said in done.stderr
    assert "mistake in keyless" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1
    assert done.returncode in ((1, 2) if said else (0,))
