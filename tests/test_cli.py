from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

import keyless
from keyless import cli, datasets, solvers, tables

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
        (["demo", "--starts", "many"], "many"),
        (["demo", "--starts", "0"], "--starts"),
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

    monkeypatch.setattr(tables, "to_problem", fail)
    assert exit_code("demo") == code
    assert tuple(capsys.readouterr()) == ("", line)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr(tables, "to_problem", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["demo"])


def test_a_reader_that_leaves_is_no_traceback():
    code = """
import dataclasses
from keyless import cli, solvers
solve = solvers.M3O.solve
solvers.M3O.solve = lambda self, *given, **named: solve(dataclasses.replace(self, max_iter=1), *given, **named)
cli.main(["demo", "--starts", "1"])
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_demo_tells_the_truth(monkeypatch, capsys):
    """Its table holds what the solver gave, scored here again, and its two last lines follow from that table."""
    given = []
    solve = solvers.M3O.solve

    def stopped_early(self, problem, **options):
        given.append((problem, solve(dataclasses.replace(self, max_iter=20), problem, **options)))
        return given[-1][1]

    monkeypatch.setattr(solvers.M3O, "solve", stopped_early)
    assert exit_code("demo", "--starts", "3", "--seed", "4") == 0
    shown = capsys.readouterr().out
    rows = re.findall(r"^ +(\d+) +(\d+\.\d+) +(\d+) +(\w+)$", shown, flags=re.MULTILINE)
    assert [int(start) for start, *_ in rows] == [1, 2, 3]

    expected, truth = datasets.make_shuffled_tables(
        100, (60, 40), rank=5, noise=0.1, observed=0.8, scale=True, random_state=4
    )
    for (problem, solution), (_, objective, wrong, reason) in zip(given, rows, strict=True):
        np.testing.assert_array_equal(problem.blocks[0].values, np.nan_to_num(expected["table1"]))
        assert sum(solution.permutations[0] != truth["table1"]) == int(wrong)
        assert f"{solution.objective:.4f}" == objective
        assert solution.status.reason == reason
    assert len({objective for _, objective, *_ in rows}) == 3  # every start is another one

    best, _, fewest, _ = min(rows, key=lambda row: float(row[1]))
    assert f"Best objective: start {best}, {fewest} of 100 rows wrong." in shown
    assert f"Mean over 3 starts: {sum(int(row[2]) for row in rows) / 3:.1f} of 100 rows wrong." in shown
