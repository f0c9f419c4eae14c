"""Broken files: tables in every format that is read, damaged in every way a disk or a person can."""

import bz2
import gzip
import io
import lzma

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hostile.names import NAMES

ENDINGS = [".csv", ".tsv", ".txt", ".parquet", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst", ".parquet.gz"]

_PIECES = [b",", b'"', b"\n", b"\r\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"1e999", b"-", b"nan", b"\xe9", b"a" * 999]

_CELLS = ["x", "", "NA", "1,5", "2020-01-01"]
_NONSENSE = [b"{", b"[]", b"null", b'{"index_columns": [7], "columns": 3}', b'{"columns": [{}]}']


def _text(draw):
    rows, columns = draw.randrange(1, 12), draw.randrange(1, 5)
    names = [draw.choice([f"c{number}", draw.choice(NAMES)[:200]]) for number in range(columns)]
    lines = [",".join(names)]
    for _ in range(rows):
        width = columns if draw.random() < 0.95 else columns + draw.choice([-1, 1])
        lines.append(
            ",".join(draw.choice([f"{draw.gauss(0, 1):.3g}", "x", "", "NA", "1,5", "2020-01-01"]) for _ in range(width))
        )
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _parquet(draw):
    rows = draw.randrange(0, 12)
    frame = pd.DataFrame({f"c{k}": [draw.gauss(0, 1) for _ in range(rows)] for k in range(draw.randrange(1, 4))})
    table = pa.Table.from_pandas(frame)
    if draw.random() < 0.5:
        # What it says about pandas is nonsense.
        table = table.replace_schema_metadata({b"pandas": draw.choice(_NONSENSE)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _damaged(content, draw):
    content = bytearray(content)
    for _ in range(draw.choice([0, 1, 1, 3, 10])):
        kind, at = draw.randrange(4), draw.randrange(len(content) + 1)
        if kind == 0:
            del content[at:]
        elif kind == 1:
            content[at:at] = draw.choice(_PIECES)
        elif kind == 2 and at < len(content):
            content[at] = draw.randrange(256)
        else:
            del content[at : at + draw.randrange(1, 9)]
    return bytes(content)


def _packed(content, ending):
    if ending.endswith(".gz"):
        return gzip.compress(content, mtime=0)
    if ending.endswith(".bz2"):
        return bz2.compress(content)
    if ending.endswith(".xz"):
        return lzma.compress(content)
    if ending.endswith(".zst"):
        return pa.compress(content, codec="zstd", asbytes=True)
    return content


def broken_file(draw):
    """Return the ending and the bytes of a file; now and then of one that is whole."""
    ending = draw.choice(ENDINGS)
    content = _parquet(draw) if ".parquet" in ending else _text(draw)
    if draw.random() < 0.5:
        content = _damaged(content, draw)
    content = _packed(content, ending)
    if draw.random() < 0.4:
        content = _damaged(content, draw)
    return ending, content


def gzip_of_zeros(rows, *, columns=1):
    """Return a small gzip file that unpacks to a table of many rows."""
    line = b",".join([b"0"] * columns) + b"\n"
    block, buffer = line * (2**20 // len(line)), io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(b",".join(f"c{k}".encode() for k in range(columns)) + b"\n1" + line[1:])
        for _ in range(int(np.ceil(rows / (len(block) // len(line))))):
            file.write(block)
    return buffer.getvalue()
