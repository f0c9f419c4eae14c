"""The commands on files: what they write, how they end, and that bad input loses nothing."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest

import keyless
from keyless import cli, linker, runs
from keyless.datasets import make_shuffled_tables

NAMES = ("clinic", "lab")


def write_tables(folder: Path, *, seed: int = 0, noise: float = 0.1) -> None:
    made = make_shuffled_tables(40, (20, 15), rank=3, observed=0.95, noise=noise, random_state=seed)
    for name, table, letter in zip(NAMES, made.tables.values(), "cl", strict=True):
        frame = pd.DataFrame(table).add_prefix(letter)
        frame.insert(0, "patient_id", [f"{letter}{i:03}" for i in range(40)])
        frame.to_csv(folder / f"{name}.csv", index=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with two tables and a finished run."""
    folder = tmp_path_factory.mktemp("made")
    write_tables(folder)
    done = child(folder, "link", "clinic.csv", "lab.csv", "--id", "patient_id", "--out", "run")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch) -> Path:
    """A copy of it, to work in."""
    shutil.copytree(made, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def child(folder: Path, *arguments: str, before: str = "", given: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    code = f"{before}\nfrom keyless.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=folder, input=given
    )


def exit_code(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    return caught.value.code


def refused(capsys, *arguments: object) -> str:
    """Check that a command is refused in one line, as wrong use; return the line."""
    assert exit_code(*map(str, arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("keyless: ")
    assert err.count("\n") == 1, err
    return err


def records(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def everything(folder: Path) -> dict[str, str]:
    """What a folder holds, to be compared."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- what is done ----------------------------------------------------------------------------------------------------


def test_link_writes_the_folder_and_tells_the_verdict(folder, capsys):
    assert exit_code("link", "clinic.csv", "lab.csv", "--id", "patient_id", "--out", "again") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "clinic and lab: linked" in err
    assert err.endswith("the results are in again.\n")
    assert not (folder / "again.unfinished").exists()
    one, two = everything(folder / "run"), everything(folder / "again")
    assert one.keys() == two.keys()
    changing = {"run.json", "config.toml", "links.keyless", "joined.parquet", "report.html"}
    assert {name: one[name] for name in one.keys() - changing} == {name: two[name] for name in two.keys() - changing}
    record = json.loads((folder / "again" / "run.json").read_text(encoding="utf-8"))
    assert {"reading", "search"} <= record["timings"].keys()
    assert [known["file"] for known in record["inputs"]] == ["clinic.csv", "lab.csv"]
    assert str(folder) not in json.dumps(record) + (folder / "again" / "config.toml").read_text()


def test_the_command_line_and_the_library_agree(made):
    """From frames of exact numbers, with the same seed."""
    frames = {name: pd.read_csv(made / f"{name}.csv", engine="pyarrow") for name in NAMES}
    links = keyless.link({name: frame.drop(columns="patient_id") for name, frame in frames.items()}, random_state=0)
    found = runs.read_run(made / "run").links
    np.testing.assert_array_equal(found.permutations["lab"], links.permutations["lab"])
    np.testing.assert_array_equal(found.found["lab"].probability, links.found["lab"].probability)
    np.testing.assert_array_equal(found.found["lab"].margin, links.found["lab"].margin)
    assert found.evidence == links.evidence
    matches = pd.read_csv(made / "run" / "matches.csv")
    ids = frames["lab"]["patient_id"].to_numpy()
    assert matches["row_id"].tolist() == ids[links.permutations["lab"]].tolist()
    assert matches["reference_id"].tolist() == frames["clinic"]["patient_id"].tolist()


def test_without_out_the_matches_go_to_stdout(folder, capsys):
    assert exit_code("link", "clinic.csv", "lab.csv", "--id", "patient_id") == 0
    out = capsys.readouterr().out
    assert out == (folder / "run" / "matches.csv").read_text(encoding="utf-8")
    assert sorted(path.name for path in folder.iterdir()) == ["clinic.csv", "lab.csv", "run"]


@pytest.mark.slow
def test_a_table_may_come_from_standard_input(made):
    done = child(made, "link", "clinic.csv", "-", given=(made / "lab.csv").read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stderr
    assert "clinic and stdin: linked" in done.stderr
    assert done.stdout == (made / "run" / "matches.csv").read_text(encoding="utf-8").replace(",lab,", ",stdin,")
    done = child(made, "link", "clinic.csv", "-", "--out", "new", "--resume")
    assert done.returncode == 2
    assert "--resume: must not come with standard input" in done.stderr


@pytest.mark.slow
def test_json_is_for_machines(folder, capsys):
    assert exit_code("link", "clinic.csv", "lab.csv", "--id", "patient_id", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "linked"
    rows = records(folder / "run" / "matches.csv")
    assert [(m["reference_id"], m["row_id"]) for m in said["matches"]] == [
        (row["reference_id"], row["row_id"]) for row in rows
    ]
    assert exit_code("link", "clinic.csv", "lab.csv", "--json", "--out", "other") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["out"] == "other"
    assert "matches" not in said


@pytest.mark.slow
def test_a_configuration_runs_the_same_again(folder, capsys):
    before = (folder / "run" / "matches.csv").read_bytes()
    assert exit_code("link", "--config", "run/config.toml") == 0
    assert (folder / "run" / "matches.csv").read_bytes() == before
    (folder / "mine.toml").write_text(
        'tables = ["clinic.csv", "lab.csv"]\nid = ["patient_id"]\nseed = 5\neffort = "quick"\n'
    )
    assert exit_code("link", "--config", "mine.toml", "--seed", "7", "--out", "run") == 0
    written = (folder / "run" / "config.toml").read_text(encoding="utf-8")
    assert "seed = 7\n" in written, "the command line wins"
    assert 'effort = "quick"\n' in written
    assert "# max-time is not set" in written
    assert runs.read_run("run").links.seed == 7
    assert exit_code("check", "--config", "run/config.toml") == 0, "options of link alone do no harm"
    capsys.readouterr()
    (folder / "mine.toml").write_text("sead = 5\n")
    assert "sead" in refused(capsys, "link", "--config", "mine.toml")
    (folder / "mine.toml").write_text("seed =\n")
    assert "mine.toml: must be a TOML file" in refused(capsys, "link", "--config", "mine.toml")


@pytest.mark.slow
def test_unrelated_tables_end_with_3(tmp_path, monkeypatch, capsys, rng):
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        frame = pd.DataFrame(rng.standard_normal((24, 6))).add_prefix(name)
        frame.to_csv(f"{name}.csv", index=False)
    assert exit_code("link", "clinic.csv", "lab.csv", "--out", "run") == 3
    err = capsys.readouterr().err
    assert "clinic and lab: unlinkable, no clearer than chance" in err
    assert "chance reaches" in err
    assert "--known-pairs pairs.csv" in err
    assert "expected right" not in err
    assert json.loads(Path("run/run.json").read_text())["verdict"] == "unlinkable"
    found = runs.read_run("run").links
    monkeypatch.setattr(linker, "link", lambda *_args, **_options: found)
    assert exit_code("check", "clinic.csv", "lab.csv") == 3
    assert "clinic and lab: unlinkable" in capsys.readouterr().out


@pytest.mark.slow
def test_check_says_it_in_words_and_json(folder, capsys):
    before = everything(folder)
    assert exit_code("check", "clinic.csv", "lab.csv", "--id", "patient_id") == 0
    out = capsys.readouterr().out
    links = runs.read_run("run").links
    evidence = links.evidence
    assert f"carry {evidence.score:.1f} nats a row (4.6 nats are odds of 100 to 1); chance reaches" in out
    assert f"chance reaches {max(evidence.null_scores):.1f}, and telling" in out
    assert f"telling 40 rows apart takes {evidence.needed:.1f}" in out
    right = links.found["lab"].expected_right
    told = f"{links.found['lab'].probability.sum():.0f} ({right.low:.0f} to {right.high:.0f}) of them expected right"
    assert f"40 rows are matched, {told}" in out
    assert f"{round(40 * evidence.sharpness)} of them can be told from all others" in out
    assert exit_code("check", "clinic.csv", "lab.csv", "--id", "patient_id", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["tables"]["lab"]["score"] == evidence.score
    assert everything(folder) == before


@pytest.mark.slow
def test_known_pairs_and_forbidden_pairs_come_from_files(folder, capsys):
    """A part of matches.csv will do, ids as text."""
    rows = (folder / "run" / "matches.csv").read_text(encoding="utf-8").splitlines()
    (folder / "known.csv").write_text("\n".join(rows[:6]) + "\n")
    _, _, wrong, *_ = rows[1].split(",")
    first = rows[2].split(",")[0]
    (folder / "wrong.csv").write_text(f"reference_id,row_id\n{first},{wrong}\n")
    arguments = ["--id", "patient_id", "--known-pairs", "known.csv", "--forbid", "wrong.csv", "--out", "run"]
    assert exit_code("link", "clinic.csv", "lab.csv", *arguments) == 0
    choices = runs.read_run("run").record["choices"]
    assert (choices["known_pairs"], choices["forbidden_pairs"]) == (5, 1)
    capsys.readouterr()
    (folder / "wrong.csv").write_text(f"reference_id,row_id\n{first},nobody\n")
    line = refused(capsys, "link", "clinic.csv", "lab.csv", *arguments)
    assert "--forbid: wrong.csv, line 2: must name rows that exist; lab has no row 'nobody'" in line
    (folder / "wrong.csv").write_text("a,b\n1,2\n")
    assert "must have the columns reference_id, row_id; found 'a', 'b'" in refused(
        capsys, "link", "clinic.csv", "lab.csv", *arguments
    )
    (folder / "wrong.csv").write_text("reference_id,table,row_id\nc000,moon,l000\n")
    assert "must name one of 'lab'; found 'moon'" in refused(capsys, "link", "clinic.csv", "lab.csv", *arguments)
    assert "there is no no.csv" in refused(capsys, "link", "clinic.csv", "lab.csv", "--known-pairs", "no.csv")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([], "auto"),
        (["--shared", "auto"], "auto"),
        (["--shared", "none"], None),
        (["--shared", "age", "--shared", "size"], ["age", "size"]),
        (["--shared", "age=AGE", "--shared", "size"], {"age": "AGE", "size": "size"}),
    ],
)
@pytest.mark.usefixtures("folder")
def test_every_option_reaches_the_engine(monkeypatch, given, taken):
    seen = {}

    def remember(_tables, **options):
        seen.update(options)
        raise keyless.InputError("enough")

    monkeypatch.setattr(linker, "link", remember)
    arguments = ["--within", "site", "--within", "sex", "--partners", "all", "--missingness", "--effort", "quick"]
    arguments += [
        "--seed",
        "3",
        "--repeats",
        "lab",
        "--max-time",
        "9.5",
        "--reference",
        "lab",
        "--device",
        "cpu",
        *given,
    ]
    assert exit_code("link", "clinic.csv", "lab.csv", *arguments) == 2
    assert seen.pop("callback") is not None
    expected = {
        "within": ["site", "sex"],
        "partners": "all",
        "effort": "quick",
        "repeats": "lab",
        "random_state": 3,
        "max_time": 9.5,
        "reference": "lab",
        "shared": taken,
        "known_pairs": None,
        "forbid": None,
    }
    assert {name: seen[name] for name in expected} == expected
    assert seen["reading"].missingness is True


def test_inspect_says_what_would_be_used(folder, capsys):
    (folder / "odd.csv").write_text("id,age,city\n1,30,Rome\n2,,Rome\n3,50,Rome\n4,51,Rome\n")
    assert exit_code("inspect", "clinic.csv", "odd.csv") == 0
    out = capsys.readouterr().out
    assert "clinic: 40 rows, 21 columns" in out
    assert "patient_id" in out
    assert "75.0% observed" in out
    assert "the same, 'Rome'" in out
    assert "Linking them would need about" in out
    assert exit_code("inspect", "odd.csv", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    kinds = {column["name"]: column["kind"] for column in said["tables"][0]["columns"]}
    assert kinds == {"id": "id", "age": "integer", "city": "left out"}
    assert said["memory_needed"] > 0


def test_inspect_obeys_the_reading_options(folder, capsys):
    (folder / "odd.csv").write_text("id,age,city\n1,30,Rome\n2,none,Rome\n3,50,Rome\n4,51,Oslo\n")
    assert "'none' is not a number" in refused(capsys, "inspect", "odd.csv")
    options = ["--missing", "none", "--as-category", "city", "--drop", "id"]
    assert exit_code("inspect", "odd.csv", "--json", *options) == 0
    said = json.loads(capsys.readouterr().out)["tables"][0]
    assert [(c["kind"], c["observed"]) for c in said["columns"]] == [
        ("left out", None),
        ("integer", 0.75),
        ("category", 1.0),
    ]


def test_fill_keeps_what_is_there_exactly(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    left, right = rng.standard_normal((30, 2)), rng.standard_normal((2, 8))
    cells = [[f"{value:+.3f}" for value in row] for row in left @ right]
    truth = np.array(cells, dtype=float)
    gaps = rng.random((30, 8)) < 0.15
    for i, j in zip(*np.nonzero(gaps), strict=True):
        cells[i][j] = ""
    with Path("ratings.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*(f"film {k}" for k in range(8)), "who"], *([*r, "=me"] for r in cells)])
    assert exit_code("fill", "ratings.csv") == 0
    out, err = capsys.readouterr()
    header, *rows = csv.reader(io.StringIO(out))
    assert header[-1] == "who"
    assert {row[-1] for row in rows} == {"'=me"}
    found = np.array([row[:-1] for row in rows])
    assert (found[~gaps] == np.array(cells)[~gaps]).all()
    assert np.abs(found[gaps].astype(float) - truth[gaps]).mean() < 0.1 * truth.std()
    assert f"filled {gaps.sum()} of 240 entries of 8 columns" in err
    assert exit_code("fill", "ratings.csv", "--out", "filled.csv") == 0
    assert Path("filled.csv").read_text(encoding="utf-8") == out
    assert exit_code("fill", "ratings.csv", "--out", "filled.parquet", "--rank", "2", "--penalty", "0.1") == 0
    assert pd.read_parquet("filled.parquet")["film 0"].dtype == np.float64
    capsys.readouterr()
    assert exit_code("fill", "ratings.csv", "--raw-cells") == 0
    assert capsys.readouterr().out == out.replace("'=me", "=me")
    assert exit_code("fill", "ratings.csv", "--out-format", "tsv") == 0
    assert capsys.readouterr().out == out.replace(",", "\t")
    assert exit_code("fill", "ratings.csv", "--out", "filled.xlsx") == 0
    sheet = openpyxl.load_workbook("filled.xlsx").active
    assert [float(row[0].value) for row in list(sheet.iter_rows())[1:]] == [float(row[0]) for row in rows]
    assert exit_code("fill", "filled.xlsx", "--out", "again.tsv") == 0
    assert Path("again.tsv").read_text(encoding="utf-8").startswith("film 0\tfilm 1\t")
    capsys.readouterr()
    assert "must end in .csv; found x.tsv" in refused(
        capsys, "fill", "ratings.csv", "--out", "x.tsv", "--out-format", "csv"
    )
    assert "must end in .csv or .tsv or .xlsx or .parquet" in refused(
        capsys, "fill", "ratings.csv", "--out", "filled.doc"
    )
    assert "must not be one of the input files" in refused(capsys, "fill", "ratings.csv", "--out", "ratings.csv")
    assert "--rank: must be at most 8" in refused(capsys, "fill", "ratings.csv", "--rank", "9")


def test_fill_on_a_table_without_gaps_changes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("whole.csv").write_text("a,b\n1.50,2\n3,4\n")
    assert exit_code("fill", "whole.csv") == 0
    assert capsys.readouterr().out == "a,b\n1.50,2\n3,4\n"


def test_report_comes_from_the_folder_alone(folder, capsys):
    for name in NAMES:
        (folder / f"{name}.csv").unlink()
    before = everything(folder / "run")
    (folder / "run" / "report.html").unlink()
    assert exit_code("report", "run") == 0
    assert everything(folder / "run") == before
    assert exit_code("report", "run", "--redact", "--out", "page.html") == 0
    assert (folder / "page.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert everything(folder / "run") == before
    capsys.readouterr()
    assert "no such folder" in refused(capsys, "report", "none")
    assert "it has no run.json" in refused(capsys, "report", ".")
    assert "there is no" in refused(capsys, "report", "run", "--out", "no/page.html")


@pytest.mark.slow
def test_the_report_can_go_elsewhere_too(folder):
    assert exit_code("link", "clinic.csv", "lab.csv", "--report", "page.html") == 0
    assert (folder / "page.html").is_file()


# --- bad input: one line, the right code, nothing lost ---------------------------------------------------------------


def test_files_that_are_no_tables(folder, capsys):
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b,c\n")
    (folder / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    (folder / "noise.parquet").write_bytes(b"nonsense")
    (folder / "noise.csv").write_bytes(bytes(range(256)))
    (folder / "folder.csv").mkdir()
    os.mkfifo(folder / "pipe.csv")
    for name in (
        "folder.csv",
        "pipe.csv",
        "missing.csv",
        "empty.csv",
        "header.csv",
        "photo.jpg",
        "noise.parquet",
        "noise.csv",
    ):
        before = everything(folder)
        line = refused(capsys, "link", "clinic.csv", name, "--out", "run")
        assert name.rpartition(".")[0] in line
        assert "must" in line
        assert everything(folder) == before, "the earlier run is still there"
        assert not (folder / "run.unfinished").exists()


@pytest.mark.usefixtures("folder")
def test_the_same_file_twice(capsys):
    assert "it is the same file" in refused(capsys, "link", "clinic.csv", "clinic.csv")
    assert "it is the same file" in refused(capsys, "link", "clinic.csv", "../work/clinic.csv")
    shutil.copy("clinic.csv", "copy.csv")
    assert "hold exactly the same" in refused(capsys, "check", "clinic.csv", "copy.csv")


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_shuffled_copies_are_told(capsys):
    frame = pd.read_csv("clinic.csv", dtype=str, keep_default_na=False)
    frame.sample(frac=1, random_state=0).to_csv("copy.csv", index=False)
    assert exit_code("link", "clinic.csv", "copy.csv", "--id", "patient_id", "--out", "run") == 0
    assert "warning: clinic and copy hold the same rows" in capsys.readouterr().err
    assert "hold the same rows" in runs.read_run("run").record["warnings"][0]
    matches = pd.read_csv("run/matches.csv")
    assert (matches["reference_id"] == matches["row_id"]).all()
    assert exit_code("check", "clinic.csv", "copy.csv", "--json") == 0
    assert "hold the same rows" in json.loads(capsys.readouterr().out)["warnings"][0]


def test_the_output_must_not_touch_the_input(folder, capsys):
    before = everything(folder)
    assert "must not be one of the input files" in refused(
        capsys, "link", "clinic.csv", "lab.csv", "--out", "clinic.csv"
    )
    assert "must not be the current folder" in refused(capsys, "link", "clinic.csv", "lab.csv", "--out", ".")
    inside = "run/completed/lab.csv"
    assert "since the folder is replaced" in refused(capsys, "link", "clinic.csv", inside, "--out", "run")
    assert "must not be inside an input" in refused(capsys, "link", "clinic.csv", "lab.csv", "--out", "clinic.csv/run")
    assert "must not be one of the input files" in refused(
        capsys, "link", "clinic.csv", "lab.csv", "--report", "lab.csv"
    )
    inside = ["--out", "run", "--report", "run/page.html"]
    assert "--report: must lie outside run" in refused(capsys, "link", "clinic.csv", "lab.csv", *inside)
    assert "there is no no." in refused(capsys, "link", "clinic.csv", "lab.csv", "--report", "no/page.html")
    assert everything(folder) == before


def test_a_folder_with_other_files_is_left_alone(folder, capsys):
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.txt").write_text("years of work")
    before = everything(folder)
    line = refused(capsys, "link", "clinic.csv", "lab.csv", "--out", "thesis")
    assert "must be empty or an earlier run; found chapter.txt" in line
    assert everything(folder) == before


@pytest.mark.parametrize(
    "name",
    [
        "two\nlines",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ('say "hi"', "🧪", ".hidden", "=cmd", "a'b;c", "nul")),
    ],
)
def test_awkward_file_names(made, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    shutil.copy(made / "clinic.csv", "clinic.csv")
    shutil.copy(made / "lab.csv", f"{name}.csv")
    assert exit_code("link", "clinic.csv", f"{name}.csv", "--out", "run") == 0, capsys.readouterr().err
    record = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
    (table,) = record["tables"].keys() - {"clinic"}
    assert Path("run", record["tables"][table]["completed"]).resolve().parent == Path("run/completed").resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["clinic.csv", f"{name}.csv", "run"])
    assert {row["table"] for row in records(Path("run/matches.csv"))} == {runs.spreadsheet_safe(table)}


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_formulas_are_made_safe_or_exact():
    frame = pd.read_csv("lab.csv", dtype=str, keep_default_na=False)
    frame["patient_id"] = "=" + frame["patient_id"]
    frame.to_csv("lab.csv", index=False)
    for arguments, sign in (([], "'="), (["--raw-cells"], "=")):
        assert exit_code("link", "clinic.csv", "lab.csv", "--id", "patient_id", "--out", "run", *arguments) == 0
        ids = pd.read_csv("run/matches.csv", dtype=str)["row_id"]
        assert ids.str.startswith(f"{sign}l").all()


UNPRIVILEGED = """
import os
import keyless.cli, keyless.runs, rich.progress  # where the packages are, perhaps only the superuser can read
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
"""


@pytest.fixture
def open_folder(made) -> Iterator[Path]:
    """A folder that everyone may write to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "work")
        shutil.copytree(made, folder)
        for path in (folder.parent, folder, *folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        yield folder


@pytest.mark.slow
def test_an_unreadable_file(open_folder):
    (open_folder / "lab.csv").chmod(0)
    done = child(open_folder, "link", "clinic.csv", "lab.csv", "--out", "new", before=UNPRIVILEGED)
    (open_folder / "lab.csv").chmod(0o600)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "keyless: lab.csv: Permission denied. Change its permissions, or choose another place.\n"
    assert not (open_folder / "new").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(open_folder):
    before = everything(open_folder)
    open_folder.chmod(0o555)
    try:
        done = child(open_folder, "link", "clinic.csv", "lab.csv", "--out", "new", before=UNPRIVILEGED)
    finally:
        open_folder.chmod(0o777)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Permission denied" in done.stderr
    assert done.stderr.count("\n") == 1, "told before the work, not after"
    assert everything(open_folder) == before


@pytest.mark.slow
def test_a_full_disk_keeps_the_old_run(folder):
    before = everything(folder)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))"
    done = child(folder, "link", "clinic.csv", "lab.csv", "--seed", "8", "--out", "run", before=limit)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the disk is full or a size limit was met" in done.stderr
    assert "Traceback" not in done.stderr
    assert {name: known for name, known in everything(folder).items() if not name.startswith("run.unf")} == before
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_what_cannot_be_written_is_not_lost(folder, capsys, monkeypatch):
    """A mistake of ours while writing: the result is kept, and `--resume` writes it without linking again."""
    arguments = ["link", "clinic.csv", "lab.csv", "--id", "patient_id", "--out", "new"]

    def fail(*_args, **_kwargs):
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(runs.outputs, "typed", fail)
        assert exit_code(*arguments) == 1
    assert "it is kept: the same command with --resume writes it" in capsys.readouterr().err
    assert not (folder / "new").exists()
    assert (folder / "new.unfinished" / "links.keyless").is_file()
    with monkeypatch.context() as patch:
        patch.setattr(linker, "link", fail)
        assert exit_code(*arguments, "--resume") == 0
    assert not (folder / "new.unfinished").exists()
    for name in ("matches.csv", "joined.csv", "completed/clinic.csv", "completed/lab.filled.csv"):
        assert (folder / "new" / name).read_bytes() == (folder / "run" / name).read_bytes()
    assert "continuing the unfinished run" in capsys.readouterr().err


# --- stopping and going on -------------------------------------------------------------------------------------------

SLOW = """
import sys, time
from keyless import linker
real = linker.link
def slow(tables, *, callback, **options):
    def told(*args):
        stop = callback(*args)
        sys.stderr.write("STEP\\n"); sys.stderr.flush()
        time.sleep(0.05)
        return stop
    while not callback("waiting", 1, 0, 0.0):
        sys.stderr.write("STEP\\n"); sys.stderr.flush()
        time.sleep(0.05)
    return real(tables, callback=told, **options)
linker.link = slow
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_saves_the_best_so_far(folder, number):
    arguments = ["link", "clinic.csv", "lab.csv", "--out", "new"]
    process = _started(folder, arguments)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping with the best so far (press Ctrl-C again to quit at once)" in err
    assert err.endswith("keyless: interrupted; the best so far is in new.\n")
    assert "time limit" not in err
    run = runs.read_run(folder / "new")
    assert run.links.permutations["lab"].shape == (40,)
    assert run.record["status"]["reason"] != "converged"


@pytest.mark.slow
def test_the_second_signal_quits_at_once(folder):
    before = everything(folder)
    process = _started(folder, ["link", "clinic.csv", "lab.csv", "--out", "run"], deaf=True)
    process.send_signal(signal.SIGINT)
    while "stopping" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("keyless: interrupted; nothing was saved.\n")
    assert "Traceback" not in err
    assert everything(folder) == before


@pytest.mark.slow
def test_quitting_at_once_tells_of_finished_stages(folder):
    """The second signal loses the result, not the stages in the folder of the unfinished run."""
    late = SLOW.replace('while not callback("waiting", 1, 0, 0.0)', "while False").replace(
        "stop = callback(*args)", 'callback(*args); stop = False; time.sleep(60 * (args[0] == "chance"))'
    )
    process = _started(folder, ["link", "clinic.csv", "lab.csv", "--out", "new"], slow=late, wait="chance reaches")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith(
        "keyless: interrupted; no result was saved, but the finished stages are kept: the same command with --resume "
        "goes on from the last finished stage.\n"
    )
    assert not (folder / "new").exists()
    assert exit_code("link", "clinic.csv", "lab.csv", "--out", "new", "--resume") == 0


def _started(
    folder: Path, arguments: list[str], *, deaf: bool = False, slow: str = SLOW, wait: str = "STEP"
) -> subprocess.Popen[str]:
    """Start a run that waits for a signal, or one that would not hear it, and wait until it works."""
    slow = slow.replace("while not callback(", "while callback(") if deaf else slow
    slow = slow.replace('while callback("waiting", 1, 0, 0.0):', 'while callback("waiting", 1, 0, 0.0) is not None:')
    code = f"{slow}\nfrom keyless.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while wait not in (line := process.stderr.readline()):
        assert line, "ended before it began"
    return process


KILLED = """
import os
from keyless.cli.progress import Watch
def killed(self, stage, *_):
    if stage == "chance":
        os._exit(9)
Watch.__call__ = killed
"""


STOPPED = """
from keyless.cli.progress import Watch
def stopped(self, stage, *_):
    self.interrupted = self.interrupted or stage == "chance"
    return self.interrupted
Watch.__call__ = stopped
"""


@pytest.mark.soak
def test_a_stopped_run_that_was_reviewed_goes_on_and_keeps_the_answers(folder, capsys):
    arguments = ["link", "clinic.csv", "lab.csv", "--id", "patient_id", "--out", "new"]
    stopped = child(folder, *arguments, before=STOPPED)
    assert stopped.returncode == 130, stopped.stderr
    assert "with --resume goes on" in stopped.stderr
    (folder / "new" / "pairs.csv").write_text("reference_id,row_id\n")
    assert "must have no answers of a review" in refused(capsys, *arguments)
    done = child(folder, *arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert "continuing the unfinished run" in done.stderr
    assert (folder / "new" / "pairs.csv").exists()
    assert not (folder / "new.unfinished").exists()
    np.testing.assert_array_equal(
        runs.read_run(folder / "new").links.permutations["lab"], runs.read_run(folder / "run").links.permutations["lab"]
    )


@pytest.mark.slow
def test_a_killed_run_is_resumed(folder, capsys):
    """It gives what an unbroken run gives, and does not repeat the stages that were finished."""
    arguments = ["link", "clinic.csv", "lab.csv", "--id", "patient_id", "--out", "new"]
    assert child(folder, *arguments, before=KILLED).returncode == 9
    assert not (folder / "new").exists()
    assert any((folder / "new.unfinished" / "checkpoint").iterdir())
    again = child(folder, *arguments, before=KILLED.replace('"chance"', '"search"'))
    assert "keyless: an earlier run of this command was not finished." in again.stderr
    assert "Its finished stages are in new.unfinished, and --resume continues from them." in again.stderr
    line = refused(capsys, *arguments, "--resume", "--seed", "1")
    assert "--seed: must be what it was when the run began, 0; found 1" in line
    before = (folder / "clinic.csv").read_bytes()
    (folder / "clinic.csv").write_bytes(before.replace(b"1", b"2"))
    assert "clinic.csv: must hold what it held when the run began" in refused(capsys, *arguments, "--resume")
    (folder / "clinic.csv").write_bytes(before)
    assert exit_code(*arguments, "--resume") == 0
    assert "continuing the unfinished run" in capsys.readouterr().err
    assert (folder / "new" / "matches.csv").read_bytes() == (folder / "run" / "matches.csv").read_bytes()
    assert "search" not in runs.read_run(folder / "new").record["timings"]
    assert not (folder / "new.unfinished").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_resuming_nothing_starts_and_says_so(capsys):
    assert exit_code("link", "clinic.csv", "lab.csv", "--out", "new", "--resume") == 0
    assert "there is no unfinished run to resume; starting from the beginning" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_progress_is_plain_lines_where_there_is_no_terminal(capsys):
    assert exit_code("check", "clinic.csv", "lab.csv") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if ", step " in line]
    assert lines
    assert all(line.startswith("keyless: ") and "\x1b" not in line for line in lines)


@pytest.mark.soak
@pytest.mark.usefixtures("folder")
def test_each_table_may_have_an_id_of_its_own(capsys):
    for name, letter in zip(NAMES, "cl", strict=True):
        frame = pd.read_csv(f"{name}.csv").rename(columns={"patient_id": f"{name}_number"})
        frame[f"{name}_number"] = np.arange(40) + (100 if letter == "c" else 500)
        frame.to_csv(f"{name}.csv", index=False)
    ids = ["--id", "clinic_number", "--id", "lab:lab_number"]
    assert exit_code("inspect", "clinic.csv", "lab.csv", "--json", *ids) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert [table["named_by"] for table in tables] == ["clinic_number", "lab_number"]
    assert exit_code("link", "clinic.csv", "lab.csv", *ids, "--out", "new") == 0
    matches = pd.read_csv("new/matches.csv")
    assert sorted(matches.reference_id) == list(range(100, 140))
    assert sorted(matches.row_id) == list(range(500, 540))
    assert exit_code("link", "--config", "new/config.toml", "--out", "again") == 0
    assert Path("again/matches.csv").read_bytes() == Path("new/matches.csv").read_bytes()
    command = "keyless link clinic.csv lab.csv --id=clinic_number --id=lab:lab_number --out="
    assert runs.read_run("again").record["command"] == f"{command}again"
    assert f"{command}new" in Path("new/report.html").read_text(encoding="utf-8")
    assert exit_code("report", "new", "--out", "page.html") == 0
    assert Path("page.html").read_bytes() == Path("new/report.html").read_bytes()


@pytest.mark.slow
def test_options_of_the_engine_reach_it(folder, monkeypatch):
    seen = {}

    def link(tables, **options):
        seen.update(options)
        return real(tables, **options)

    real = linker.link
    monkeypatch.setattr(linker, "link", link)
    wanted = {"scales": "identity", "rank": 3, "effort": "quick"}
    words = [word for name, value in wanted.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert exit_code("link", "clinic.csv", "lab.csv", "--out", "new", *words) == 0
    assert {name: seen[name] for name in wanted} == wanted
    assert len(runs.read_run("new").record["evidence"]["lab"]["null_scores"]) == 1
    seen.clear()
    (folder / "options.toml").write_text('scales = "identity"\nrank = 3\neffort = "quick"\n')
    assert exit_code("check", "clinic.csv", "lab.csv", "--config", "options.toml") == 0
    assert {name: seen[name] for name in wanted} == wanted


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "arguments", [["--rank", "0"], ["--effort", "much"], ["--scales", "cube"], ["--partners", "0"]]
)
def test_options_of_the_engine_are_checked(capsys, arguments):
    assert arguments[0] in refused(capsys, "link", "clinic.csv", "lab.csv", *arguments)


@pytest.mark.usefixtures("folder")
def test_the_long_layout_keeps_the_names_of_its_rows(capsys):
    lines = [f"u{i:02},m{j},{i * j % 5 + 1}\n" for i in range(20) for j in range(6) if (i + j) % 4]
    Path("ratings.csv").write_text("user,movie,rating\n" + "".join(lines))
    assert exit_code("inspect", "ratings.csv", "--long") == 0
    assert "Rows are named by column 'user'." in capsys.readouterr().out
    assert exit_code("fill", "ratings.csv", "--long") == 0
    filled = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert filled.columns[0] == "user"
    assert sorted(filled["user"]) == [f"u{i:02}" for i in range(20)]


@pytest.mark.usefixtures("folder")
def test_places_are_checked_before_the_work(capsys, monkeypatch):
    monkeypatch.setattr(linker, "link", None)
    for arguments in (
        ["fill", "clinic.csv", "--out", "no/filled.csv"],
        ["demo", "--report", "no/page.html"],
        ["report", "run", "--out", "no/page.html"],
        ["link", "clinic.csv", "lab.csv", "--report", "no/page.html"],
    ):
        assert "must be in a folder that exists; there is no no. Make it first." in refused(capsys, *arguments)
    assert "--report: must not be one of the input files" in refused(
        capsys, "link", "clinic.csv", "lab.csv", "--report", "clinic.csv"
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_progress_is_a_bar_on_a_terminal(folder):
    import pty

    ours, theirs = pty.openpty()
    code = "from keyless.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", "clinic.csv", "lab.csv"],
        cwd=folder, stdout=subprocess.PIPE, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            seen += os.read(ours, 4096)
        except OSError:
            break  # the terminal's other end is closed
    os.close(ours)
    assert process.communicate()[0]
    assert process.returncode == 0
    text = seen.decode()
    assert "\x1b[" in text
    # How much time is left is drawn only where a stage lasts long enough; tests of the view itself see to that.
    assert "score" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shared", "height"], "keyless: --shared: must name numeric columns; clinic has no such column 'height'."),
        (["--repeats", "ward"], "keyless: --repeats: must be 'auto' or one of 'clinic', 'lab'; found 'ward'."),
        (["--reference", "ward"], "keyless: --reference: must be one of the tables, 'clinic', 'lab'; found 'ward'."),
    ],
)
@pytest.mark.usefixtures("folder")
def test_messages_of_the_library_name_options_as_the_command_line_has_them(capsys, arguments, said):
    assert refused(capsys, "link", "clinic.csv", "lab.csv", *arguments).strip() == said


@pytest.mark.usefixtures("folder")
def test_a_configuration_of_an_earlier_version_names_what_replaces_its_options(capsys):
    Path("old.toml").write_text('partners = "all"\nnull-searches = 3\n', encoding="utf-8")
    said = refused(capsys, "link", "clinic.csv", "lab.csv", "--config", "old.toml")
    assert "null-searches: is an option of earlier versions. Use --effort quick, normal or thorough." in said


def test_a_row_that_is_not_there_is_named_by_its_option(capsys, folder):
    said = refused(capsys, "explain", str(folder / "run"), "--row", "nobody")
    assert said.startswith("keyless: --row: must be the id of a row of clinic (")
