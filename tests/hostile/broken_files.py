"""Broken files: tables in every format that is read, damaged in every way a disk or a person can."""

import bz2
import gzip
import io
import lzma
import sqlite3
import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import escape

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hostile.names import NAMES

ENDINGS = [
    *(".csv", ".tsv", ".txt", ".parquet", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst", ".parquet.gz"),
    *(".xlsx", ".ods", ".db"),
    # Files of DuckDB are made where it is installed.
    *([".duckdb"] if find_spec("duckdb") else []),
]

_PIECES = [b",", b'"', b"\n", b"\r\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"1e999", b"-", b"nan", b"\xe9", b"a" * 999]

_NONSENSE = [b"{", b"[]", b"null", b'{"index_columns": [7], "columns": 3}', b'{"columns": [{}]}']


def _cells(draw):
    """Column names, and rows of cells, now and then one cell too many or too few."""
    names = [draw.choice([f"c{number}", draw.choice(NAMES)[:200]]) for number in range(draw.randrange(1, 5))]
    # A column of numbers with gaps, or anything beside anything.
    kinds = [draw.choice([["", "NA"], ["x", "", "NA", "1,5", "2020-01-01"]]) for _ in [*names, ""]]
    rows = []
    for _ in range(draw.randrange(1, 12)):
        width = len(names) if draw.random() < 0.98 else len(names) + draw.choice([-1, 1])
        share = 0.1 if draw.random() < 0.5 else 0.8
        odd = [draw.choice(kind) if draw.random() < share else f"{draw.gauss(0, 1):.3g}" for kind in kinds]
        rows.append(odd[:width])
    return names, rows


def _text(draw):
    names, rows = _cells(draw)
    return "\n".join(map(",".join, [names, *rows])).encode("utf-8", "surrogatepass")


def _value(cell, draw):
    """A cell as the number it is, or as something that only sheets and databases have."""
    odd = [None, True, 2**40, 1e308, float("inf"), b"\0\xff", "\0", "=1/0"]
    if draw.random() < 0.02:
        return draw.choice(odd)
    try:
        return float(cell)
    except ValueError:
        return cell.encode("utf-8", "replace").decode()


def _sheet_cell(value):
    """A cell of an .xlsx file: numbers as such, everything else as text in the cell."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"<c><v>{value}</v></c>"
    return f'<c t="inlineStr"><is><t>{_xml(value)}</t></is></c>'


def _open_document_cell(value):
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f'<table:table-cell office:value-type="float" office:value="{value}"><text:p/></table:table-cell>'
    return f'<table:table-cell office:value-type="string"><text:p>{_xml(value)}</text:p></table:table-cell>'


def _xml(value):
    text = "" if value is None else str(value)
    return escape("".join(c for c in text if c.isprintable()))


def zipped(members):
    """Return an archive of some members, name → text."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def workbook(rows):
    """Return an .xlsx file; rows are rows of XML cells."""
    body = "".join(f"<row>{''.join(row)}</row>" for row in rows)
    main, about = "http://schemas.openxmlformats.org/spreadsheetml/2006/main", "http://schemas.openxmlformats.org"
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{about}/package/2006/content-types"/>',
            "_rels/.rels": f'<Relationships xmlns="{about}/package/2006/relationships"><Relationship Id="rId1" '
            f'Type="{about}/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/>'
            "</Relationships>",
            "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{about}/officeDocument/2006/relationships">'
            '<sheets><sheet name="one" sheetId="1" r:id="rId1"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{about}/package/2006/relationships"><Relationship '
            f'Id="rId1" Type="{about}/officeDocument/2006/relationships/worksheet" Target="worksheets/sheet1.xml"/>'
            "</Relationships>",
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{body}</sheetData></worksheet>',
        }
    )


def open_document(rows):
    """Return an .ods file; rows are rows of XML cells."""
    body = "".join(f"<table:table-row>{''.join(row)}</table:table-row>" for row in rows)
    kinds = ("office", "table", "text")
    names = " ".join(f'xmlns:{kind}="urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0"' for kind in kinds)
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
            "META-INF/manifest.xml": "<manifest/>",
            "content.xml": f"<office:document-content {names}><office:body><office:spreadsheet>"
            f'<table:table table:name="one">{body}</table:table>'
            "</office:spreadsheet></office:body></office:document-content>",
        }
    )


def _sheet(draw, ending):
    names, rows = _cells(draw)
    made, cell = (workbook, _sheet_cell) if ending == ".xlsx" else (open_document, _open_document_cell)
    return made([[cell(name) for name in names], *([cell(_value(entry, draw)) for entry in row] for row in rows)])


def _database(draw, ending):
    names, rows = _cells(draw)
    unique = [
        f"{name.encode('utf-8', 'replace').decode()}{number}".replace("\0", "") for number, name in enumerate(names)
    ]
    quoted = ['"' + name.replace('"', '""') + '"' for name in unique]
    kinds = [draw.choice(["DOUBLE", "DOUBLE", "VARCHAR", "DATE", "HUGEINT"]) for _ in names]
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"table{ending}"
        if ending == ".db":
            connection = sqlite3.connect(path)
            connection.execute(f"CREATE TABLE one ({', '.join(quoted)})")
            places = ", ".join("?" for _ in names)
        else:
            import duckdb

            connection = duckdb.connect(str(path))
            connection.execute(f"CREATE TABLE one ({', '.join(map(' '.join, zip(quoted, kinds, strict=True)))})")
            places = ", ".join(f"TRY_CAST(? AS {kind})" for kind in kinds)
        for row in rows:
            entries = [_value(cell, draw) for cell in [*row, *names][: len(names)]]
            entries = entries if ending == ".db" else [None if e is None else str(e) for e in entries]
            connection.execute(f"INSERT INTO one VALUES ({places})", entries)
        connection.commit()
        connection.close()
        return path.read_bytes()


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
    if ending in (".xlsx", ".ods"):
        content = _sheet(draw, ending)
    elif ending in (".db", ".duckdb"):
        content = _database(draw, ending)
    else:
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
