"""Saved results: exactly back, nothing else read, never half a file."""

import io
import json
import zipfile

import numpy as np
import pytest

import keyless
from keyless.errors import InputError
from keyless.saved import archive
from keyless.saved.archive import read_archive, write_archive

DOCUMENT = {"name": "Größe – 測定", "numbers": [1, 2.5, None], "deep": {"a": [True, "x"]}}
ARRAYS = {
    "whole": np.arange(6).reshape(2, 3),
    "real": np.array([[np.nan, np.inf], [-0.0, 1e-300]]),
    "mask": np.array([True, False]),
    "text": np.array(["a", "größer"]),
    "empty": np.zeros((0, 3)),
    "turned": np.arange(6.0).reshape(2, 3).T,
    "0.values": np.float32([1.5]),
}
DAMAGED = r"run\.keyless: must be a saved keyless result; it is damaged or of another kind\.$"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.keyless"


def rewritten(path, change):
    """Write the archive again with its members changed: name → bytes."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            new.writestr(name, content)


def test_round_trip(path):
    content = bytes(range(256)) * 3
    write_archive(path, DOCUMENT, ARRAYS, {"0.frame": content, "empty": b""})
    document, arrays, files = read_archive(path)
    assert document == DOCUMENT
    assert files == {"0.frame": content, "empty": b""}
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert np.signbit(arrays["real"][1, 0])
    assert [file.name for file in path.parent.iterdir()] == ["run.keyless"]


def test_paths_may_be_text(path):
    write_archive(str(path), {}, {})
    assert read_archive(str(path)) == ({}, {}, {})


def test_the_file_holds_json_and_plain_arrays_only(path):
    write_archive(path, DOCUMENT, ARRAYS)
    with zipfile.ZipFile(path) as file:
        header = json.loads(file.read("links.json"))
        for name in file.namelist():
            if name != "links.json":
                np.load(io.BytesIO(file.read(name)), allow_pickle=False)
    assert header["format"] == "keyless links"
    assert header["version"] == archive.VERSION


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_other_versions_are_refused(path, version):
    write_archive(path, {}, {})

    def change(members):
        members["links.json"] = json.dumps({"format": "keyless links", "version": version, "document": {}}).encode()

    rewritten(path, change)
    message = rf"run\.keyless: must be of format version 2; found {version!r}\. Read it with the version of keyless"
    with pytest.raises(InputError, match=message):
        read_archive(path)


@pytest.mark.parametrize("header", ['{"format": "other", "version": 2}', "[]", '"keyless links"', "{}", "null"])
def test_other_formats_are_refused(path, header):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("links.json", header)
    with pytest.raises(
        InputError, match=r"run\.keyless: must be a saved keyless result; it has the header of another kind of file\.$"
    ):
        read_archive(path)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


def pickled(members):
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    members["arrays/whole.npy"] = buffer.getvalue()


def cut(members):
    members["arrays/whole.npy"] = members["arrays/whole.npy"][:-3]


def headless(members):
    members["arrays/whole.npy"] = b""


def without_header(members):
    del members["links.json"]


def without_document(members):
    members["links.json"] = b'{"format": "keyless links", "version": 2}'


def broken_json(members):
    members["links.json"] = members["links.json"][:-4]


def not_utf8(members):
    members["links.json"] = b"\xff\xfe\xfa{"


@pytest.mark.parametrize("change", [pickled, cut, headless, without_header, without_document, broken_json, not_utf8])
def test_damaged_and_dangerous_files_are_refused(path, change):
    write_archive(path, DOCUMENT, ARRAYS)
    rewritten(path, change)
    with pytest.raises(InputError, match=DAMAGED):
        read_archive(path)
    with pytest.raises(InputError, match=DAMAGED):
        keyless.load(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"reference_id,table\n", b"\x80\x04\x95"])
def test_other_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match=DAMAGED):
        read_archive(path)


def test_a_flipped_bit_is_noticed(path):
    write_archive(path, DOCUMENT, {"noise": np.random.default_rng(0).normal(size=500)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=DAMAGED):
        read_archive(path)


def test_a_missing_file_and_a_folder_are_named(path, tmp_path):
    with pytest.raises(InputError, match=r"run\.keyless: must be a file; there is none\.$"):
        read_archive(path)
    with pytest.raises(InputError, match=r": must be a file; there is none\.$"):
        read_archive(tmp_path)
    with pytest.raises(InputError, match=r"must be in a folder that exists; there is no .*nowhere\.$"):
        write_archive(tmp_path / "nowhere" / "run.keyless", {}, {})


def test_a_result_with_parts_missing_is_refused(path):
    write_archive(path, {"tables": [{"name": "lab"}]}, {})
    with pytest.raises(InputError, match=r"run\.keyless: must be a saved keyless result; a part of it is missing"):
        keyless.load(path)


@pytest.mark.parametrize("when", ["json", "object", "array", "last step"])
def test_never_half_a_file(path, monkeypatch, when):
    write_archive(path, {"which": "old"}, ARRAYS)
    document, arrays = {"which": "new"}, dict(ARRAYS)

    def crash(*_, **__):
        raise KeyboardInterrupt

    if when == "json":
        document["which"] = object()
    elif when == "object":
        arrays["late"] = np.array([None])
    elif when == "array":
        monkeypatch.setattr(archive.np.lib.format, "write_array", crash)
    else:
        monkeypatch.setattr(type(path), "replace", crash)
    error = {"json": TypeError, "object": InputError}.get(when, KeyboardInterrupt)
    with pytest.raises(error):
        write_archive(path, document, arrays)
    monkeypatch.undo()
    assert read_archive(path)[0] == {"which": "old"}
    assert [file.name for file in path.parent.iterdir()] == ["run.keyless"]


def test_objects_are_not_saved(path):
    with pytest.raises(InputError, match=r"^ids: must be plain numbers or text to be saved; found dtype object\.$"):
        write_archive(path, {}, {"ids": np.array([1, "a"], dtype=object)})
    assert not path.exists()
