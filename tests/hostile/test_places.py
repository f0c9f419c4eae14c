"""Nothing is written through links, over files of others, or beside the checksum that is recorded."""

import json
import os
import sqlite3
import sys
import threading

import numpy as np
import pandas as pd
import pytest

import keyless
from hostile.making import links_of
from keyless import places, runs
from keyless.cli import inputs
from keyless.cli.app import _run
from keyless.errors import InputError
from keyless.runs.configuration import check_unchanged, fingerprint
from keyless.runs.folder import check_replaceable, read_record, replace_folder
from keyless.runs.resuming import open_unfinished
from keyless.saved.archive import write_archive
from keyless.saved.checkpoints import Checkpoints
from keyless.tables import read_table

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


def small_links():
    rng = np.random.default_rng(0)
    return links_of({"one": pd.DataFrame(rng.normal(size=(8, 2))), "two": pd.DataFrame(rng.normal(size=(8, 2)))})


@pytest.fixture
def treasure(tmp_path):
    path = tmp_path / "treasure"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"


def test_a_link_where_a_file_goes_is_replaced_and_not_followed(tmp_path, treasure):
    (tmp_path / "links.keyless").symlink_to(treasure)
    small_links().save(tmp_path / "links.keyless")
    assert not (tmp_path / "links.keyless").is_symlink()
    assert keyless.load(tmp_path / "links.keyless").reference == "one"


def test_names_beside_are_created_exclusively(tmp_path, treasure, monkeypatch):
    monkeypatch.setattr(places.secrets, "token_hex", lambda _: "known")
    (tmp_path / ".page.html.keyless-new-known").symlink_to(treasure)
    with pytest.raises(FileExistsError):
        runs.write_file(tmp_path / "page.html", lambda path: path.write_text("page"))
    assert not (tmp_path / "page.html").exists()


def test_two_who_write_the_same_file_at_once_leave_one_whole_file(tmp_path):
    texts = [str(number) * 300_000 for number in range(4)]
    threads = [
        threading.Thread(
            target=runs.write_file, args=(tmp_path / "page", lambda path, text=text: path.write_text(text))
        )
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "page").read_text() in texts
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def test_nothing_is_left_of_what_failed(tmp_path):
    def fail(path):
        path.write_text("half")
        raise OSError("disk full")

    (tmp_path / "page").write_text("old")
    with pytest.raises(OSError, match="disk full"):
        runs.write_file(tmp_path / "page", fail)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page", "old")]


def opened(out, **changes):
    given = {"configuration": "seed = 0\n", "options": {"seed": 0}, "inputs": [], "resume": False}
    return open_unfinished(out, **(given | changes))


@pytest.mark.parametrize("name", ["lock", "state.json", "config.toml", "links.keyless", "checkpoint"])
@pytest.mark.parametrize("resume", [False, True])
def test_links_in_the_folder_of_an_unfinished_run_are_refused(tmp_path, treasure, name, resume):
    (tmp_path / "run.unfinished").mkdir()
    (tmp_path / "run.unfinished" / name).symlink_to(treasure)
    with pytest.raises(InputError, match=f"{name}: must not be a link"), opened(tmp_path / "run", resume=resume):
        pytest.fail("opened")


def test_a_folder_of_an_unfinished_run_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run.unfinished").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"run\.unfinished: must not be a link"), opened(tmp_path / "run"):
        pytest.fail("opened")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_stages_are_not_written_through_links(tmp_path):
    (tmp_path / "search-key.stage").symlink_to(tmp_path / "dangling")
    Checkpoints(tmp_path, "key").stage("search", lambda: 1.0)
    assert not (tmp_path / "dangling").exists()


def test_what_a_killed_run_left_beside_is_removed(tmp_path, treasure):
    (tmp_path / ".run.keyless-new-0000").mkdir()
    (tmp_path / ".run.keyless-new-0000" / "half").write_text("")
    (tmp_path / ".run.keyless-new-1111").symlink_to(treasure)
    (tmp_path / ".other.keyless-new-2222").mkdir()
    replace_folder(tmp_path / "run", lambda fresh: (fresh / "run.json").write_text("{}"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.keyless-new-2222", "run", "treasure"]


def test_a_forged_record_does_not_make_files_of_others_replaceable(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    names = ["thesis.tex", "run.json", "../treasure", 7, ["x"]]
    (folder / "run.json").write_text(json.dumps({"format": "keyless run", "version": 1, "files": names}))
    with pytest.raises(InputError, match=r"keyless did not write thesis\.tex"):
        check_replaceable(folder)
    assert (folder / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "{", "[]", '{"format": "keyless run", "version": 1, "files": {}}', ""]
)
def test_broken_records_are_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError) as caught:
        read_record(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_recorded_checksum_is_of_the_bytes_that_were_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    known = fingerprint(path)
    check_unchanged(path, known)
    path.chmod(0o600)
    check_unchanged(path, known)  # other rights, the same bytes
    status = path.stat()
    path.write_text("x\n2\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputError, match="must not change while it is read"):
        check_unchanged(path, known)


def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        pd.DataFrame(rng.normal(size=(12, 3))).to_csv(tmp_path / f"{name}.csv", index=False)
    read = inputs.open_tables

    def changing(*arguments, **options):
        (tmp_path / "b.csv").write_text("x,y\n1,2\n2,1\n3,5\n")
        return read(*arguments, **options)

    monkeypatch.setattr("keyless.cli.link.open_tables", changing)
    out = tmp_path / "run"
    assert _run(["link", str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--out", str(out), "--max-time", "1"]) == 2
    assert "must not change while it is read" in capsys.readouterr().err
    assert not out.exists()


def write_database(path):
    """Write a database as one that several programs use at once: SQLite then keeps two files beside it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE one (a, b)")
    connection.executemany("INSERT INTO one VALUES (?, ?)", [(k * 1.5, k % 3) for k in range(20)])
    connection.commit()
    return connection


def test_nothing_is_left_beside_a_database(tmp_path):
    write_database(tmp_path / "t.db").close()
    assert [path.name for path in tmp_path.iterdir()] == ["t.db"]
    assert read_table(tmp_path / "t.db", name="t").block.shape == (20, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["t.db"]


def test_what_another_program_wrote_to_a_database_is_read(tmp_path):
    # The rows are in the file beside, as long as the other program has the database open.
    connection = write_database(tmp_path / "t.db")
    try:
        assert (tmp_path / "t.db-wal").stat().st_size
        assert read_table(tmp_path / "t.db", name="t").block.shape == (20, 2)
    finally:
        connection.close()


@pytest.mark.slow
def test_a_stage_that_does_not_fit_says_how_to_go_on(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        pd.DataFrame(rng.normal(size=(30, 4))).to_csv(tmp_path / f"{name}.csv", index=False)
    words = ["link", str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--out", str(tmp_path / "run")]
    kept = []

    def kill(stage, *_):
        kept.append(stage)

    with pytest.MonkeyPatch.context() as patch:
        # Ends after the search, before anything is written, as a kill would.
        patch.setattr("keyless.runs.write_run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr("keyless.runs.Unfinished.keep", kill)
        assert _run(words) == 130
    stages = list((tmp_path / "run.unfinished" / "checkpoint").iterdir())
    assert stages
    for path in stages:
        write_archive(path, {"stage": {"tuple": [1, 2]}}, {})
    assert _run([*words, "--resume"]) == 2
    said = capsys.readouterr().err
    assert "these do not fit together" in said
    assert "Leave --resume out to start from the beginning." in said
    assert "mistake in keyless" not in said
