"""Bombs: small files that unpack to a lot."""

import bz2
import gzip
import io
import lzma
import sqlite3
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hostile.broken_files import open_document, workbook
from hostile.outcomes import BrokenPromiseError, one_line
from hostile.running import Run

MEGABYTE = 2**20

BESIDE = 100 * MEGABYTE
"""Bytes that libraries and buffers take beside the tables."""

LONGEST = 30
"""Seconds of computing that a file may take of which a budget of 1 GB is not exceeded."""


def _lines(draw, size):
    """Text of about so many bytes, as one block and how often it comes."""
    line = draw.choice([b"0\n", b"1,2,3\n", b"\n", b"a,b\n", b"0" * 1000 + b"\n", b",".join([b"7"] * 50) + b"\n", b"x"])
    block = line * (MEGABYTE // len(line))
    return block, -(-size // len(block))


def _text(draw, ending, size):
    block, times = _lines(draw, size)
    head = b"a,b,c\n1,2,3\n2,1,5\n" if draw.random() < 0.5 else b"a\n1\n2\n"
    if ending == ".zst":
        return ".csv.zst", pa.compress(head + block * times, codec="zstd", asbytes=True)
    buffer = io.BytesIO()
    opened = {
        ".gz": lambda: gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0),
        ".bz2": lambda: bz2.BZ2File(buffer, "wb"),
        ".xz": lambda: lzma.LZMAFile(buffer, "wb", preset=0),  # noqa: SIM115 — closed below
    }[ending]
    with opened() as file:
        file.write(head)
        for _ in range(times):
            file.write(block)
    return f".csv{ending}", buffer.getvalue()


def _parquet(draw, size):
    """One entry, or a few, very often: a page of Parquet holds them once."""
    kind = draw.choice(["numbers", "short text", "long text", "lists"])
    if kind == "numbers":
        column = pa.array(np.zeros(size // 8))
    elif kind == "short text":
        column = pa.DictionaryArray.from_arrays(np.zeros(size // 4, dtype=np.int32), ["text"])
    elif kind == "long text":
        column = pa.DictionaryArray.from_arrays(np.zeros(2_000, dtype=np.int32), ["x" * (size // 2_000)])
    else:
        column = pa.array([[0] * 1_000]).take(pa.array(np.zeros(size // 8_000, dtype=np.int64)))
    buffer = io.BytesIO()
    table = pa.table({"n": pa.array(np.arange(len(column)) % 7), "x": column})
    pq.write_table(table, buffer, store_schema=draw.random() < 0.5, compression="zstd")
    return ".parquet", buffer.getvalue()


def _sheet(draw, size):
    """Cells that are repeated, or very many, or an archive that lies about its size."""
    kind = draw.choice(["many rows", "far cell", "repeated", "lie"])
    if kind == "repeated":
        times = max(size // 100, 1)
        repeated = (
            f'<table:table-cell table:number-columns-repeated="{times}" office:value-type="float" office:value="1"/>'
        )
        return ".ods", open_document([[repeated], [repeated]])
    if kind == "far cell":
        return ".xlsx", workbook([['<c r="A1"><v>1</v></c>'], ['<c r="XFD1048576"><v>2</v></c>']])
    content = workbook([["<c><v>1</v></c>"]] * (size // 50))
    if kind == "lie":
        # The directory at the end says that every member has four bytes.
        at = content.find(b"PK\x01\x02")
        while at >= 0:
            content = content[: at + 24] + struct.pack("<I", 4) + content[at + 28 :]
            at = content.find(b"PK\x01\x02", at + 4)
    return ".xlsx", content


def _database(draw, size):
    """A table that claims to be large, or a view and a column that compute for ever."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        connection = sqlite3.connect(path)
        kind = draw.choice(["zeros", "generated"])
        if kind == "zeros":
            connection.execute("CREATE TABLE one (a, b)")
            connection.executemany("INSERT INTO one VALUES (?, zeroblob(?))", [(k, size // 40) for k in range(4)])
        else:
            connection.execute(f"CREATE TABLE one (a, b AS (zeroblob({min(size, 10**9)})))")
            connection.executemany("INSERT INTO one (a) VALUES (?)", [(k,) for k in range(50)])
        connection.commit()
        connection.close()
        return ".db", path.read_bytes()


def bomb(draw):
    """Return the ending and the bytes of a small file that unpacks to up to 500 MB, and bytes of memory."""
    size = int(2 ** draw.uniform(24, 29))
    kind = draw.choice([".gz", ".gz", ".bz2", ".xz", ".zst", "parquet", "sheet", "database"])
    if kind == "parquet":
        made = _parquet(draw, size)
    elif kind == "sheet":
        made = _sheet(draw, min(size, 2**25))
    elif kind == "database":
        made = _database(draw, size)
    else:
        made = _text(draw, kind, size if kind == ".gz" else min(size, 2**26))
    return *made, int(2 ** draw.uniform(26, 30))


def bomb_case(draw, folder):
    """Look at a bomb: it is refused, or read within the memory there is, and that in a short time."""
    ending, content, budget = bomb(draw)
    path = folder / "in" / f"table{ending}"
    path.parent.mkdir()
    path.write_bytes(content)
    run = Run(["inspect", path], folder / "notes", memory=budget)
    code = run.wait(10 * LONGEST)
    if code not in (0, 2):
        raise BrokenPromiseError(f"{ending}, exit code {code}: {run.said[-300:]}")
    if code == 2:
        one_line(run.said.strip().removeprefix("keyless: "))
    figures = run.figures
    if figures["grown"] > budget + BESIDE:
        raise BrokenPromiseError(f"{ending}: {figures['grown'] / 1e6:.0f} MB of {budget / 1e6:.0f} MB, code {code}")
    if figures["computed"] > LONGEST:
        raise BrokenPromiseError(f"{ending}: {figures['computed']:.0f} s, code {code}")
    if path.read_bytes() != content or sorted(path.parent.iterdir()) != [path]:
        raise BrokenPromiseError("an input was changed")
    return "result" if code == 0 else "refused"
