"""Saved results that were changed by somebody who means harm: single changes, and random ones."""

import io
import json
import random
import zipfile

import numpy as np

import keyless
from keyless.errors import InputError


def members_of(path):
    """Everything in a saved result: name → bytes."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path, members, *, compression=zipfile.ZIP_DEFLATED):
    """Write a saved result with other members."""
    with zipfile.ZipFile(path, "w", compression=compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def with_array(members, name, array):
    """Replace one array."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return members | {f"arrays/{name}.npy": buffer.getvalue()}


def array_of(members, name):
    """Return one array."""
    return np.load(io.BytesIO(members[f"arrays/{name}.npy"]), allow_pickle=False).copy()


def document_of(members):
    """Return the document."""
    return json.loads(members["links.json"])["document"]


def with_document(members, document):
    """Replace the document."""
    header = json.loads(members["links.json"]) | {"document": document}
    return members | {"links.json": json.dumps(header).encode()}


_VALUES = [None, True, -1, 0, 7.5, float("nan"), float("inf"), 10**30, "", "x" * 50, [], [[]], {}, {"tuple": [1]}]


def _places(value, path=()):
    """All places in a JSON document."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:3]):
            yield from _places(inner, (*path, number))


def _changed_document(document, draw):
    document = json.loads(json.dumps(document))
    path = draw.choice([place for place in _places(document) if place])
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if isinstance(inner, dict) and draw.random() < 0.3:
        del inner[path[-1]]
    else:
        inner[path[-1]] = draw.choice(_VALUES)
    return document


def _changed_array(array, draw):
    kind = draw.randrange(6)
    if kind == 0:
        return array.astype(draw.choice(["f4", "f8", "i8", "u1", "?", "U3", "c16"]))
    if kind == 1:
        return array[: len(array) // 2] if array.ndim else array
    if kind == 2:
        return array[..., None]
    if kind == 3:
        return np.zeros((draw.choice([0, 1, 10_000_000]),), dtype=array.dtype)
    if array.size and array.dtype.kind in "fi":
        value = draw.choice([-1, -2, 7.5, 1e300] if array.dtype.kind == "i" else [np.nan, np.inf, -1.0, 7.5, 1e300])
        array = array.copy()
        array.flat[draw.randrange(array.size)] = min(value, 2**62) if array.dtype.kind == "i" else value
    return array


def hostile_archive(members, draw: random.Random) -> bytes:
    """Return a saved result with something changed, as bytes of a file."""
    members = dict(members)
    kind = draw.choice(["document", "array", "array", "missing", "bytes", "cut", "json", "method", "renamed"])
    arrays = [name for name in members if name.startswith("arrays/")]
    if kind == "document":
        members = with_document(members, _changed_document(document_of(members), draw))
    elif kind == "array":
        name = draw.choice(arrays).removeprefix("arrays/").removesuffix(".npy")
        members = with_array(members, name, _changed_array(array_of(members, name), draw))
    elif kind == "missing":
        del members[draw.choice(list(members))]
    elif kind == "renamed":
        members[draw.choice(arrays)] = members[draw.choice(arrays)]
    elif kind == "json":
        members["links.json"] = draw.choice([b"[" * 100_000, b"{}", b"", b"\xff", b'{"format": 1}', b"9" * 10_000])
    elif kind == "bytes":
        name = draw.choice(list(members))
        content = bytearray(members[name])
        for _ in range(draw.randrange(1, 8)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        members[name] = bytes(content)
    buffer = io.BytesIO()
    methods = [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    write(buffer, members, compression=draw.choice(methods) if kind == "method" else zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    if kind == "cut":
        content = content[: draw.randrange(len(content))]
    return content


def loaded_or_refused(path):
    """Return whether a file was read; what is read can be used, and what is refused is refused in one line."""
    try:
        links = keyless.load(path)
    except InputError as error:
        if "\n" in str(error) or len(str(error)) > 2_000:
            raise AssertionError("the message must be one line") from error
        return False
    links.joined()
    repr(links)
    if len(links.matches) != len(links.tables[0].row_ids) * len(links.found):
        raise AssertionError("one match for each reference row and table")
    return True
