"""The report without a browser: what it says, what it escapes, what it leaves out, and that it is always the same."""

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import keyless
from keyless.errors import Status
from keyless.pairs.expected import expected_right
from keyless.report import render
from keyless.report.filled import fill_sample, filled_columns, filled_entries
from keyless.report.matches import second_best

VOID = {"meta", "input", "br", "use", "path"}


class Outline(HTMLParser):
    """Checks that tags close, and collects text, ids, links, attributes and headings."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.text = [], [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "xlink:href"):
                self.links.append(value)
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "action", "background")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    @property
    def said(self):
        return " ".join(" ".join(self.text).split())


def stored(page, name="store"):
    (packed,) = re.findall(rf'<script type="application/octet-stream" id="{name}">(.*?)</script>', page)
    return json.loads(zlib.decompress(base64.b64decode(packed)))


@pytest.fixture(scope="module")
def page(clinic_lab_and_watch):
    return render(clinic_lab_and_watch)


def test_the_page_is_whole(page):
    outline = Outline(page)
    assert len(set(outline.ids)) == len(outline.ids)
    for link in outline.links:
        assert link[0] == "#"
        assert link[1:] in outline.ids
    headings = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    assert len(page) < 400_000


def test_every_picture_has_a_text(page):
    pictures = [attributes for tag, attributes in Outline(page).tags if tag == "svg"]
    assert len(pictures) == 8
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 30
    labels = [attributes["aria-label"] for attributes in pictures]
    assert "Strip chart of nats a row. Chance reaches 1.2 nats a row; the links reach 12.1." in labels
    assert len(set(labels)) >= 7


def test_pictures_take_the_colours_of_the_page(page):
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", drawn)) == set()
    assert "var(--c0)" in drawn
    assert "DejaVu" not in drawn


def test_the_verdict_comes_first_and_all_questions_are_answered(page, clinic_lab_and_watch):
    said = Outline(page).said
    found = clinic_lab_and_watch.found.values()
    right = sum(link.probability[link.permutation >= 0].sum() for link in found)
    sentence = f"lab and watch are linked to clinic : 110 matches, of which about {right:.0f} should be right."
    assert sentence in said
    assert said.index(sentence) < 200
    assert said.count("✓ Linked") == 1
    for question in (
        "Is it more than chance?", "How many rows, and how sure?", "Which row belongs to which?",
        "What do the tables share?", "What was filled in?", "What was left out, and why?", "How to repeat this run",
        "For developers",
    ):  # fmt: skip
        assert question in said
    assert "not a measured hit rate" in said
    assert "10 rows of clinic have no partner in watch ; 0 rows of watch are in no match." in said
    assert "keyless.link({'clinic': clinic, 'lab': lab, 'watch': watch}, random_state=3)" in said
    assert "note clinic left out" in said


@pytest.mark.parametrize(
    ("verdict", "sign", "sentence"),
    [
        ("uncertain", "? Uncertain", "It is uncertain whether b belongs to a ."),
        ("unlinkable", "✕ Not linkable", "Nothing found between a and b is clearer than chance"),
    ],
)
def test_doubt_is_said_first(linked_by_hand, rng, verdict, sign, sentence):
    tables = {"a": rng.normal(size=(9, 3)), "b": rng.normal(size=(9, 2))}
    tables["a"][2, 1] = np.nan
    said = Outline(render(linked_by_hand(tables, [rng.permutation(9)], verdict=verdict))).said
    assert sign in said
    assert sentence in said
    assert ("from each table's own columns alone" in said) == (verdict == "unlinkable")


@pytest.fixture
def in_doubt(linked_by_hand):
    """A link of two tables of 40 rows with a verdict, what is in doubt, and how likely the map is right."""
    rng = np.random.default_rng(4)
    links = linked_by_hand({"a": rng.normal(size=(40, 3)), "b": rng.normal(size=(40, 2))}, [rng.permutation(40)])

    def make(verdict, doubt, belief=1.0, *, score=1.0, nulls=(0.3,)):
        link = links.found["b"]
        evidence = replace(
            link.evidence, verdict=verdict, doubt=doubt, belief=belief, score=score, null_scores=nulls,
            needed=np.log(40),
        )  # fmt: skip
        return replace(links, found={"b": replace(link, evidence=evidence, probability=link.probability * belief)})

    return make


@pytest.mark.slow
def test_expected_right_is_said_only_where_the_map_is_believed(in_doubt):
    for verdict, doubt in (("linked", "none"), ("uncertain", "rows")):
        assert "expected right" in Outline(render(in_doubt(verdict, doubt))).said
    for verdict, doubt in (("uncertain", "map"), ("unlinkable", "map")):
        page = render(in_doubt(verdict, doubt, 0.3))
        said = Outline(page).said
        assert "expected right" not in said
        assert "should be right" not in said
        assert not any(one["believed"] for one in stored(page)["tables"])


@pytest.mark.slow
def test_uncertain_says_which_of_the_two_it_is_and_what_to_do(in_doubt):
    rows = Outline(render(in_doubt("uncertain", "rows"))).said
    assert "b and a fit together, but many rows are too alike to be told apart." in rows
    assert "To make more rows sure, add columns that differ from row to row, or give known pairs:" in rows
    links = in_doubt("uncertain", "map", 0.31)
    said = Outline(render(links, command="keyless link a.csv b.csv")).said
    assert "the right way with a probability of about 31%" in said
    assert "Check about 10 of the surest matches by hand" in said
    assert "keyless link a.csv b.csv --known-pairs pairs.csv" in said
    # 1.0 nats, of which chance explains 0.3: the choice of 40 becomes one of 40/e^0.7 = 20.
    assert "the columns leave about 20 of 40 possible partners for a row. They would have to leave 1." in said
    assert "( --within NAME )" in said
    assert "a.csv" not in render(links, command="keyless link a.csv b.csv", redact=True)
    assert "known_pairs=pairs" in Outline(render(links)).said
    given = "keyless link a.csv b.csv --known-pairs some.csv"
    assert "--known-pairs pairs.csv" not in render(links, command=given)


@pytest.mark.slow
def test_where_the_map_is_in_doubt_the_surest_come_first(in_doubt):
    links = in_doubt("uncertain", "map", 0.31)
    best = links.matches.sort_values("probability", ascending=False, kind="stable")["reference_id"].iloc[0]
    for page, first in (
        (render(links), best),
        (render(in_doubt("linked", "none")), links.matches.set_index("reference_id")["probability"].idxmin()),
    ):
        shown = re.search(r'<tbody id="match-rows">\s*<tr><th scope="row"><bdi class="s">(\d+)</bdi>', page)
        assert shown[1] == str(first)


@pytest.mark.slow
def test_where_information_suffices_nothing_is_said_to_be_missing(in_doubt):
    said = Outline(render(in_doubt("uncertain", "map", 0.4, score=5.0))).said
    assert "possible partners" not in said
    none = Outline(render(in_doubt("unlinkable", "map", 0.0, score=0.3))).said
    assert "the columns leave about 40 of 40 possible partners for a row" in none
    links = in_doubt("uncertain", "map", 0.4, score=5.0)
    link = links.found["b"]
    turned = replace(links, found={"b": replace(link, evidence=replace(link.evidence, mirrored=0.95))})
    assert "A mirror image of this answer fits nearly as well" in Outline(render(turned)).said


def tiles(page):
    return dict(re.findall(r'<dt>(.*?)</dt><dd><a href="#[\w-]+">(.*?)</a></dd>', page))


def test_tiles_count_what_to_use_and_what_to_check(page, clinic_lab_and_watch):
    matches = clinic_lab_and_watch.matches
    sure, there = matches["probability"] >= 0.9, matches["row_id"].notna()
    right = expected_right(matches["probability"][there].to_numpy())
    native = [table.native for table in clinic_lab_and_watch.tables]
    assert tiles(page) == {
        "rows matched at 90% or surer": f"{(sure & there).sum()}",
        "rows to check by hand: less than 90% sure": f"{(~sure).sum()}",
        "rows without a partner, at 90% or surer": f"{(sure & ~there).sum()}",
        f"matches expected right; {right.low:.0f} to {right.high:.0f} in 19 of 20 cases": (
            f"{matches['probability'][there].sum():.0f} of {there.sum()}"
        ),
        "missing entries, filled in": f"{sum(int(frame.isna().sum().sum()) for frame in native)}",
    }


def test_nats_are_folded_and_explained_where_they_first_appear(page):
    said = Outline(page).said
    first = re.search(r"\bnats?\b", said).start()
    assert 0 < said.index("A nat is a unit of information.") - first < 40
    evidence = page[page.index('<section id="evidence"') :]
    assert evidence.index("<details><summary>") < evidence.index("nats")


def test_names_of_starts_and_stages_are_for_developers(page):
    before, after = page.split('<section id="developers"')
    for name in ("signatures", "polishing"):
        assert name not in before
        assert name in after
    assert after.index("<details><summary>") < after.index("signatures")


def test_columns_that_were_lost_are_named_at_the_head(page, linked_by_hand):
    said = Outline(page).said
    assert "1 column was left out note of clinic" in said
    assert said.index("1 column was left out") < said.index("Which row belongs to which?")
    frame = pd.DataFrame({"id": ["p1", "p2", "p3", "p4"], "x": [1.0, 5.0, 2.0, 9.0]})
    links = linked_by_hand({"a": frame, "b": frame[["x"]] + 1}, [np.arange(4)], rank=1)
    # A column that names the rows is not lost.
    assert [use.kind for use in links.tables[0].uses] == ["id", "number"]
    assert "column was left out" not in Outline(render(links)).said.split("Which row belongs to which?")[0]


def test_nothing_is_stated_as_certain(linked_by_hand):
    values = np.arange(12.0).reshape(6, 2)
    links = linked_by_hand({"a": values, "b": values * 3}, [np.arange(6)], rank=1)
    stated = np.array([1.0, 0.99995, 0.9991, 0.999, 0.8999, 1e-5])
    link = replace(links.found["b"], probability=stated)
    page = render(replace(links, found={"b": link}))
    shown = re.findall(r'data-label="probability">([^<]*)<', page)
    assert shown == ["&lt;0.001", "0.899", "0.999", "&gt;0.999", "&gt;0.999", "&gt;0.999"]
    assert "1.000" not in "".join(shown)


def test_names_that_look_like_templates_are_text(linked_by_hand):
    values = np.arange(12.0).reshape(6, 2)
    name = "{{ 7 * 7 }}{% if %}"
    frame = pd.DataFrame(values, columns=["{{ 1 / 0 }}", "{# x #}"], index=[f"{{{{ {i} }}}}" for i in range(6)])
    said = Outline(render(linked_by_hand({name: frame, "b": values}, [np.arange(6)], rank=1))).said
    assert name in said
    assert "{{ 1 / 0 }}" in said
    assert "{{ 5 }}" in said


def test_tables_with_different_verdicts_are_told_apart(clinic_lab_and_watch):
    found = dict(clinic_lab_and_watch.found)
    found["watch"] = replace(found["watch"], evidence=replace(found["watch"].evidence, verdict="unlinkable"))
    said = Outline(render(replace(clinic_lab_and_watch, found=found))).said
    assert "The tables differ: to clinic , lab is linked, watch is not linkable." in said
    assert "About watch : The matches below are guesses." in said
    assert "rows that are less than 90% sure" in said


def test_advice_of_the_status_is_passed_on(clinic_lab_and_watch):
    stopped = replace(clinic_lab_and_watch, status=Status("max_time", "Give it <more> time."))
    said = Outline(render(stopped)).said
    assert "The search stopped before it settled. Give it <more> time." in said
    assert "status max_time" in said


@pytest.mark.slow
def test_the_same_result_gives_the_same_bytes(clinic_lab_and_watch, page, tmp_path):
    clinic_lab_and_watch.save(tmp_path / "run.keyless")
    assert render(keyless.load(tmp_path / "run.keyless")) == page
    dated = render(clinic_lab_and_watch, made="1 May <2024>")
    assert "Made 1 May &lt;2024&gt;. " in dated
    assert dated.replace("Made 1 May &lt;2024&gt;. ", "") == page


def test_a_page_for_sharing_has_no_ids_and_no_values(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    shared = render(replace(links, choices={"rank": 4, "known_pairs": [["P-1007", "S-1014"]]}), redact=True)
    assert "ids and values left out" in shared
    assert 'id="store"' not in shared
    for table in links.tables:
        for label in table.row_ids:
            assert label not in shared
    values = {f"{value:,.4g}" for table in links.tables for value in table.block.values[table.block.mask]}
    assert not values & set(re.findall(r"[\d.,]{5,}", Outline(shared).said))
    for entry in ("north", "nurse"):
        assert entry not in shared
        assert entry in str(links.tables[0].native.to_numpy())
    assert "vital 3" in shared


def test_the_store_holds_every_match(page, clinic_lab_and_watch):
    data, links = stored(page), clinic_lab_and_watch
    assert [one["name"] for one in data["tables"]] == ["lab", "watch"]
    assert len(data["row"]) == 120
    matches = links.matches
    reference = [data["labels"][0][row] for row in data["row"]]
    assert reference == matches["reference_id"].tolist()
    at = [
        None if row < 0 else data["labels"][table + 1][row]
        for table, row in zip(data["table"], data["match"], strict=True)
    ]
    assert at == [None if pd.isna(row) else row for row in matches["row_id"]]
    # Rounded down, so that no row is said to be surer than it is.
    lost = matches["probability"] * 1e4 - np.array(data["probability"])
    assert lost.min() > -1e-8
    assert lost.max() < 1
    margins = [np.inf if margin is None else margin / 10 for margin in data["margin"]]
    np.testing.assert_allclose(margins, matches["margin"], atol=0.051)


def test_the_details_are_those_of_explain(page, clinic_lab_and_watch):
    links, data, details = clinic_lab_and_watch, stored(page), stored(page, "details")
    assert sorted(map(int, details["pairs"])) == list(range(120))
    chances = links.candidates(60).set_index(["table", "reference_id"])
    for k in (0, 17, 61, 119):
        name, row = data["tables"][data["table"][k]]["name"], data["labels"][0][data["row"][k]]
        pair, told = links.explain(row, table=name).pairs[name], details["pairs"][str(k)]
        assert (told["partner"], told["matched"]) == (pair.row_id, pair.matched)
        assert abs(told["ratio"] - pair.log_ratio) <= 0.005
        cells = pair.cells.set_index(["table", "column"])
        seen = 0
        for record in told["records"]:
            table = details["tables"][record["table"]]
            assert record["others"] == [0, 0]
            for column, nats, actual, predicted in record["cells"]:
                cell = cells.loc[(table, details["columns"][record["table"]][column])]
                seen += 1
                assert abs(nats - cell["contribution"]) <= 0.005
                assert (actual is None) == pd.isna(cell["actual"])
                if np.isfinite(cell["standard_error"]):
                    guess, error = map(float, predicted.split("±"))
                    np.testing.assert_allclose([guess, error], [cell["predicted"], cell["standard_error"]], rtol=0.051)
                    assert actual is None or abs(float(actual) / cell["actual"] - 1) < 1e-3
                else:
                    assert (predicted, actual) == (cell["predicted"], cell["actual"])
            size = [abs(cell[1]) for cell in record["cells"]]
            assert size == sorted(size, reverse=True)
            notes = [["note", links.tables[0].native.loc[row, "note"]]] if table == "clinic" else []
            assert [[details["columns"][record["table"]][k], entry] for k, entry in record["unused"]] == notes
        # A row without a watch has no record of one.
        assert seen == (cells["row_id"].notna()).sum()
        own = chances.loc[(name, row)].set_index("row_id")["probability"]
        assert sum(answer for *_, answer in told["candidates"]) == 1
        for label, steps, answer in told["candidates"]:
            likely = own[own.index.isna()].iloc[0] if label is None else own.get(label, 0.0)
            assert 0 <= likely * 1e4 - steps < 1 + 1e-9
            assert answer == (label == (pair.row_id if pair.matched else None))


@pytest.mark.slow
def test_a_wide_table_has_details_of_fewer_rows_and_columns(linked_by_hand):
    rng = np.random.default_rng(7)
    values = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 10_000))
    links = linked_by_hand({"a": values[:, :9_990], "b": values[:, 9_990:]}, [np.arange(60)])
    page = render(links)
    details = stored(page, "details")
    # 400,000 cells of 10,000 columns: the first 40 rows, the least sure.
    assert "This page has details of the first 40 rows in the order below." in Outline(page).said
    stated = np.floor(links.matches["probability"] * 1e4)
    least = stated.sort_values(kind="stable").index[:40]
    assert sorted(map(int, details["pairs"])) == sorted(least)
    pair = details["pairs"][str(least[0])]
    wide = pair["records"][0]
    assert len(wide["cells"]) == 20
    assert wide["others"][0] == 9_970
    parts = [nats for record in pair["records"] for _, nats, *_ in record["cells"]]
    rest = sum(record["others"][1] for record in pair["records"])
    assert abs(sum(parts) + rest - pair["ratio"]) < 0.005 * (len(parts) + 3)


def test_details_are_written_as_the_files_are(linked_by_hand, tmp_path):
    frame = pd.DataFrame(np.random.default_rng(2).normal(size=(30, 3)) * 1000, columns=["x", "y", "z"]).round(1)
    frame.to_csv(tmp_path / "a.csv", sep=";", decimal=",", index=False)
    links = linked_by_hand({"a": str(tmp_path / "a.csv"), "b": (frame * 2).to_numpy()}, [np.arange(30)], rank=2)
    pair = stored(render(links), "details")["pairs"]["4"]
    texts, numbers = (record["cells"] for record in pair["records"])
    for column, _, actual, predicted in texts:
        assert actual == str(frame.iloc[4, column]).replace(".", ",")
        assert re.fullmatch(r"-?\d+,\d ±\u00a0\d+", predicted)
    assert all("," not in actual + predicted for *_, actual, predicted in numbers)


def test_rows_without_a_link_have_details_too(linked_by_hand, rng):
    tables = {"a": rng.normal(size=(9, 3)), "b": rng.normal(size=(9, 2))}
    page = render(linked_by_hand(tables, [np.array([3, -1, 0, 1, 2, 4, 5, 6, 7])], verdict="unlinkable"))
    pairs = stored(page, "details")["pairs"]
    assert len(pairs) == 9
    assert [key for key, pair in pairs.items() if not pair["matched"]] == ["1"]
    assert [answer for label, _, answer in pairs["1"]["candidates"] if label is None] == [True]


def test_details_that_cannot_be_read_are_said_to_be_missing(clinic_lab_and_watch, monkeypatch):
    def refuse(*_arguments):
        raise keyless.InputError("big.csv: must be as it was when it was linked; it has changed.")

    monkeypatch.setattr("keyless.report.details.records", refuse)
    page = render(clinic_lab_and_watch)
    assert "This page has no details of rows: big.csv: must be as it was" in Outline(page).said
    assert 'id="details"' not in page


def test_the_second_best_is_the_best_but_one(clinic_lab_and_watch):
    for name, link in clinic_lab_and_watch.found.items():
        other, likely = second_best(clinic_lab_and_watch, name)
        for i, partner in enumerate(link.permutation):
            row = link.coupling[i].copy()
            row[partner if partner >= 0 else []] = -1
            alone = link.alone[i] if partner >= 0 else 0
            np.testing.assert_allclose(likely[i], max(row.max(), alone))
            assert other[i] == (-1 if alone > row.max() else row.argmax())
        kept = replace(link, coupling=sparse.csr_array(link.coupling))
        thin = replace(clinic_lab_and_watch, found=clinic_lab_and_watch.found | {name: kept})
        again = second_best(thin, name)
        np.testing.assert_array_equal(again[0], other)
        np.testing.assert_allclose(again[1], likely)
    # Some rows of the watch have no partner: for others that is the likeliest alternative, and the page says so.
    assert ((other < 0) & (likely > 0) & (link.permutation >= 0)).any()


def test_where_there_is_no_other_there_is_no_second_best(linked_by_hand):
    links = linked_by_hand([np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[5.0], [6.0]])], [[1, 0]])
    for coupling in (np.eye(2)[::-1], sparse.csr_array(np.eye(2)[::-1])):
        only = replace(links, found={"table1": replace(links.found["table1"], coupling=coupling, alone=np.zeros(2))})
        other, likely = second_best(only, "table1")
        assert other.tolist() == [-1, -1]
        assert likely.tolist() == [0.0, 0.0]
        render(only)


def test_having_no_partner_can_be_the_second_best(linked_by_hand):
    links = linked_by_hand([np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[5.0], [6.0]])], [[1, -1]])
    coupling = np.array([[0.05, 0.7], [0.0, 0.1]])
    alone = np.array([0.25, 0.9])
    found = replace(links, found={"table1": replace(links.found["table1"], coupling=coupling, alone=alone)})
    other, likely = second_best(found, "table1")
    assert other.tolist() == [-1, 1]
    np.testing.assert_allclose(likely, [0.25, 0.1])
    assert re.search(r'data-label="best other">no partner</td><td class="n"[^>]*>0\.250</td>', render(found))


@pytest.mark.slow
def test_the_page_says_how_to_repeat_the_run(linked_by_hand):
    links = linked_by_hand([np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[5.0], [6.0]])], [[1, 0]])
    links = replace(links, choices={"missingness": True, "known_pairs": 2, "forbidden_pairs": 0})
    tables = (replace(links.tables[0], source="data/my table.csv"), *links.tables[1:])
    said = Outline(render(replace(links, tables=tables))).said
    assert "{'reference': 'data/my table.csv', 'table1': table1}, known_pairs=known_pairs" in said
    assert "reading=keyless.Reading(missingness=True)" in said
    command = "keyless link 'my table.csv' b.csv --seed 3"
    assert command in Outline(render(links, command=command)).said
    for secret in ("my table.csv", "keyless link"):
        assert secret not in render(replace(links, tables=tables), command=command, redact=True)


def test_filled_entries_are_those_of_the_completed_tables(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    sample = fill_sample(links)
    columns = filled_columns(links, sample)
    gaps = {(c.table, c.column): c.missing for c in columns}
    assert gaps["clinic", "ward"] == 3
    assert gaps["lab", "assay 0"] == int(links.tables[1].native["assay 0"].isna().sum())
    assert all(c.explained < 1 for c in columns)
    entries = filled_entries(links, sample, most=10**6)
    expected = sum(
        int(links.filled[table.name].to_numpy()[links._rows(table.name) >= 0].sum()) for table in links.tables
    )
    assert len(entries) == expected
    for entry in entries:
        assert entry.value == links.completed[entry.table].loc[entry.reference_id, entry.column]
        assert (entry.error is None) == (entry.column == "ward")
    assert len(filled_entries(links, sample, most=7)) == 7


@pytest.mark.parametrize("redact", [False, True])
def test_hostile_names_and_values_are_text(hostile_links, redact):
    page = render(hostile_links, redact=redact)
    outline = Outline(page)
    assert [tag for tag, _ in outline.tags].count("script") == (1 if redact else 3)
    assert "img" not in [tag for tag, _ in outline.tags]
    assert "<script>window.hacked = 1</script>" in outline.said
    assert "\x00" not in page
    assert "\u202e" not in page
    page.encode()
    if not redact:
        assert max(map(len, stored(page)["labels"][0])) <= 120
        assert "\u202e" not in json.dumps(stored(page, "details"), ensure_ascii=False)
    assert max(map(len, outline.said.split())) < 400


@pytest.mark.slow
def test_a_hundred_thousand_rows_make_a_small_page(linked_by_hand):
    rng = np.random.default_rng(1)
    count = 100_000
    latent = rng.normal(size=(count, 2))
    order = rng.permutation(count)
    ids = [bytes(one).hex() for one in rng.integers(0, 256, (count, 16), dtype=np.uint8)]
    first = pd.DataFrame(latent, columns=["x", "y"], index=ids)
    second = pd.DataFrame(latent[order] + 0.1, columns=["u", "v"], index=ids[::-1])
    inverse = np.argsort(order)
    others = np.stack([inverse, (inverse + 1) % count], axis=1)
    weights = np.stack([rng.random(count), np.full(count, 0.01)], axis=1)
    coupling = sparse.csr_array((weights.ravel(), others.ravel(), np.arange(0, 2 * count + 1, 2)), shape=(count, count))
    links = linked_by_hand({"first": first, "second": second}, [inverse], coupling=coupling, rank=2)
    page = render(links)
    assert len(page.encode()) < 6_000_000
    said, data = Outline(page).said, stored(page)
    size = len(data["row"])
    assert 50_000 < size < count
    assert f"Of 100,000 matches, the {size:,} least sure are here" in said
    assert "150 of 2,000 pairs drawn" in said
    probability = links.found["second"].probability
    kept = np.array([ids.index(data["labels"][0][row]) for row in data["row"][:1000]])
    np.testing.assert_array_equal(np.floor(probability[kept] * 1e4), data["probability"][:1000])
    partners = [data["labels"][1][row] for row in data["match"][:1000]]
    assert partners == [ids[::-1][inverse[row]] for row in kept]
    kept = np.argsort(probability)[:size]
    assert {data["labels"][0][row] for row in data["row"]} == {ids[row] for row in kept}


@pytest.mark.parametrize(
    "kind",
    ["polars", "file", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("array", "sparse", "arrow", "dates"))],
)
def test_tables_of_all_kinds_have_a_page(linked_by_hand, kind, tmp_path):
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.normal(size=(30, 4)), columns=list("wxyz")).round(3)
    frame.iloc[3, 2] = frame.iloc[7, 0] = np.nan
    other = rng.normal(size=(30, 3))
    if kind == "dates":
        frame["day"] = pd.Series(pd.date_range("2020-01-01", periods=30)).mask(frame.index == 4)
    if kind == "file":
        frame.to_csv(tmp_path / "given.csv", index=False)
    given = {
        "array": frame.to_numpy,
        "sparse": lambda: sparse.csr_array(frame.fillna(0).to_numpy()),
        "polars": lambda: pytest.importorskip("polars", reason="polars is not installed").from_pandas(frame),
        "arrow": lambda: pytest.importorskip("pyarrow").Table.from_pandas(frame),
        "file": lambda: str(tmp_path / "given.csv"),
        "dates": lambda: frame,
    }[kind]()
    links = linked_by_hand({"given": given, "other": other}, [rng.permutation(30)])
    said = Outline(render(links)).said
    if kind == "dates":
        assert "day given 1 3.3%" in said
        assert "4 given day 20" in said
    if kind != "sparse":
        assert "filled from the joint model" in said
        assert re.search(r"3 given \w*y?_?\w* -?[\d.]+ ± ", said)


@pytest.mark.parametrize("rows", [1, 2])
def test_small_tables_have_a_page(linked_by_hand, rows):
    tables = [np.arange(2.0 * rows).reshape(rows, 2), np.arange(3.0 * rows).reshape(rows, 3)]
    said = Outline(render(linked_by_hand(tables, [np.full(rows, -1)], rank=1))).said
    assert f"rows without a partner, at 90% or surer {rows} " in said


def test_a_result_shows_itself_in_a_notebook(clinic_lab_and_watch, hostile_links):
    shown = Outline(clinic_lab_and_watch._repr_html_()).said
    assert shown.startswith("Linked. lab and watch are linked to clinic")
    assert "watch linked 50 of 60" in shown
    assert "<script>" not in hostile_links._repr_html_()


@pytest.mark.parametrize(
    "name", ["evidence", "certainty", "coverage", "factors", "correlations", "objective", "starts"]
)
def test_a_saved_result_plots_as_before(clinic_lab_and_watch, tmp_path, name):
    clinic_lab_and_watch.save(tmp_path / "run.keyless")
    again = keyless.load(tmp_path / "run.keyless")
    # Seconds are not kept in a saved result: equal runs give equal files.
    options = {"timed": False} if name == "objective" else {}
    before, after = (getattr(links, f"plot_{name}")(**options) for links in (clinic_lab_and_watch, again))
    assert before.get_title(loc="left") == after.get_title(loc="left")
    for one, two in zip(before.lines, after.lines, strict=True):
        np.testing.assert_array_equal(one.get_xydata(), two.get_xydata())


def test_factors_of_a_table_are_asked_for_by_name(clinic_lab_and_watch):
    labels = [text.get_text() for text in clinic_lab_and_watch.plot_factors("watch").figure.legends[0].get_texts()]
    assert labels == ["clinic", "watch"]
    with pytest.raises(keyless.InputError, match=r"^name: must be one of 'lab', 'watch'; found 'ward'\.$"):
        clinic_lab_and_watch.plot_factors("ward")
