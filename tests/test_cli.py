from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys

import pytest

import keyless
from keyless import cli, datasets, linker

COMMANDS = ("demo",)
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


@pytest.mark.slow
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_the_example_in_every_help_text_runs(command):
    (example,) = re.findall(r"^Example: (.+)$", help_of(*command), flags=re.MULTILINE)
    program, *arguments = shlex.split(example)
    assert program == "keyless"
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "nonsense"),
        (["demo", "--nonsense"], "--nonsense"),
        (["demo", "--seed", "many"], "many"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "7"], "7"),
    ],
)
def test_wrong_use_is_one_line_and_2(arguments, complaint):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("keyless: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (keyless.InputError("lab, row 3:\n  must be a number."), 2, "keyless: lab, row 3: must be a number.\n"),
        (keyless.errors.KeylessError("no luck"), 1, "keyless: no luck\n"),
        (FileNotFoundError(2, "No such file", "lab.csv"), 1, "keyless: [Errno 2] No such file: 'lab.csv'\n"),
        (KeyboardInterrupt(), 130, "keyless: interrupted\n"),
    ],
)
def test_trouble_is_one_line_without_traceback(monkeypatch, capsys, error, code, line):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(datasets, "load_shuffled_tumours", fail)
    assert exit_code("demo") == code
    assert tuple(capsys.readouterr()) == ("", line)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr(datasets, "load_shuffled_tumours", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["demo"])


SMALL = """
import pandas as pd
from keyless import datasets

def small(*, random_state):
    tables, truth = datasets.make_shuffled_tables(40, (12, 10), rank=3, random_state=random_state)
    named = {"means": pd.DataFrame(tables["reference"]), "worst": pd.DataFrame(tables["table1"])}
    return {name: frame.add_prefix(name) for name, frame in named.items()}, {"worst": truth["table1"]}
"""


def test_a_reader_that_leaves_is_no_traceback():
    code = f"{SMALL}\nfrom keyless import cli\ndatasets.load_shuffled_tumours = small\ncli.main(['demo'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_demo_tells_the_truth(monkeypatch, capsys):
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
    assert exit_code("demo", "--seed", "4") == 0
    shown = capsys.readouterr().out
    _, truth = made["small"](random_state=4)
    found = seen[0].found["worst"]
    right = found.permutation == truth["worst"]
    sure = found.probability >= 0.9
    assert (
        f"Known answer: {right.sum()} of 40 right; of the {sure.sum()} it is 90% sure of, {right[sure].sum()}." in shown
    )
    assert f"Verdict: {found.evidence.verdict}" in shown
    assert f"{found.probability.sum():.0f} of 40" in shown
