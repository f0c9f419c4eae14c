"""Every name that is printed goes through one filter: terminals show it, and do nothing else."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile.making import links_of
from hostile.names import NAMES, is_harmless
from keyless.audit import Change
from keyless.cli import words
from keyless.cli.app import _run, say, write_out
from keyless.errors import InputError, printable

ON_DISK = [name for name in NAMES if name.isprintable() is False and "\ud800" not in name]


@given(st.text(), st.booleans())
def test_what_is_printable_is_harmless_and_says_the_same_again(text, lines):
    shown = printable(text, lines=lines)
    assert is_harmless(shown)
    assert lines or "\n" not in shown
    assert printable(shown, lines=lines) == shown
    shown.encode()


def test_plain_text_stays_as_it_is():
    assert printable("Größe – 測定 (µg/l)") == "Größe – 測定 (µg/l)"


@pytest.mark.parametrize("name", NAMES)
def test_errors_are_one_harmless_line(name, capsys):
    error = InputError(f"{name}: must be a table; found\n\n{name}")
    assert "\n" not in str(error)
    assert is_harmless(str(error))
    assert len(str(error)) <= 2_000
    say(error)
    say(name)
    assert is_harmless(capsys.readouterr().err)


@pytest.mark.parametrize("name", ON_DISK)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_inspect_shows_names_of_columns_and_files_and_does_not_run_them(tmp_path, capsys, name, more):
    short = name[:40].replace("/", "_").replace("\0", "_")
    path = tmp_path / f"{short}.csv"
    frame = pd.DataFrame({name: np.arange(9) % 4 / 2, "b": [name[:40], "x", "y"] * 3, "c": [name[:40]] * 9})
    frame.to_csv(path, index=False, quoting=csv.QUOTE_ALL)
    assert _run(["inspect", str(path), *more]) == 0
    out, err = capsys.readouterr()
    assert is_harmless(out)
    assert is_harmless(err)
    if more:
        (table,) = json.loads(out)["tables"]
        assert table["columns"][0]["name"] == name
        assert table["name"] == short


def test_json_escapes_are_json():
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "write_out", seen.append)
        words.print_json({name: name for name in NAMES})
    assert is_harmless(seen[0])
    assert json.loads(seen[0]) == {name: name for name in NAMES}


def test_data_for_a_program_stay_exact_and_a_terminal_gets_escapes(monkeypatch, capsys):
    write_out("a\x1b[31m,1\n", data=True)
    assert capsys.readouterr().out == "a\x1b[31m,1\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    write_out("a\x1b[31m,1\n", data=True)
    assert capsys.readouterr().out == "a\\x1b[31m,1\n"


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES))
def test_results_show_names_of_tables_and_do_not_run_them(one, two):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(6, 2)), columns=["a", two])
    links = links_of({one: frame, f"{two}.": frame})
    assert is_harmless(repr(links))
    assert is_harmless(repr(links.explain()))
    assert is_harmless(repr(links.explain(0)))
    assert is_harmless(str(Change(one, two, "drop")))
    assert is_harmless("\n".join(words.verdict_lines(links)))
