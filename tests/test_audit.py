"""Before a release: few columns are proposed, every proposal was linked again, and changes are what they say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import keyless
from keyless import cli
from keyless.audit import LEVELS, Change, audit, changed, singled_out


@pytest.fixture(scope="module")
def links(linked_by_hand):
    """Two tables of three common factors; `a0` and `b0` show one of them that no other column shows."""
    rng = np.random.default_rng(1)
    latent = rng.normal(size=(40, 3))
    clear = latent[:, :2] @ rng.normal(size=(2, 4)) + 0.4 * rng.normal(size=(40, 4))
    a = pd.DataFrame({"a0": 100 * latent[:, 2] + rng.normal(size=40), "a1": clear[:, 0], "a2": clear[:, 1]})
    b = pd.DataFrame({"b0": latent[:, 2] + 0.01 * rng.normal(size=40), "b1": clear[:, 2], "b2": clear[:, 3]})
    b["sex"] = np.where(latent[:, 0] > 0, "F", "M")
    b["free text"] = [f"note {i} of the ward" for i in range(40)]
    order = rng.permutation(40)
    return linked_by_hand({"a": a, "b": b.iloc[np.argsort(order)].reset_index(drop=True)}, [order], rank=3)


class Linking:
    """Stands for linking again: linkable as long as enough is left of some columns. Remembers what it was given."""

    def __init__(self, links, needed):
        self.links, self.needed, self.given = links, needed, []

    def __call__(self, tables):
        self.given.append(tables)
        verdict = "linked" if self.needed(tables) else "unlinkable"
        found = {
            name: replace(
                link,
                evidence=replace(link.evidence, verdict=verdict),
                probability=np.full(40, 0.95 if verdict == "linked" else 0.02),
            )
            for name, link in self.links.found.items()
        }
        return replace(self.links, found=found)


def columns_of(tables):
    return {(table.name, column) for table in tables for column in table.columns}


def distinct(tables, name, column):
    table = next(table for table in tables if table.name == name)
    return len(np.unique(table.block.values[:, table.columns.index(column)].round(9)))


def test_the_proposal_is_the_fewest_columns_that_hold(links):
    linking = Linking(links, lambda tables: {("b", "b0")} <= columns_of(tables) or ("a", "a0") in columns_of(tables))
    found = audit(links, linking)
    best = found.proposals[0]
    assert best.holds
    assert {(change.table, change.column, change.action) for change in best.changes} == {
        ("a", "a0", "drop"),
        ("b", "b0", "drop"),
    }
    assert found.singled_out == singled_out(links)
    assert set(found.columns["column"]) == {"a0", "a1", "a2", "b0", "b1", "b2", "sex"}
    assert found.verdict == "linked"


def test_columns_that_need_not_go_are_put_back(links):
    """The order begins with the columns that carry most; here another one alone decides."""
    linking = Linking(links, lambda tables: ("b", "b1") in columns_of(tables))
    best = audit(links, linking).proposals[0]
    assert [(change.table, change.column) for change in best.changes] == [("b", "b1")]


def test_rounding_and_noise_are_tried_from_mild_to_strong(links):
    linking = Linking(links, lambda tables: ("a", "a0") in columns_of(tables) and distinct(tables, "a", "a0") > 8)
    found = audit(links, linking)
    kinds = {proposal.changes[0].action: proposal for proposal in found.proposals}
    assert kinds["drop"].holds
    assert kinds["round"].holds
    assert not kinds["noise"].holds  # noise leaves all numbers different
    spread = links.tables[0].block.values[:, 0].std()
    assert spread / 4 < kinds["round"].changes[0].amount < 4 * spread
    assert kinds["round"].changes[0].amount in {m * 10.0**e for m in (1, 2, 5) for e in range(5)}
    assert found.proposals[-1] is kinds["noise"]
    assert kinds["noise"].singled_out == dict.fromkeys(LEVELS, 40) | {0.99: 0}
    assert "still linked after: add noise" in repr(found)


def test_categories_are_dropped_where_numbers_are_rounded(links):
    linking = Linking(links, lambda tables: {("b", "sex=F"), ("a", "a0")} & columns_of(tables))
    found = audit(links, linking)
    assert all(
        change.action == "drop" for proposal in found.proposals for change in proposal.changes if change.column == "sex"
    )
    assert {change.column for change in found.proposals[0].changes} == {"sex", "a0"}


def test_tables_that_stay_linkable_to_the_last_column(links):
    found = audit(links, Linking(links, lambda _tables: True))
    # Only a table without columns cannot be linked; the proposal says so.
    assert found.proposals[0].holds
    assert found.proposals[0].verdict == "nothing left"


def test_nothing_is_proposed_where_nothing_is_linked(links):
    blind = Linking(links, lambda _tables: False)([])
    found = audit(blind, Linking(links, lambda _tables: True))
    assert found.proposals == ()
    assert found.singled_out == dict.fromkeys(LEVELS, 0)


def test_an_audit_that_is_stopped_says_so(links):
    asked = []

    def stopped():
        asked.append(1)
        return len(asked) > 2

    found = audit(links, Linking(links, lambda _tables: True), stopped=stopped)
    assert not found.finished
    assert found.proposals == ()


def test_changes_are_what_they_say(links):
    changes = [
        Change("a", "a0", "round", 50.0),
        Change("a", "a1", "noise", 0.5),
        Change("b", "sex", "drop"),
        Change("b", "b1", "drop"),
    ]
    a, b = changed(links.tables, changes, seed=3)
    before = links.tables[0].block.values
    np.testing.assert_allclose(a.block.values[:, 0] % 50, 0, atol=1e-9)
    assert np.abs(a.block.values[:, 0] - before[:, 0]).max() <= 25
    assert 0.3 < (a.block.values[:, 1] - before[:, 1]).std() < 0.7
    np.testing.assert_array_equal(a.block.values[:, 2], before[:, 2])
    assert b.columns == ("b0", "b2")
    assert {use.name for use in b.uses if not use.columns} >= {"sex", "b1"}
    np.testing.assert_array_equal(links.tables[0].block.values, before)
    again = changed(links.tables, changes, seed=3)
    np.testing.assert_array_equal(again[0].block.values, a.block.values)
    assert str(changes[0]) == "round a: a0 to multiples of 50"
    assert str(changes[1]) == "add noise of standard deviation 0.5 to a: a1"
    assert str(changes[2]) == "drop b: sex"


@pytest.mark.slow
def test_check_advises_on_the_command_line(tmp_path, capsys):
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(60, 3))
    for name, columns in (("a", 6), ("b", 5)):
        table = latent @ rng.normal(size=(3, columns)) + 0.15 * rng.normal(size=(60, columns))
        pd.DataFrame(table).add_prefix(name).sample(frac=1, random_state=0).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    files = [str(tmp_path / f"{name}.csv") for name in "ab"]
    with pytest.raises(SystemExit) as left:
        cli.main(["check", *files, "--advise", "--json", "--null-searches", "1"])
    assert left.value.code == 0
    found = json.loads(capsys.readouterr().out)["audit"]
    assert found["singled_out"]["0.9"] > 50
    assert found["proposals"][0]["holds"]
    assert found["finished"]
    # Whoever drops these columns and checks again finds no link.
    drops = [change for change in found["proposals"][0]["changes"] if change["action"] == "drop"]
    words = [word for change in drops for word in ("--drop", f"{change['table']}:{change['column']}")]
    with pytest.raises(SystemExit) as left:
        cli.main(["check", *files, *words, "--null-searches", "1"])
    assert left.value.code == 3
    with pytest.raises(SystemExit):
        cli.main(["check", *files, *words, "--null-searches", "1", "--advise"])
    assert "Nothing to change" in capsys.readouterr().out


def test_the_module_is_found(links):
    assert keyless.audit.audit is audit
    assert links.evidence.verdict == "linked"
