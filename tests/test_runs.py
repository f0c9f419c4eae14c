"""The folder of a run: whole or not at all, exact, safe, and enough to make everything again."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyless
from keyless import runs
from keyless.datasets import make_shuffled_tables
from keyless.errors import InputError, KeylessError
from keyless.runs import folder as folders
from keyless.runs.resuming import open_unfinished

EXPECTED = {
    "matches.csv",
    "joined.csv",
    "joined.parquet",
    "completed/clinic.csv",
    "completed/clinic.filled.csv",
    "completed/lab.csv",
    "completed/lab.filled.csv",
    "report.html",
    "run.json",
    "config.toml",
    "links.keyless",
}


NOTES = [*(f"=1+{i // 2}" for i in range(38)), 'a,"b"\n', 'a,"b"\n']
"""Text that is not used, and that a spreadsheet would run, or a careless reader split."""


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    made = make_shuffled_tables(40, (20, 15), rank=3, observed=0.95, random_state=0)
    clinic = pd.DataFrame(made.tables["reference"]).add_prefix("c").set_axis([f"{i:03}" for i in range(40)], axis=0)
    lab = pd.DataFrame(made.tables["table1"]).add_prefix("l").assign(note=NOTES)
    return {"clinic": clinic, "lab": lab}


@pytest.fixture(scope="module")
def links(frames) -> keyless.Links:
    return keyless.link(frames, random_state=0)


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_the_folder_holds_what_it_should(links, tmp_path):
    runs.write_run(links, tmp_path / "run", configuration="seed = 0\n", timings={"starts": 1.5}, warnings=["careful"])
    assert folders.files_in(tmp_path / "run") == EXPECTED
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert set(record["files"]) == EXPECTED
    assert record["verdict"] == links.evidence.verdict
    assert record["seed"] == 0
    assert record["timings"] == {"starts": 1.5}
    assert record["warnings"] == ["careful"]
    assert record["versions"]["numpy"] == np.__version__
    assert record["evidence"]["lab"]["null_scores"] == list(links.evidence.null_scores)
    assert record["choices"]["route"] == links.choices["route"]
    assert str(tmp_path) not in json.dumps(record)


def test_ids_are_text_exactly_as_given(links, tmp_path):
    runs.write_run(links, tmp_path / "run")
    header, *rows = rows_of(tmp_path / "run" / "matches.csv")
    assert header == ["reference_id", "table", "row_id", "probability", "margin"]
    assert [row[0] for row in rows] == [f"{i:03}" for i in range(40)]
    assert [row[2] for row in rows] == [str(row) for row in links.permutations["lab"]]
    np.testing.assert_array_equal([float(row[3]) for row in rows], links.found["lab"].probability)
    assert "\n".join(",".join(row) for row in [header, *rows]) + "\n" == runs.matches_text(links)


def test_a_row_without_partner_has_an_empty_id(links, tmp_path):
    found = links.found["lab"]
    permutation = found.permutation.copy()
    permutation[3] = -1
    alone = replace(links, found={"lab": replace(found, permutation=permutation)})
    runs.write_run(alone, tmp_path / "run")
    assert rows_of(tmp_path / "run" / "matches.csv")[4][2] == ""
    header, *marks = rows_of(tmp_path / "run" / "completed" / "lab.filled.csv")
    assert header[-1] == "note"
    assert set(marks[3][1:-1]) == {"1"}, "every number of a row without partner is filled"
    assert marks[3][-1] == "0", "text is not"


def read_exactly(path):
    """Read numbers to the last bit: pandas 2 rounds them unless told otherwise, in a way that pandas 3 warns about."""
    options = pyarrow.csv.ConvertOptions(column_types={"reference_id": pyarrow.string()}, strings_can_be_null=True)
    return pyarrow.csv.read_csv(path, convert_options=options).to_pandas()


@pytest.mark.slow
def test_completed_tables_say_what_was_filled(links, frames, tmp_path):
    runs.write_run(links, tmp_path / "run")
    for name, frame in frames.items():
        completed = read_exactly(tmp_path / "run" / "completed" / f"{name}.csv")
        filled = pd.read_csv(tmp_path / "run" / "completed" / f"{name}.filled.csv", dtype={"reference_id": str})
        rows = np.arange(40) if name == "clinic" else links.permutations[name]
        as_given = frame.iloc[rows].reset_index(drop=True)
        assert completed["reference_id"].tolist() == filled["reference_id"].tolist() == list(frames["clinic"].index)
        np.testing.assert_array_equal(filled.drop(columns="reference_id").to_numpy(), as_given.isna().to_numpy())
        numbers = as_given.select_dtypes("number").columns
        kept = as_given[numbers].notna().to_numpy()
        np.testing.assert_array_equal(completed[numbers].to_numpy()[kept], as_given[numbers].to_numpy()[kept])
        assert completed[numbers].notna().all(axis=None)


@pytest.mark.slow
def test_joined_is_the_same_in_both_formats(links, tmp_path):
    runs.write_run(links, tmp_path / "run")
    from_csv = read_exactly(tmp_path / "run" / "joined.csv")
    assert set(from_csv["note"]) == {f"'{note}" if note[0] == "=" else note for note in NOTES}
    from_csv["note"] = from_csv["note"].str.removeprefix("'")
    from_parquet = pd.read_parquet(tmp_path / "run" / "joined.parquet")
    assert list(from_csv.columns) == list(from_parquet.columns) == ["reference_id", *links.joined().columns]
    pd.testing.assert_frame_equal(from_csv, from_parquet, check_dtype=False, check_exact=True)


@pytest.mark.slow
def test_everything_can_be_made_again_from_the_saved_result(links, tmp_path):
    runs.write_run(links, tmp_path / "one", configuration="x = 1\n")
    again = runs.read_run(tmp_path / "one")
    runs.write_run(again.links, tmp_path / "two", configuration="x = 1\n")
    for name in EXPECTED - {"links.keyless", "joined.parquet"}:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "one" / "joined.parquet"), pd.read_parquet(tmp_path / "two" / "joined.parquet")
    )


@pytest.mark.slow
def test_arrays_and_columns_called_like_ours(linked_by_hand, tmp_path):
    tables, truth = make_shuffled_tables(40, (12, 10), rank=3, random_state=1)
    runs.write_run(linked_by_hand(tables, [truth["table1"]]), tmp_path / "arrays")
    assert rows_of(tmp_path / "arrays" / "completed" / "table1.csv")[0][1] == "table1_0"
    named = pd.DataFrame(tables["reference"]).add_prefix("c").rename(columns={"c0": "reference_id"})
    runs.write_run(linked_by_hand({"a": named, "b": tables["table1"]}, [truth["table1"]]), tmp_path / "named")
    assert rows_of(tmp_path / "named" / "joined.csv")[0][:2] == ["_reference_id", "reference_id"]


@pytest.mark.slow
def test_text_is_safe_by_default_and_exact_when_asked(links, tmp_path):
    runs.write_run(links, tmp_path / "exact", raw_cells=True)
    runs.write_run(links, tmp_path / "safe")
    for name, entries in (("exact", set(NOTES)), ("safe", {f"'{n}" if n[0] == "=" else n for n in NOTES})):
        assert {row[-1] for row in rows_of(tmp_path / name / "completed" / "lab.csv")[1:]} == entries
        assert {row[-1] for row in rows_of(tmp_path / name / "joined.csv")[1:]} == entries
    exact, safe = (pd.read_csv(tmp_path / name / "joined.csv") for name in ("exact", "safe"))
    pd.testing.assert_frame_equal(exact.drop(columns="note"), safe.drop(columns="note"))


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        ("=SUM(A1)", "'=SUM(A1)"),
        ("+1 555", "'+1 555"),
        ("-a", "'-a"),
        ("@x", "'@x"),
        ("\tx", "'\tx"),
        ("\rx", "'\rx"),
        ("-1_0", "'-1_0"),
        (" =1", "' =1"),
        ("\u00a0=1", "'\u00a0=1"),
        ("\u200b=1", "'\u200b=1"),
        ("\ufeff@x", "'\ufeff@x"),
        ("\u2060\u200e -a", "'\u2060\u200e -a"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\uff0b1+1", "'\uff0b1+1"),
        ("\uff0d1+1", "'\uff0d1+1"),
        ("\uff20x", "'\uff20x"),
        ("\n=1", "'\n=1"),
        ("-2+cmd|'/C calc'!A0", "'-2+cmd|'/C calc'!A0"),
        ("-1 SUM(A1)", "'-1 SUM(A1)"),
        ("-3,5", "-3,5"),
        ("-1.234,50 €", "-1.234,50 €"),
        ("-10 010", "-10 010"),
        ("-5 °C", "-5 °C"),
        ("-12 %", "-12 %"),
        ("-", "-"),
        ("++", "++"),
        ("-3", "-3"),
        ("+2.5e-3", "+2.5e-3"),
        ("-inf", "-inf"),
        ("plain = text", "plain = text"),
        ("", ""),
        (-3.5, -3.5),
        (None, None),
    ],
)
def test_spreadsheet_safe_cells(cell, safe):
    assert runs.spreadsheet_safe(cell) == safe


def test_spreadsheet_safe_column_names_and_categories():
    frame = pd.DataFrame({"=a": pd.Categorical(["-b", "c"]), "n": [-1, 2]})
    safe = runs.spreadsheet_safe_frame(frame)
    assert list(safe.columns) == ["'=a", "n"]
    assert safe.to_numpy().tolist() == [["'-b", -1], ["c", 2]]
    assert list(frame.columns) == ["=a", "n"], "the frame given is left alone"


@given(st.lists(st.text(min_size=0, max_size=300), unique=True, max_size=6))
def test_file_names_stay_in_the_folder_and_differ(names):
    found = runs.file_names(names)
    assert list(found) == names
    files = [f"{safe}{end}".casefold() for safe in found.values() for end in (".csv", ".filled.csv")]
    assert len(set(files)) == len(files)
    for safe in found.values():
        assert safe
        assert Path(safe).name == safe
        assert not set(safe) & set('/\\:*?"<>|\0\n\r\t')
        assert not safe.startswith((".", "-"))
        assert len(safe.encode()) <= 100


@pytest.mark.parametrize(
    "name",
    [
        "../lab",
        "two\nlines",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("..", "a/b", 'say "hi"', "🧪 lab", "con", "", "a.filled")
        ),
    ],
)
def test_awkward_table_names(links, tmp_path, name):
    tables = (links.tables[0], replace(links.tables[1], block=replace(links.tables[1].block, name=name)))
    odd = replace(links, tables=tables, found={name: links.found["lab"]})
    runs.write_run(odd, tmp_path / "deep" / "run" if (tmp_path / "deep").mkdir() is None else tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["run"]
    record = json.loads((tmp_path / "deep" / "run" / "run.json").read_text(encoding="utf-8"))
    assert (tmp_path / "deep" / "run" / record["tables"][name]["completed"]).is_file()
    assert {row[1] for row in rows_of(tmp_path / "deep" / "run" / "matches.csv")[1:]} == {name}


def test_an_earlier_run_is_replaced_and_nothing_else(links, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    runs.write_run(links, run)  # an empty folder is fine
    runs.write_run(links, run, warnings=["second"])
    assert runs.read_run(run).record["warnings"] == ["second"]
    (run / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"keyless did not write notes\.txt"):
        runs.write_run(links, run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    other = tmp_path / "thesis"
    other.mkdir()
    for name in "abcd":
        (other / f"{name}.txt").write_text(name)
    with pytest.raises(InputError, match=r"found a\.txt, b\.txt, c\.txt and 1 more"):
        runs.write_run(links, other)
    with pytest.raises(InputError, match="found a file"):
        runs.write_run(links, other / "a.txt")
    with pytest.raises(InputError, match="there is no"):
        runs.write_run(links, tmp_path / "no" / "run")
    assert len(list(other.iterdir())) == 4


@pytest.mark.slow
def test_a_link_to_a_folder_stays_one(links, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to("real")
    runs.write_run(links, tmp_path / "run")
    assert (tmp_path / "run").is_symlink()
    assert (tmp_path / "real" / "run.json").is_file()


@pytest.mark.parametrize(
    "record", ["", "[]", '{"format": "else"}', '{"format": "keyless run", "files": [], "version": 9}']
)
def test_a_damaged_record_is_no_run(tmp_path, record):
    (tmp_path / "run.json").write_text(record)
    with pytest.raises(InputError, match=r"run\.json: must be"):
        runs.read_run(tmp_path)
    with pytest.raises(InputError, match=r"run\.json: must be"):
        runs.check_replaceable(tmp_path)


def test_reading_what_is_no_run(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        runs.read_run(tmp_path / "none")
    with pytest.raises(InputError, match=r"it has no run\.json"):
        runs.read_run(tmp_path)


@pytest.mark.slow
def test_trouble_while_writing_leaves_the_old_run(links, tmp_path, monkeypatch):
    runs.write_run(links, tmp_path / "run", warnings=["old"])
    monkeypatch.setattr(runs.outputs, "_record", lambda *_args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runs.write_run(links, tmp_path / "run", warnings=["new"])
    assert runs.read_run(tmp_path / "run").record["warnings"] == ["old"]
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


KILLED = """
import os, sys
from pathlib import Path
from keyless.runs import folder

exchange = sys.argv[2] == "exchange"
target = Path(sys.argv[1]) / "run"
files = {"run.json", "joined.csv", "completed/b.csv"}

def fill(fresh, what):
    (fresh / "completed").mkdir()
    for name in ("joined.csv", "completed/b.csv"):
        (fresh / name).write_text(what)
    (fresh / "run.json").write_text('{"format": "keyless run", "version": 1, "files": %s, "what": "%s"}' % (
        str(sorted(files)).replace("'", '"'), what))

def content():
    folder.recover(target)
    return {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}

calls = 0
def dying(step, real):
    def called(*args, **kwargs):
        global calls
        calls += 1
        if calls == step:
            os._exit(9)
        done = real(*args, **kwargs)
        return done
    return called

if not exchange:
    folder._exchange = lambda *_: False
seen, step, before = set(), 0, content()
while True:
    step += 1
    child = os.fork()
    if not child:
        calls = 0
        os.fsync, os.rename, os.mkdir = (dying(step, real) for real in (os.fsync, os.rename, os.mkdir))
        folder._exchange = dying(step, folder._exchange)
        folder.replace_folder(target, lambda fresh: fill(fresh, f"step {step}"))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    after = content()
    new = set(after) == files and after["joined.csv"] == after["completed/b.csv"] == f"step {step}"
    assert after == before or new, after
    seen.add(after == before)
    before = after
    if code == 0:
        break
assert step > 5, step
assert [p.name for p in Path(sys.argv[1]).iterdir()] == ["run"]
print(step, seen)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("way", ["exchange", pytest.param("two renames", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_kill_at_any_step_leaves_the_old_or_the_new(tmp_path, way):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), way], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_one_file_is_written_whole_or_not_at_all(tmp_path):
    page = tmp_path / "page.html"
    runs.write_file(page, lambda path: path.write_text("one"))

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        runs.write_file(page, fail)
    assert page.read_text() == "one"
    assert list(tmp_path.iterdir()) == [page]
    with pytest.raises(InputError, match="found a folder"):
        runs.write_file(tmp_path, fail)
    with pytest.raises(InputError, match="there is no"):
        runs.write_file(tmp_path / "no" / "page.html", fail)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z-]*", fullmatch=True),
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False)
        | st.text()
        | st.lists(st.text()),
    )
)
def test_configurations_read_back_as_they_were(options):
    text = runs.to_toml(options, title="title")
    assert tomllib.loads(text) == {name: value for name, value in options.items() if value is not None}


def test_configurations_hold_plain_values_only():
    with pytest.raises(InputError, match="seed: must be text"):
        runs.to_toml({"seed": object()}, title="title")


def test_fingerprints_know_content(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("x\n1\n")
    (tmp_path / "c.csv").write_text("x\n2\n")
    one, two, other = (runs.fingerprint(tmp_path / f"{name}.csv") for name in "abc")
    assert one.same_content(two)
    assert not one.same_content(other)
    assert (one.file, one.size) == ("a.csv", 4)


class TestUnfinished:
    OPTIONS = {"seed": 0, "within": ["site"]}  # noqa: RUF012

    def open(self, out, *, resume=False, **changes):
        given = {"configuration": "seed = 0\n", "options": self.OPTIONS, "inputs": [self.known], "resume": resume}
        return open_unfinished(out, **(given | changes))

    @pytest.fixture(autouse=True)
    def table(self, tmp_path):
        self.path = tmp_path / "clinic.csv"
        self.path.write_text("x\n1\n")
        self.known = runs.fingerprint(self.path)

    @pytest.fixture
    def killed(self, tmp_path):
        """A run that finished one stage and was killed."""
        with self.open(tmp_path / "run") as unfinished:
            (unfinished.checkpoint / "stage").write_text("done")
        assert (tmp_path / "run.unfinished" / "config.toml").read_text() == "seed = 0\n"
        return tmp_path / "run"

    def test_it_is_resumed(self, killed):
        with self.open(killed, resume=True) as unfinished:
            assert unfinished.resumed
            assert (unfinished.checkpoint / "stage").read_text() == "done"
            unfinished.remove()
        assert not (killed.parent / "run.unfinished").exists()

    def test_answers_of_a_review_stay_in_a_run_that_goes_on_and_nowhere_else(self, killed, clinic_lab_and_watch):
        """The best so far of a stopped run was written and reviewed; then the run goes on."""
        runs.write_run(clinic_lab_and_watch, killed)
        (killed / "pairs.csv").write_text("reference_id,row_id\na,b\n")
        with pytest.raises(InputError, match=r"must have no answers of a review to be replaced; .* pairs\.csv"):
            self.open(killed).__enter__()
        with self.open(killed, resume=True) as unfinished:
            assert unfinished.resumed
            runs.write_run(clinic_lab_and_watch, killed, command="the end", answers=True)
            unfinished.remove()
        assert (killed / "pairs.csv").read_text() == "reference_id,row_id\na,b\n"
        assert runs.read_run(killed).record["command"] == "the end"
        # Nothing is left to go on with: the answers would be lost.
        with pytest.raises(InputError, match=r"Choose another --out, or move that file away\.$"):
            self.open(killed, resume=True).__enter__()
        with pytest.raises(InputError, match="must have no answers"):
            runs.write_run(clinic_lab_and_watch, killed)
        assert (killed / "pairs.csv").exists()

    def test_answers_that_are_a_link_are_not_followed(self, killed, clinic_lab_and_watch, tmp_path):
        runs.write_run(clinic_lab_and_watch, killed)
        (killed / "pairs.csv").symlink_to(tmp_path / "clinic.csv")
        with pytest.raises(InputError, match=r"pairs\.csv"):
            self.open(killed, resume=True).__enter__()

    def test_without_resume_it_starts_afresh(self, killed):
        with self.open(killed) as unfinished:
            assert not unfinished.resumed
            assert list(unfinished.checkpoint.iterdir()) == []

    def test_an_earlier_run_is_kept_until_a_stage_is_finished(self, killed):
        stage = killed.parent / "run.unfinished" / "checkpoint" / "stage"
        for _ in range(2):
            with self.open(killed) as unfinished:
                assert unfinished.could_resume
                assert not stage.exists()
            assert stage.read_text() == "done", "a run that finished nothing loses nothing"
        with self.open(killed, options={"seed": 1}) as unfinished:
            assert not unfinished.could_resume, "other options cannot be resumed"

    def test_a_kill_before_the_first_stage_loses_nothing(self, killed):
        folder = killed.parent / "run.unfinished"
        opened = self.open(killed)
        opened.__enter__()
        shutil.copytree(folder, killed.parent / "as killed")
        opened.__exit__(None, None, None)
        shutil.rmtree(folder)
        (killed.parent / "as killed").rename(folder)
        with self.open(killed, resume=True) as unfinished:
            assert unfinished.resumed
            assert (unfinished.checkpoint / "stage").read_text() == "done"

    def test_a_stage_of_its_own_takes_the_place_of_the_earlier(self, killed):
        with self.open(killed) as unfinished:
            (unfinished.checkpoint / "other").write_text("new")
        folder = killed.parent / "run.unfinished"
        assert [path.name for path in (folder / "checkpoint").iterdir()] == ["other"]
        assert not (folder / "earlier").exists()

    def test_nothing_is_left_where_no_stage_was_finished(self, tmp_path):
        def fail():
            with self.open(tmp_path / "run", resume=True) as unfinished:
                assert not unfinished.resumed
                raise InputError("bad column")

        with pytest.raises(InputError, match="bad column"):
            fail()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["clinic.csv"]

    def test_other_options_are_refused(self, killed):
        with (
            pytest.raises(InputError, match=r"--seed: must be what it was when the run began, 0; found 1"),
            self.open(killed, resume=True, options={"seed": 1, "within": ["site"]}),
        ):
            pass
        with self.open(killed, resume=True) as unfinished:
            assert unfinished.resumed, "a refusal loses nothing"

    def test_other_content_is_refused_and_another_time_is_not(self, killed):
        os.utime(self.path, ns=(1, 1))
        with self.open(killed, resume=True, inputs=[runs.fingerprint(self.path)]) as unfinished:
            assert unfinished.resumed
        self.path.write_text("x\n2\n")
        with (
            pytest.raises(InputError, match=r"clinic\.csv: must hold what it held when the run began"),
            self.open(killed, resume=True, inputs=[runs.fingerprint(self.path)]),
        ):
            pass

    def test_another_version_is_refused(self, killed, monkeypatch):
        monkeypatch.setattr(keyless, "__version__", "99")
        with pytest.raises(InputError, match="this is 99"), self.open(killed, resume=True):
            pass

    def test_two_runs_at_a_time_are_refused(self, killed):
        pytest.importorskip("fcntl")
        with (
            self.open(killed, resume=True),
            pytest.raises(KeylessError, match="another run is working"),
            self.open(killed),
        ):
            pass
        assert (killed.parent / "run.unfinished" / "checkpoint" / "stage").is_file()

    def test_a_folder_of_that_name_that_is_not_ours(self, tmp_path):
        (tmp_path / "run.unfinished").mkdir()
        (tmp_path / "run.unfinished" / "novel.txt").write_text("mine")
        with pytest.raises(InputError, match="found files that keyless did not write"), self.open(tmp_path / "run"):
            pass
        assert (tmp_path / "run.unfinished" / "novel.txt").read_text() == "mine"

    @pytest.mark.parametrize("state", ["", "[]", "{"])
    def test_a_damaged_state_starts_afresh(self, killed, state):
        (killed.parent / "run.unfinished" / "state.json").write_text(state)
        with self.open(killed, resume=True) as unfinished:
            assert not unfinished.resumed
