from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest

import keyless
from keyless import cli, datasets, linker, report

COMMANDS = ("demo", "link", "check", "explain", "fill", "inspect", "report", "ui", "reproduce")
HEAVY = ("numpy", "scipy", "sklearn", "torch", "pandas", "matplotlib", "array_api_compat", "joblib")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from keyless.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def exit_code(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return caught.value.code


def help_of(*command: str) -> str:
    done = run(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_installed_command_is_this_one():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="keyless")
    assert script.load() is cli.main


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, keyless.__version__, "")


def test_every_command_is_tested_here():
    assert {name for name in cli.app if not name.startswith("-")} == set(COMMANDS)


def test_warnings_are_one_line(monkeypatch, capsys):
    def warn(*_args, **_kwargs):
        warnings.warn("take care", UserWarning, stacklevel=1)
        raise keyless.InputError("enough")

    monkeypatch.setattr(datasets, "load_shuffled_tumours", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert exit_code("demo") == 2
    assert capsys.readouterr().err == "keyless: warning: take care\nkeyless: enough\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(arguments):
    code = f"""
import sys
from keyless.cli import main
try:
    main({arguments!r})
finally:
    sys.stderr.write(" ".join(name for name in {HEAVY!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_help_lists_every_command():
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", help_of())


def example_in(text: str) -> list[str]:
    (example,) = re.findall(r"^Example: (.+)$", text, flags=re.MULTILINE)
    program, *arguments = shlex.split(example)
    assert program == "keyless"
    return arguments


@pytest.mark.soak
@pytest.mark.parametrize("command", [(), ("demo",)])
def test_the_examples_about_the_bundled_tables_run(command):
    done = run(*example_in(help_of(*command)))
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.soak
def test_the_examples_about_files_run(tmp_path, monkeypatch, capsys):
    """In the order of the help, as one reader would type them: later ones use what earlier ones wrote."""
    made = datasets.make_shuffled_tables(40, (20, 15), rank=3, observed=0.95, random_state=0)
    pd.DataFrame(made.tables["reference"]).add_prefix("c").to_csv(tmp_path / "clinic.csv", index=False)
    pd.DataFrame(made.tables["table1"]).add_prefix("l").to_csv(tmp_path / "lab.csv", index=False)
    pd.DataFrame(made.tables["table1"]).add_prefix("film").to_csv(tmp_path / "ratings.csv", index=False)
    monkeypatch.chdir(tmp_path)
    for name in COMMANDS[1:]:
        assert exit_code(name, "--help") == 0
        arguments = example_in(capsys.readouterr().out)
        if name == "ui":
            continue  # it serves until Ctrl-C: tests/test_ui.py
        assert exit_code(*arguments) == 0, capsys.readouterr().err
        assert capsys.readouterr().out or "--out" in arguments
    assert {"run", "page.html"} <= {path.name for path in tmp_path.iterdir()}


def test_the_page_about_the_command_line_is_what_the_help_says():
    code = "import make_cli_page; assert make_cli_page.page() == make_cli_page.PAGE.read_text(encoding='utf-8')"
    folder = Path(__file__).parents[1] / "docs"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "run `python docs/make_cli_page.py`: " + done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "nonsense"),
        (["demo", "--nonsense"], "--nonsense"),
        (["demo", "--seed", "many"], "many"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "7"], "7"),
        (["link"], "at least two table files; found 0"),
        (["link", "one.csv"], "at least two table files; found 1"),
        (["check"], "at least two table files; found 0"),
        (["inspect"], "a table file; found 0"),
        (["fill"], "TABLE"),
        (["fill", "--nonsense"], "--nonsense: must be an option or a table file"),
        (["report"], "RUN"),
        (["link", "a.csv", "b.csv", "--jbos", "2"], "--jbos: must be an option or a table file"),
        (["link", "a.csv", "b.csv", "--rank", "0"], "--rank"),
        (["link", "a.csv", "b.csv", "--max-time", "0"], "--max-time"),
        (["link", "a.csv", "b.csv", "--effort", "magic"], "magic"),
        (["link", "a.csv", "b.csv", "--decimal", ";"], "--decimal"),
        (["link", "a.csv", "b.csv", "--device", "cuda"], "--device: 'cuda' needs"),
        (["check", "a.csv", "b.csv", "--device", "cuda"], "--device: 'cuda' needs"),
        (["link", "a.csv", "b.csv", "--resume"], "--resume: must come with --out"),
        (["link", "a.csv", "b.csv", "--config", "no.toml"], "no.toml: must be a TOML file of options"),
        (["link", "a.csv", "b.csv", "--method=joint"], "is an option of earlier versions. Use --effort quick"),
        (["link", "a.csv", "b.csv", "--null-searches", "3"], "--null-searches: is an option of earlier versions."),
        (["check", "a.csv", "b.csv", "--no-strangers"], "Use --partners all, some or auto."),
        (["link", "a.csv", "b.csv", "--jobs", "2"], "Leave it out: all cores are used."),
    ],
)
def test_wrong_use_is_one_line_and_2(capsys, arguments, complaint):
    assert exit_code(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("keyless: ")
    assert complaint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (keyless.InputError("lab, row 3:\n  must be a number."), 2, "keyless: lab, row 3: must be a number.\n"),
        (keyless.errors.KeylessError("no luck"), 1, "keyless: no luck\n"),
        (FileNotFoundError(2, "No such file", "lab.csv"), 1, "keyless: lab.csv: there is no such file or folder."),
        (PermissionError(13, "Permission denied", "lab.csv"), 1, "keyless: lab.csv: Permission denied. Change its"),
        (OSError(28, "No space left"), 1, "keyless: could not be written, the disk is full or a size limit was met"),
        (OSError(5, "Input/output error", "lab.csv"), 1, "keyless: lab.csv: Input/output error.\n"),
        (OSError("odd"), 1, "keyless: odd.\n"),
        (MemoryError(), 1, "keyless: not enough memory. `keyless inspect`"),
        (KeyboardInterrupt(), 130, "keyless: interrupted; nothing was saved.\n"),
        (RuntimeError("a bug"), 1, "keyless: unexpected RuntimeError: a bug. This is a mistake in keyless, not yours."),
    ],
)
def test_trouble_is_one_line_without_traceback(monkeypatch, capsys, error, code, line):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(datasets, "load_shuffled_tumours", fail)
    assert exit_code("demo") == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_mistake_of_ours_shows_where_when_asked(monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr(datasets, "load_shuffled_tumours", fail)
    monkeypatch.setenv("KEYLESS_DEBUG", "1")
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["demo"])


SMALL = """
import pandas as pd
from keyless import datasets

def small(*, random_state, observed):
    tables, truth = datasets.make_shuffled_tables(40, (12, 10), rank=3, observed=observed, random_state=random_state)
    named = {"means": pd.DataFrame(tables["reference"]), "worst": pd.DataFrame(tables["table1"])}
    return {name: frame.add_prefix(name) for name, frame in named.items()}, {"worst": truth["table1"]}
"""


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_traceback():
    code = f"{SMALL}\nfrom keyless import cli\ndatasets.load_shuffled_tumours = small\ncli.main(['demo'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        # Nothing but progress.
        assert all(b", step " in line for line in process.stderr.read().splitlines())
    assert process.returncode == 1


def test_demo_tells_the_truth(monkeypatch, capsys, tmp_path):
    """What it says of the answer is counted here again, from the links it was given."""
    made = {}
    exec(SMALL, made)  # the same small problem as in the other process
    seen = []
    real = linker.link

    def remembered(tables, **options):
        seen.append(real(tables, **options))
        return seen[-1]

    monkeypatch.setattr(datasets, "load_shuffled_tumours", made["small"])
    monkeypatch.setattr(linker, "link", remembered)
    place = tmp_path / "page.html"
    assert exit_code("demo", "--seed", "4", "--report", str(place)) == 0
    shown = capsys.readouterr().out
    _, truth = made["small"](random_state=4, observed=0.97)
    found = seen[0].found["worst"]
    right = found.permutation == truth["worst"]
    sure = found.probability >= 0.9
    assert (
        f"By the known answer, {right.sum()} of 40 matches are right, and {right[sure].sum()} of the {sure.sum()} "
        "matches that are stated with 90% or more." in shown
    )
    assert f"Verdict: {found.evidence.verdict}" in shown
    assert f"{found.probability.sum():.0f} of 40" in shown
    assert "26 entries removed" in shown
    assert shown.endswith(f"Report: {place}\n")
    assert place.read_text(encoding="utf-8") == report.render(seen[0])
