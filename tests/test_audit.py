"""Before a release: few columns are proposed, every proposal was linked again, and changes are what they say."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import keyless
from keyless import cli
from keyless.audit import LEVELS, Change, audit, changed, singled_out
from keyless.report import render


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


def cells(page, caption):
    """Return the lines of one table of a page, as text."""
    (grid,) = re.findall(rf'<caption class="hidden">{caption}</caption>.*?</table>', page, flags=re.DOTALL)
    lines = re.findall(r"<tr>(.*?)</tr>", grid, flags=re.DOTALL)
    return [
        [html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
        for line in lines
    ][1:]


def test_the_report_says_who_could_be_singled_out_and_what_to_change(links):
    linking = Linking(links, lambda tables: ("a", "a0") in columns_of(tables) and distinct(tables, "a", "a0") > 8)
    found = audit(links, linking)
    page = render(links, audit=found)
    probability = links.found["b"].probability
    expected = [[f"{100 * p:.0f}%", str((probability >= p).sum()), f"{100 * (probability >= p).mean():.0f}%"]
                for p in (0.5, 0.9, 0.99)]  # fmt: skip
    assert cells(page, "Rows that could be singled out") == expected
    named = cells(page, "Columns that make it possible")
    assert [(table, column) for column, table, *_ in named] == list(
        zip(found.columns["table"], found.columns["column"], strict=True)
    )
    assert "of 40 matched rows still have their partner" in page
    results = {tuple(changes.split("; ")): (result, left) for result, changes, *left in cells(page, "Proposed changes")}
    assert results[("drop a: a0",)] == ("no longer linkable", ["0", "0", "0"])
    # What noise leaves is linked, and the stand-in then states 95% for each row.
    (noise,) = [value for key, value in results.items() if key[0].startswith("add noise")]
    assert noise == ("not enough", ["40", "40", "0"])
    assert page.index('id="audit"') < page.index('id="matches"')
    assert "is no proof that nobody can" in page
    steps = page[page.index("What to do next") : page.index("</ol>")]
    assert "Do not release both tables as they are." in steps
    assert "drop a: a0." in steps
    assert "add noise" not in steps
    assert 'id="audit"' not in render(links)
    # A page to share names columns, and no rows.
    shared = render(links, audit=found, redact=True)
    assert cells(shared, "Proposed changes") == cells(page, "Proposed changes")
    assert 'id="details"' not in shared


def test_the_report_of_tables_that_are_not_linked_proposes_nothing(links):
    blind = Linking(links, lambda _tables: False)([])
    page = render(blind, audit=audit(blind, Linking(links, lambda _tables: True)))
    assert "it singles out nobody" in page
    assert "keyless proposes no change" in page
    assert cells(page, "Rows that could be singled out") == [[f"{p}%", "0", "0%"] for p in (50, 90, 99)]


def test_a_report_of_an_audit_that_was_stopped_says_so(links):
    asked = iter([False, False, False])
    found = audit(links, Linking(links, lambda _tables: True), stopped=lambda: next(asked, True))
    page = render(links, audit=found)
    assert "The audit was stopped before it had tried everything" in page
    assert "No set of changes was found" in page


@pytest.mark.soak
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
        cli.main(["check", *files, "--advise", "--json", "--effort", "quick"])
    assert left.value.code == 0
    found = json.loads(capsys.readouterr().out)["audit"]
    assert found["singled_out"]["0.9"] > 50
    assert found["proposals"][0]["holds"]
    assert found["finished"]
    # Whoever drops these columns and checks again finds no link.
    drops = [change for change in found["proposals"][0]["changes"] if change["action"] == "drop"]
    words = [word for change in drops for word in ("--drop", f"{change['table']}:{change['column']}")]
    with pytest.raises(SystemExit) as left:
        cli.main(["check", *files, *words, "--effort", "quick"])
    assert left.value.code == 3
    with pytest.raises(SystemExit):
        cli.main(["check", *files, *words, "--effort", "quick", "--advise", "--report", str(tmp_path / "page.html")])
    said = capsys.readouterr()
    assert "Nothing to change" in said.out
    assert f"the report is in {tmp_path / 'page.html'}." in said.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "keyless finds no link between these tables" in page
    assert "keyless check" in page
    assert "--advise\n</code>" in page


def test_a_report_of_a_check_is_refused_before_the_work(tmp_path, capsys):
    for name in "ab":
        pd.DataFrame({name: [1.0, 2.0, 3.5]}).to_csv(tmp_path / f"{name}.csv", index=False)
    files = [str(tmp_path / f"{name}.csv") for name in "ab"]
    for more, said in (
        (["--redact"], "--redact: must come with --report"),
        (["--report", files[0]], "--report: must not be one of the input files"),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(["check", *files, *more])
        assert left.value.code == 2
        assert said in capsys.readouterr().err


def test_the_module_is_found(links):
    assert keyless.audit.audit is audit
    assert links.evidence.verdict == "linked"
