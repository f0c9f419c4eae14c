"""The answers on the command line: the joined table as it was asked for, and why rows are linked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import keyless
from keyless import cli, runs
from keyless.datasets import make_shuffled_tables


def exit_code(*arguments: object) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    return caught.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two files: 50 rows of the clinic, 40 of the lab, with gaps."""
    made = make_shuffled_tables((50, 40), (14, 12), rank=3, observed=0.95, random_state=2)
    folder = tmp_path_factory.mktemp("answers")
    for name, table in zip(("clinic", "lab"), made.tables.values(), strict=True):
        frame = pd.DataFrame(table).add_prefix(name[0])
        frame.insert(0, "pid", [f"{name[0]}{i:03}" for i in range(len(frame))])
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def run(folder) -> Path:
    out = folder / "run"
    assert exit_code("link", folder / "clinic.csv", folder / "lab.csv", "--out", out) == 0
    return out


def joined(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "joined.csv", dtype={"reference_id": str, "lab_id": str})


def test_joined_is_what_the_library_joins(run):
    links = keyless.load(run / "links.keyless")
    frame = joined(run)
    assert list(frame.columns) == ["reference_id", *links.joined().columns]
    alone = links.permutations["lab"] < 0
    assert alone.sum() == 10
    np.testing.assert_array_equal(frame["lab_id"].isna(), alone)
    lab = [column for column in frame if column.startswith("l") and column[1:].isdigit()]
    assert frame.loc[alone, lab].isna().all(axis=None)
    assert frame.loc[~alone, lab].notna().all(axis=None)
    clinic = [column for column in frame if column.startswith("c") and column[1:].isdigit()]
    assert frame[clinic].notna().all(axis=None)
    parquet = pd.read_parquet(run / "joined.parquet")
    np.testing.assert_allclose(parquet[lab].to_numpy(), frame[lab].to_numpy())


@pytest.mark.slow
def test_how_threshold_and_filling_are_options(folder, run, tmp_path, capsys):
    links = runs.read_run(run).links
    least = float(np.median(links.found["lab"].probability[links.permutations["lab"] >= 0]))
    files = (folder / "clinic.csv", folder / "lab.csv")
    options = ("--how", "outer", "--min-probability", repr(least), "--no-fill")
    assert exit_code("link", *files, "--out", tmp_path / "outer", *options) == 0
    frame = joined(tmp_path / "outer")
    expected = links.joined(how="outer", min_probability=least, fill=False)
    assert len(frame) == len(expected)
    assert frame["lab_id"].fillna("").tolist() == expected["lab_id"].fillna("").tolist()
    numbers = [column for column in frame if column[1:].isdigit()]
    given = pd.concat([pd.read_csv(path) for path in files])
    assert int(frame[numbers].notna().sum().sum()) == int(given[numbers].notna().sum().sum())
    assert frame["reference_id"].isna().sum() == len(frame) - 50
    # All matches stay in matches.csv, and the run can be repeated from its configuration.
    assert len(pd.read_csv(tmp_path / "outer" / "matches.csv")) == 50
    assert 'how = "outer"' in (tmp_path / "outer" / "config.toml").read_text(encoding="utf-8")
    command = json.loads((tmp_path / "outer" / "run.json").read_text(encoding="utf-8"))["command"]
    assert "--how=outer" in command
    assert "--no-fill" in command
    capsys.readouterr()
    assert exit_code("link", *files, "--min-probability", repr(least)) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    kept = links.found["lab"].probability >= least
    assert len(lines) == int((kept | (links.permutations["lab"] < 0)).sum())


def test_shaping_a_table_that_is_not_written_is_refused(folder, capsys):
    assert exit_code("link", folder / "clinic.csv", folder / "lab.csv", "--how", "inner") == 2
    assert capsys.readouterr().err.startswith("keyless: --how and --no-fill: must come with --out")
    assert exit_code("link", folder / "clinic.csv", folder / "lab.csv", "--min-probability", "95") == 2


def test_explain_says_which_columns_carry_the_link(run, capsys):
    assert exit_code("explain", run) == 0
    out = capsys.readouterr().out
    assert out.startswith("Link to lab: ")
    assert "clinic: c0" in out
    assert exit_code("explain", run, "--json") == 0
    found = json.loads(capsys.readouterr().out)["links"]["lab"]
    assert sum(column["contribution"] for column in found["columns"]) == pytest.approx(found["ratio"])


def test_explain_a_row(run, capsys):
    links = runs.read_run(run).links
    row = int(np.flatnonzero(links.permutations["lab"] >= 0)[0])
    label, partner = (links.tables[k].row_ids[p] for k, p in enumerate((row, links.permutations["lab"][row])))
    assert exit_code("explain", run, "--row", label) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Row {label} is matched with {partner} of lab: probability ")
    assert out.count("clinic: c") == 14
    assert exit_code("explain", run, "--row", label, "--json") == 0
    cells = json.loads(capsys.readouterr().out)["links"]["lab"]["cells"]
    given = pd.read_csv(run.parent / "clinic.csv", dtype=str).set_index("pid").loc[label].astype(float)
    actual = {c["column"]: c["actual"] for c in cells if c["table"] == "clinic"}
    for column, value in given.items():
        assert actual[column] is None if np.isnan(value) else float(actual[column]) == value
    other = next(one for one in links.tables[1].row_ids if one != partner)
    assert exit_code("explain", run, "--row", label, "--table", "lab", "--partner", other) == 0
    assert capsys.readouterr().out.startswith(f"Row {label} is not matched with {other} of lab")


def test_explain_refuses_what_is_not_there(run, capsys):
    assert exit_code("explain", run, "--row", "nobody") == 2
    assert "row: must be the id of a row of clinic ('c000'" in capsys.readouterr().err
    assert exit_code("explain", run, "--partner", "l000") == 2
    assert exit_code("explain", run.parent / "none") == 2
