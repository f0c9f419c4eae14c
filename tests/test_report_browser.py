"""The report as a reader has it: in headless Chromium, offline, in the light, in the dark, on a phone, on paper.

Needs `pip install ".[browser]"` and a Chromium that is installed: `KEYLESS_CHROMIUM` names it, else `chromium`,
`chromium-browser` or `google-chrome` is taken from the path.
"""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from keyless.audit import LEVELS, Audit, Change, Proposal, singled_out
from keyless.cli.inputs import read_pairs
from keyless.report import render
from keyless.runs.cells import spreadsheet_safe

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install '.[browser]'")
pytestmark = pytest.mark.browser

PHONE = {"width": 375, "height": 780}
TABLET = {"width": 760, "height": 1000}
DESKTOP = {"width": 1100, "height": 900}


class Opened:
    """A page, and what it did that it should not do."""

    def __init__(self, browser, path, **options):
        self.page = browser.new_page(**({"viewport": DESKTOP} | options))
        self.trouble, self.requested = [], []
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("dialog", lambda dialog: self.trouble.append(dialog.message))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(path.as_uri())

    def ready(self):
        self.page.wait_for_selector("html[data-ready=yes]", timeout=15_000)
        return self.page

    def column(self, number):
        return self.page.eval_on_selector_all(
            f"#match-rows tr > :nth-child({number})", "cells => cells.map(cell => cell.textContent)"
        )

    def says(self, text):
        """Wait until the line below the table says so: searching begins when typing ends."""
        playwright.expect(self.page.locator("#match-count")).to_contain_text(text)

    def close(self, path):
        """Nothing went wrong, and nothing but the file was asked for."""
        self.page.close()
        assert self.trouble == []
        assert self.requested == [path.as_uri()]


def number(text):
    """A stated probability as a number to compare: `>0.999` is more than 0.999, `<0.001` less than 0.001."""
    return float(text[1:]) + {">": 5e-4, "<": -5e-4}[text[0]] if text[0] in "<>" else float(text)


@pytest.fixture(scope="module")
def path(clinic_lab_and_watch, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(clinic_lab_and_watch), encoding="utf-8")
    return path


@pytest.fixture
def opened(chromium, path):
    opened = Opened(chromium, path)
    opened.ready()
    yield opened
    opened.close(path)


def test_the_script_shows_what_the_page_shows_without_it(chromium, path, opened):
    plain = Opened(chromium, path, java_script_enabled=False)
    for number in (1, 2, 3, 4, 5, 6):
        assert plain.column(number) == opened.column(number)
    for control in ("#match-search", "#match-threshold", "#match-download", "#match-kept"):
        assert not plain.page.is_visible(control)
    assert "with scripts, all can be searched" in plain.page.text_content("#match-count")
    plain.close(path)


def test_the_least_sure_come_first_a_click_turns_it_round_another_ends_it(opened, clinic_lab_and_watch):
    matches = clinic_lab_and_watch.matches
    head = opened.page.locator("th[data-key=probability]")
    button = head.get_by_role("button")
    assert head.get_attribute("aria-sort") == "ascending"
    least = matches[["reference_id", "table"]][matches["probability"] < 1e-4]
    assert len(least) > 5
    shown = list(zip(opened.column(1), opened.column(2), strict=True))
    assert set(shown[: len(least)]) == set(least.itertuples(index=False, name=None))
    button.click()
    shown = [number(text) for text in opened.column(4)]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == np.floor(1000 * matches["probability"].max()) / 1000
    assert head.get_attribute("aria-sort") == "descending"
    button.click()
    assert opened.column(1) == matches["reference_id"].tolist()[:25]
    assert head.get_attribute("aria-sort") is None
    button.click()
    shown = [number(text) for text in opened.column(4)]
    assert shown == sorted(shown)
    assert head.get_attribute("aria-sort") == "ascending"


def test_no_partner_comes_last_whichever_way(opened):
    button = opened.page.locator("th[data-key=match]").get_by_role("button")
    opened.page.select_option("#match-table", label="watch")
    for _ in range(2):
        button.click()
        assert "no partner" not in opened.column(3)
    opened.page.click("#match-next")
    opened.page.click("#match-next")
    assert opened.column(3) == ["no partner"] * 10


def test_search_finds_ids_on_either_side(opened, clinic_lab_and_watch):
    wanted = clinic_lab_and_watch.matches.iloc[17]
    for text in (wanted["reference_id"], wanted["row_id"].lower()):
        opened.page.fill("#match-search", text)
        opened.says("found among")
        assert wanted["reference_id"] in opened.column(1)
        assert len(opened.column(1)) < 15
        opened.page.fill("#match-search", "")
        opened.says("1 to 25 of 120")
    opened.page.fill("#match-search", "nowhere")
    opened.says("Nothing fits.")
    assert opened.column(1) == []


def test_pages_and_filters(opened, clinic_lab_and_watch):
    count = opened.page.locator("#match-count")
    assert count.text_content() == "1 to 25 of 120"
    assert opened.page.is_disabled("#match-previous")
    for _ in range(4):
        opened.page.click("#match-next")
    assert count.text_content() == "101 to 120 of 120"
    assert opened.page.is_disabled("#match-next")
    opened.page.select_option("#match-certainty", "alone")
    assert count.text_content() == "1 to 10 of 10 found among 120"
    assert opened.column(3) == ["no partner"] * 10
    opened.page.select_option("#match-certainty", "kept")
    sure = sum(
        int(((link.permutation >= 0) & (link.probability >= 0.9)).sum()) for link in clinic_lab_and_watch.found.values()
    )
    assert f"of {sure} found" in count.text_content()
    opened.page.select_option("#match-certainty", "all")
    opened.page.select_option("#match-table", label="lab")
    assert set(opened.column(2)) == {"lab"}
    assert "of 60 found" in count.text_content()


def slide(page, percent):
    page.locator("#match-threshold").fill(str(percent))


def test_the_threshold_says_what_it_keeps(opened, clinic_lab_and_watch):
    page, matches = opened.page, clinic_lab_and_watch.matches
    kept = page.locator("#match-kept")
    there = matches["row_id"].notna()
    for percent in (90, 50, 99.9, 0):
        slide(page, percent)
        at = matches["probability"] >= percent / 100
        right = matches["probability"][at & there].sum()
        said = re.fullmatch(
            rf"At {percent}% or surer: (\d+) matches, about (\d+) of them expected right\. Below: (\d+) rows\.",
            kept.text_content(),
        )
        assert [int(said[1]), int(said[3])] == [(at & there).sum(), (~at).sum()]
        assert abs(int(said[2]) - right) <= 1
        assert page.get_attribute("#match-threshold", "aria-valuetext") == f"{percent}%"
    slide(page, 97)
    page.select_option("#match-certainty", "kept")
    assert all(number(text) >= 0.97 for text in opened.column(4))
    before = page.text_content("#match-count")
    page.focus("#match-threshold")
    page.keyboard.press("Home")
    assert page.text_content("#match-count") != before
    opened.says("of 110 found among 120")
    page.select_option("#match-certainty", "check")
    assert opened.column(1) == []
    assert page.is_disabled("#match-download")


def downloaded(page, folder):
    with page.expect_download() as waiting:
        page.click("#match-download")
    assert waiting.value.suggested_filename == "matches.csv"
    place = folder / "matches.csv"
    waiting.value.save_as(place)
    return pd.read_csv(place, dtype={"reference_id": str, "row_id": str, "second_best": str}, keep_default_na=False)


def test_what_is_shown_can_be_downloaded_and_given_as_known_pairs(opened, clinic_lab_and_watch, tmp_path):
    page, links = opened.page, clinic_lab_and_watch
    page.locator("th[data-key=row]").get_by_role("button").click()
    page.select_option("#match-table", label="lab")
    page.select_option("#match-certainty", "kept")
    got = downloaded(page, tmp_path)
    expected = links.matches.query("table == 'lab' and probability >= 0.9").reset_index(drop=True)
    for column in ("reference_id", "table", "row_id"):
        assert got[column].tolist() == expected[column].tolist()
    assert ((expected["probability"] - got["probability"]).between(-1e-12, 1e-4)).all()
    np.testing.assert_allclose(got["margin"], expected["margin"], atol=0.0501)
    read = read_pairs(tmp_path / "matches.csv", links.tables, option="--known-pairs")
    assert read["lab"] == list(zip(expected["reference_id"], expected["row_id"], strict=True))


def test_a_download_is_safe_in_a_spreadsheet(chromium, linked_by_hand, tmp_path):
    ids = ["=1+1", "+49 30", "-2", "@me", "a,b", 'say "so"', "ＺＺ", "＝1", "-cmd|x", "plain"]
    values = np.random.default_rng(3).normal(size=(len(ids), 2))
    tables = {
        "a": pd.DataFrame(values, columns=["x", "y"], index=ids),
        "b": pd.DataFrame(values * 2, columns=["u", "v"]),
    }
    path = tmp_path / "report.html"
    path.write_text(render(linked_by_hand(tables, [np.arange(len(ids))], rank=1)), encoding="utf-8")
    opened = Opened(chromium, path)
    opened.ready().locator("th[data-key=row]").get_by_role("button").click()
    got = downloaded(opened.page, tmp_path)["reference_id"]
    assert sorted(got) == sorted(spreadsheet_safe(one) for one in ids)
    opened.close(path)


def test_all_of_it_works_from_the_keyboard(opened):
    page = opened.page
    page.focus("#match-certainty")
    seen = []
    for _ in range(9):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.closest('th')?.dataset.key ?? ''"))
    assert [key for key in seen if key] == ["row", "table", "match", "probability", "other", "likely"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.locator("th[data-key=likely]").get_attribute("aria-sort") == "ascending"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    assert page.locator("th[aria-sort]").count() == 1


def opened_row(page, label):
    """Search a row, open it, and return what is shown below it."""
    page.fill("#match-search", label)
    playwright.expect(page.locator("#match-rows tr[data-line]")).to_have_count(1)
    page.locator("#match-rows button").click()
    return page.locator("#match-rows tr.why")


def test_a_row_opens_and_says_why(opened, clinic_lab_and_watch):
    page = opened.page
    page.select_option("#match-table", label="lab")
    why = opened_row(page, "P-1119")
    pair = clinic_lab_and_watch.explain("P-1119", table="lab").pairs["lab"]
    assert f"Row P-1119 of clinic and row {pair.row_id} of lab" in why.text_content()
    cells = pair.cells.set_index(["table", "column"])
    boxes, seen = [], 0
    for grid in why.locator("table").all():
        label, table = grid.locator("caption").text_content().split(" of ")
        boxes.append(grid.bounding_box())
        for line in grid.locator("tbody tr").all():
            texts = line.locator("th, td").all_text_contents()
            if texts[2] == "not used":
                assert texts[:2] == ["note", clinic_lab_and_watch.tables[0].native.loc["P-1119", "note"]]
                continue
            cell = cells.loc[(table, texts[0])]
            seen += 1
            assert label == cell["row_id"]
            assert texts[3] == f"{cell['contribution']:+.2f}".replace("-", "−")
            bar = line.locator(".balance")
            share = [float(bar.evaluate(f"one => getComputedStyle(one).getPropertyValue('--{way}')")) for way in
                     ("for", "against")]  # fmt: skip
            largest = cells["contribution"].abs().max()
            expected = [max(0, way * cell["contribution"]) / largest for way in (1, -1)]
            np.testing.assert_allclose(share, expected, atol=0.01)
    assert seen == len(cells)
    # The record of the reference on the left, that of the lab on the right of it, at the same height.
    assert boxes[-1]["x"] >= boxes[0]["x"] + boxes[0]["width"]
    assert boxes[-1]["y"] == boxes[0]["y"]
    best = clinic_lab_and_watch.candidates(1, table="lab").query("reference_id == 'P-1119'").iloc[0]
    first = why.locator(".candidates li").first.text_content()
    assert first.startswith(f"{best['row_id']} {np.floor(1000 * best['probability']) / 1000:.3f}")
    assert why.locator(".chosen").count() == 1
    # Both the id and the rest of the row open and close it.
    page.locator("#match-rows button").click()
    assert why.count() == 0
    page.locator("#match-rows td.p").click()
    assert why.count() == 1


def test_a_row_opens_with_the_keyboard(opened):
    page = opened.page
    button = page.locator("#match-rows button").first
    button.focus()
    assert button.get_attribute("aria-expanded") == "false"
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    assert page.locator(f"#{button.get_attribute('aria-controls')} h3").count() == 1
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("tr.why").count() == 2
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert page.locator("tr.why").count() == 1
    assert button.get_attribute("aria-expanded") == "false"


def test_text_of_a_row_can_be_marked_without_opening_it(opened):
    page, box = opened.page, opened.page.locator("#match-rows td:nth-child(3) bdi").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 1, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, middle)
    page.mouse.up()
    assert page.evaluate("String(getSelection())").startswith("S-1")
    assert page.locator("tr.why").count() == 0


def test_a_screen_reader_finds_its_way(opened):
    page = opened.page
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    for role, count in (("main", 1), ("navigation", 1), ("banner", 1), ("contentinfo", 1), ("img", 8)):
        assert page.get_by_role(role).count() == count, role
    assert page.get_by_label("Search ids").count() == 1
    assert page.get_by_role("table", name="Matches with the best other candidate").count() == 1
    for control in page.query_selector_all("input, select, button"):
        assert control.evaluate("one => (one.labels?.length ?? 0) > 0 || one.textContent.trim().length > 0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, TABLET, DESKTOP], ids=["phone", "tablet", "desktop"])
def test_axe_finds_nothing(chromium, path, scheme, viewport):
    """All rules of axe-core, those of WCAG 2 and its own good practice, with everything unfolded."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install '.[browser]'")
    opened = Opened(chromium, path, color_scheme=scheme, viewport=viewport)
    page = opened.ready()
    for button in page.locator("#match-rows button").all()[:2]:
        button.click()
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    found = axe.Axe().run(page)
    told = [
        (one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"]) for one in found.response["violations"]
    ]
    assert told == []
    assert len(found.response["passes"]) > 30
    opened.close(path)


@pytest.mark.parametrize(("verdict", "doubt"), [("uncertain", "rows"), ("uncertain", "map"), ("unlinkable", "map")])
def test_axe_finds_nothing_where_there_is_doubt(chromium, linked_by_hand, tmp_path, verdict, doubt):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install '.[browser]'")
    values = np.random.default_rng(3).normal(size=(20, 3))
    links = linked_by_hand({"a": values, "b": values[:, :2]}, [np.arange(20)], verdict=verdict)
    link = links.found["b"]
    links = replace(links, found={"b": replace(link, evidence=replace(link.evidence, doubt=doubt))})
    path = tmp_path / "report.html"
    path.write_text(render(links), encoding="utf-8")
    opened = Opened(chromium, path)
    page = opened.ready()
    assert [one["id"] for one in axe.Axe().run(page).response["violations"]] == []
    assert ("expected right" in page.text_content("#match-kept")) == (doubt == "rows")
    opened.close(path)


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_axe_finds_nothing_in_an_audit(chromium, clinic_lab_and_watch, tmp_path, viewport):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install '.[browser]'")
    links = clinic_lab_and_watch
    changes = (Change("clinic", "vital 3", "round", 5.0), Change("lab", "assay 0", "drop"))
    proposals = (
        Proposal(changes, "unlinkable", dict.fromkeys(LEVELS, 0), True),
        Proposal(changes[:1], "linked", singled_out(links), False),
    )
    found = Audit("linked", 60, singled_out(links), links.explain().columns, proposals, looked_at=110)
    path = tmp_path / "report.html"
    path.write_text(render(links, audit=found), encoding="utf-8")
    opened = Opened(chromium, path, viewport=viewport)
    page = opened.ready()
    assert [one["id"] for one in axe.Axe().run(page).response["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    page.get_by_role("navigation").get_by_role("link", name="Audit").click()
    playwright.expect(page.locator("#audit-h")).to_be_in_viewport()
    page.screenshot(path=tmp_path / "audit.png", full_page=True)
    opened.close(path)


def test_the_contents_stay_in_sight(opened):
    page = opened.page
    # At once: a page that still glides to one place does not stop at the next.
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    page.get_by_role("navigation").get_by_role("link", name="Repeat").click()
    playwright.expect(page.locator("#reproduce-h")).to_be_in_viewport()
    page.evaluate("document.getElementById('filled').scrollIntoView()")
    assert page.locator("nav").bounding_box()["y"] == 0
    # A heading that was jumped to is below the contents, not behind them.
    contents = page.locator("nav").bounding_box()
    assert page.locator("#filled-h").bounding_box()["y"] >= contents["height"]


def contrast(one, two):
    """Contrast of two colours as WCAG defines it."""
    light = []
    for colour in (one, two):
        linear = [
            channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
            for channel in (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
        ]
        light.append(float(np.dot(linear, [0.2126, 0.7152, 0.0722])))
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_the_light_and_in_the_dark(chromium, path, scheme):
    opened = Opened(chromium, path, color_scheme=scheme)
    page = opened.ready()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast(background, "rgb(255, 255, 255)") < 2) == (scheme == "light")
    for selector in (
        "h1",
        "h1 bdi",
        ".verdict",
        ".advice",
        "dl.tiles dt",
        "thead th",
        "td.n",
        "nav a",
        "summary",
        ".quiet",
    ):
        colour = page.eval_on_selector(selector, "one => getComputedStyle(one).color")
        assert contrast(background, colour) >= 4.5, selector
    letters = page.eval_on_selector("figure svg text", "one => getComputedStyle(one).fill")
    assert contrast(background, letters) >= 4.5
    opened.close(path)


def test_a_phone_scrolls_one_way_only(chromium, path, tmp_path):
    opened = Opened(chromium, path, viewport=PHONE, device_scale_factor=2)
    page = opened.ready()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    smallest = page.evaluate(
        """() => Math.min(...[...document.querySelectorAll("figure svg text")].map((text) => {
             const svg = text.ownerSVGElement;
             return parseFloat(getComputedStyle(text).fontSize) * svg.clientWidth / svg.viewBox.baseVal.width;
           }))"""
    )
    assert smallest >= 8
    # Each row is a card: its cells below each other, each with its name, and no head but the one that sorts.
    card = page.locator("#match-rows tr").first
    tops = [cell.bounding_box()["y"] for cell in card.locator("th, td").all()]
    assert tops == sorted(set(tops))
    names = card.locator("td").evaluate_all("all => all.map(one => getComputedStyle(one, '::before').content)")
    assert names == ['"table"', '"its row"', '"probability"', '"best other"', '"its probability"']
    assert not page.is_visible("#evidence thead")
    page.locator("th[data-key=probability]").get_by_role("button").click()
    assert number(opened.column(4)[0]) > 0.99
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    opened.close(path)


def test_paper_has_no_controls_and_black_letters(chromium, path):
    opened = Opened(chromium, path, color_scheme="dark")
    page = opened.ready()
    page.locator("#match-rows button").first.click()
    page.emulate_media(media="print", color_scheme="dark")
    for selector in ("nav", ".tools", ".why", "#match-kept", "#match-next", ".screen", "details", "#developers"):
        assert not page.is_visible(selector), selector
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for selector, style, value in (
        ("h2", "breakAfter", "avoid"),
        ("figure", "breakInside", "avoid"),
        ("#match-rows tr", "breakInside", "avoid"),
        ("section > p", "orphans", "3"),
        # Only without boxes of buttons, Chromium repeats the head of the table on each page.
        ("thead button", "display", "contents"),
    ):
        assert page.eval_on_selector(selector, f"one => getComputedStyle(one).{style}") == value, selector
    assert page.pdf(format="A4").startswith(b"%PDF")
    opened.close(path)


@pytest.mark.parametrize("redact", [False, True])
def test_nothing_hostile_runs_and_nothing_is_fetched(chromium, hostile_links, tmp_path, redact):
    path = tmp_path / "report.html"
    path.write_text(render(hostile_links, redact=redact), encoding="utf-8")
    opened = Opened(chromium, path)
    page = opened.page
    if not redact:
        opened.ready()
        assert "<script>window.hacked = 1</script>" in opened.column(1)
        for button in page.locator("#match-panel th button").all():
            button.click()
        page.fill("#match-search", "<img src=x")
        opened.says("found among")
        assert "</script><img src=x onerror='window.hacked=1'>" in opened.column(1)
        page.locator("#match-rows button").first.click()
        assert "<script>window.hacked = 1</script>" in page.locator("tr.why").text_content()
        assert page.eval_on_selector_all("td bdi, th bdi", "all => all.every(one => one.children.length === 0)")
    assert "<script>window.hacked = 1</script>" in page.text_content("h1")
    for unfold in page.locator("summary").all():
        unfold.click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
    opened.close(path)


def test_the_policy_stops_what_is_written_into_the_page(chromium, path):
    """Even if something slipped through: scripts, handlers and pictures from elsewhere are refused."""
    opened = Opened(chromium, path)
    page = opened.ready()
    failures = []
    page.on("requestfailed", lambda request: failures.append(request.failure))
    refused = page.evaluate(
        """() => new Promise((tell) => {
             const seen = [];
             document.addEventListener("securitypolicyviolation", (event) => {
               seen.push(event.effectiveDirective);
               if (seen.length === 3) tell(seen);
             });
             const script = document.createElement("script");
             script.textContent = "window.hacked = 1";
             document.body.append(script);
             const holder = document.createElement("div");
             holder.innerHTML = '<img src="http://localhost:9/x.png"><button onclick="window.hacked = 1">';
             document.body.append(holder);
             holder.querySelector("button").click();
           })"""
    )
    assert sorted(refused) == ["img-src", "script-src-attr", "script-src-elem"]
    assert page.evaluate("window.hacked") is None
    page.close()
    assert failures == ["csp"]


@pytest.mark.slow
def test_a_hundred_thousand_rows_open_at_once(chromium, links_of_many_rows, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(links_of_many_rows(100_000)), encoding="utf-8")
    assert path.stat().st_size < 6_000_000
    opened = Opened(chromium, path)
    page = opened.ready()
    assert page.text_content("#match-count") == "1 to 25 of 100,000"
    page.locator("#match-rows button").first.click()
    assert page.locator("tr.why table").count() == 2
    # Generous: what is refused is a page that hangs.
    assert page.evaluate("performance.now()") < 10_000
    page.locator("th[data-key=probability] button").click()
    shown = [number(text) for text in opened.column(3)]
    assert shown == sorted(shown, reverse=True)
    page.fill("#match-search", "99999")
    opened.says("found among")
    assert opened.column(1)[0] == "99999" or opened.column(2)[0] == "99999"
    # The details of the first 200 rows are in the page; of others it says where they are.
    page.locator("#match-rows button").first.click()
    assert f'links.explain("{opened.column(1)[0]}")' in page.locator("tr.why").text_content()
    opened.close(path)
