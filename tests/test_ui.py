"""The page without a browser: who gets in, which files it sees, what its routes say, and what it writes."""

import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from keyless import runs
from keyless.answers.scoring import rate
from keyless.cli.inputs import read_pairs
from keyless.errors import InputError, Status
from keyless.ui import review, server
from keyless.ui.app import templates
from keyless.ui.folder import MOST_UPLOADS
from keyless.ui.guard import POLICY
from keyless.ui.jobs import Job, Jobs, run_command
from keyless.ui.repeat import form_words, python_lines
from keyless.ui.words import job_view

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install '.[ui]'")
httpx = pytest.importorskip("httpx", reason="httpx is not installed: pip install '.[test]'")
ui_server = pytest.importorskip("ui_server", reason="uvicorn is not installed: pip install '.[ui]'")
Page = ui_server.Page


@pytest.fixture(scope="module")
def start(clinic_lab_and_watch, tmp_path_factory):
    """A start folder with tables, a run, something secret outside, and a link to it."""
    around = tmp_path_factory.mktemp("around")
    root = around / "start"
    root.mkdir()
    (around / "secret.csv").write_text("a,b\n1,2\n")
    (root / "out.csv").symlink_to(around / "secret.csv")
    (root / "door").symlink_to(around)
    (root / "clinic.csv").write_text("id,x,y\na,1,2\nb,3,4\nc,5,7\n")
    (root / "lab.csv").write_text("id,u\np,1\nq,3\nr,9\n")
    (root / "bad.csv").write_text("x,y\n1,2\n1,2,3,4\n")
    options = {"tables": ["clinic.csv", "lab.csv", "watch.csv"], "within": ["ward"], "seed": 3, "missingness": False}
    runs.write_run(
        clinic_lab_and_watch, root / "run", command="keyless link clinic.csv lab.csv watch.csv --out=run",
        configuration=runs.to_toml(options, title="x"),
    )  # fmt: skip
    return root


@pytest.fixture(scope="module")
def page(start):
    page = Page(start)
    yield page
    page.close()


# Who gets in.


def test_the_token_opens_once_and_becomes_a_cookie_that_scripts_and_other_places_do_not_get(page):
    first, address = page.browser(), page.guard.address
    answer = first.get(address, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert first.get("/").status_code == 200
    second = page.browser()
    assert second.get(address).status_code == 403
    assert second.get("/").status_code == 403
    assert page.told[-1] == page.guard.address != address
    assert second.get(page.told[-1]).status_code == 200
    assert first.get("/").status_code == 200, "the first one is still in"


@pytest.mark.parametrize("path", ["/", "/style.css", "/ui.js", "/jobs", "/run?at=run", "/download?at=run&what=folder"])
def test_nobody_gets_anything_without_the_token(page, path):
    stranger = page.browser()
    assert stranger.get(path).status_code == 403
    stranger.cookies.set(f"keyless-{page.port}", "guessed")
    assert stranger.get(path).status_code == 403
    assert stranger.get("/?token=guessed").status_code == 403
    assert stranger.post("/invite").status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:PORT", "127.0.0.1:1", "127.0.0.1", "127.0.0.1.x.y:PORT"]
)
def test_another_host_is_refused_even_with_the_cookie(page, host):
    assert page.client.get("/", headers={"host": host.replace("PORT", str(page.port))}).status_code == 403
    assert page.client.get("/").status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:PORT", "http://127.0.0.1:1"])
def test_another_origin_is_refused_even_with_the_cookie(page, origin):
    for method, path in (("POST", "/link"), ("PUT", "/upload"), ("GET", "/run/matches?at=run")):
        assert (
            page.client.request(method, path, headers={"origin": origin.replace("PORT", str(page.port))}).status_code
            == 403
        )


def test_changes_need_an_origin(page):
    bare = page.browser()
    del bare.headers["origin"]
    bare.cookies = page.client.cookies
    assert bare.get("/").status_code == 200
    assert bare.post("/invite").status_code == 403
    crossing = {"origin": page.home, "sec-fetch-site": "cross-site"}
    assert bare.post("/invite", headers=crossing).status_code == 403
    assert bare.post("/invite", headers={"origin": page.home}).json()["address"] == page.guard.address


def test_every_answer_has_the_policy_and_may_not_be_kept(page):
    stranger = page.browser()
    answers = [
        page.client.get(path) for path in ("/", "/style.css", "/nothing", "/run?at=none", "/run?at=run", "/job/99")
    ]
    for answer in [*answers, stranger.get("/"), page.client.get("/run/matches?at=run&start=x")]:
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "'unsafe-inline'" not in re.search("script-src [^;]*", POLICY)[0]
    assert re.search("default-src [^;]*", POLICY)[0] == "default-src 'none'"


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nothing", 404, "There is no page of this address."),
        ("/job/x", 422, "A value in this address is not one that the page understands. "),
        ("/run", 422, "A value in this address is not one that the page understands. "),
        ("/link", 405, "This address cannot be used in this way. "),
    ],
)
def test_addresses_that_are_wrong_are_answered_in_words(page, path, status, said):
    answer = page.client.get(path)
    assert answer.status_code == status
    assert f'role="alert">{said}' in answer.text
    told = page.client.get(path, headers={"accept": "application/json"})
    assert told.json()["error"].startswith(said)


# Which files it sees.

ESCAPES = [
    "../secret.csv", "/etc/passwd", "door/secret.csv", "out.csv", "run/../../secret.csv", "a\0b", "", ".", "..",
    ".keyless-ui/jobs", ".keyless-ui/lock", "\\..\\secret.csv", "//etc/passwd", "door",
]  # fmt: skip


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leads_out_of_the_folder(page, path):
    client = page.client
    got = [
        client.get("/new", params={"file": ["clinic.csv", path]}),
        client.get("/run", params={"at": path}),
        client.get("/review", params={"at": path}),
        client.get("/download", params={"at": path, "what": "folder"}),
        client.post("/forget", data={"file": path}),
        client.post("/link", data={"file": ["clinic.csv", path]}),
        client.post("/again", data={"at": path}),
    ]
    assert [one.status_code for one in got] == [400] * len(got)
    inspected = client.post("/inspect", data={"file": path, "number": "0"})
    assert 'role="alert"' in inspected.text
    assert "root:" not in inspected.text
    if path:  # nothing chosen is allowed
        form = {"file": ["clinic.csv", "lab.csv"], "known-pairs": path}
        assert client.post("/link", data=form).status_code == 400


def test_links_and_hidden_folders_are_not_listed(page):
    listed = {file.path for file in page.folder.files() if not file.uploaded}
    assert listed == {"clinic.csv", "lab.csv", "bad.csv"}
    assert page.folder.runs() == ["run"]


def test_names_that_are_no_text_and_many_files_do_not_hide_runs(tmp_path, start):
    (tmp_path / "run").symlink_to(start / "run")  # a link, which is passed over
    shutil.copytree(start / "run", tmp_path / "zz" / "run")
    for number in range(600):
        (tmp_path / f"{number:03d}.csv").write_text("x\n1\n")
    with contextlib.suppress(OSError):  # some file systems refuse it
        (tmp_path / os.fsdecode(b"\xff.csv")).write_text("x\n1\n")
    page = Page(tmp_path)
    assert page.folder.runs() == ["zz/run"]
    assert [one.path for one in page.folder.files()] == [f"{number:03d}.csv" for number in range(500)]
    assert page.client.get("/").status_code == 200
    assert page.client.get("/run", params={"at": "zz/run"}).status_code == 200
    page.close()


def test_a_run_whose_files_are_links_is_refused(start, page):
    trap = start / "trap"
    trap.mkdir()
    (trap / "run.json").write_text((start / "run" / "run.json").read_text())
    (trap / "links.keyless").symlink_to(start / "run" / "links.keyless")
    try:
        answer = page.client.get("/run", params={"at": "trap"})
        assert answer.status_code == 400
        assert "links.keyless is a link" in answer.text
    finally:
        for path in trap.iterdir():
            path.unlink()
        trap.rmdir()


def send(client, name, content):
    return client.put("/upload", content=content, headers={"x-file-name": name, "accept": "application/json"})


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("clinic.csv", "clinic.csv"),
        ("../../evil.csv", "evil.csv"),
        ("..\\..\\evil.CSV", "evil.csv"),
        ("%2Fetc%2Fpasswd.csv", "passwd.csv"),
        ("%00%0A.csv", "table.csv"),
        ("%3Cscript%3Ealert(1)%3C%2Fscript%3E.csv", "script.csv"),
        ("con.csv", "_con.csv"),
        (".csv", "table.csv"),
        ("-rf.csv", "rf.csv"),
        ("Löwe 1.csv.gz".encode().hex(), None),
    ],
)
def test_names_of_uploads_are_never_paths(page, name, kept):
    before = set(page.folder.root.parent.rglob("*"))
    answer = send(page.client, name, f"x,y\n{len(name)},{name!r}\n".encode())
    if kept is None:
        assert answer.status_code == 400
        assert "must be a table file" in answer.json()["error"]
        assert set(page.folder.root.parent.rglob("*")) == before
        return
    fresh = set(page.folder.root.parent.rglob("*")) - before
    files = [path for path in fresh if path.is_file()]
    assert [path.name for path in files] == [kept]
    assert files[0].parent.parent == page.folder.own / "uploads"
    assert "<script" not in answer.json()["line"]
    assert page.client.post("/forget", data={"file": page.folder.relative(files[0])}).status_code == 200
    assert set(page.folder.root.parent.rglob("*")) == before


def test_uploads_are_limited_in_size_whatever_the_browser_says(page):
    def chunks():
        for _ in range(30):
            yield b"1,2\n" * 1000

    for content in (b"1,2\n" * 3000, chunks()):
        answer = send(page.client, "big.csv", content)
        assert answer.status_code == 400
        assert "big.csv: must have at most 0.01 MB" in answer.json()["error"]
        assert "--max-upload" in answer.json()["error"]
    assert send(page.client, "none.csv", b"").status_code == 400
    assert list((page.folder.own / "uploads").iterdir()) == []


def test_uploads_are_limited_in_number(tmp_path):
    page = Page(tmp_path)
    for number in range(MOST_UPLOADS):
        (tmp_path / ".keyless-ui" / "uploads" / str(number)).mkdir()
    assert str(MOST_UPLOADS) in send(page.client, "one-more.csv", b"x\n1\n").json()["error"]
    page.close()


# What is said of files.


@pytest.mark.slow
def test_a_bad_file_has_the_command_lines_message_beside_it(page):
    done = subprocess.run(
        [sys.executable, "-c", "from keyless.cli import main; main()", "inspect", "bad.csv"],
        cwd=page.folder.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    said = done.stderr.strip().removeprefix("keyless: ")
    answer = page.client.post("/inspect", data={"file": "bad.csv", "number": "1"})
    shown = re.search('role="alert">(.*?)</p>', answer.text, flags=re.DOTALL)[1]
    assert shown.replace("&#39;", "'").replace("&#34;", '"') == said


@pytest.mark.slow
def test_columns_can_be_changed_by_menu(page):
    told = {"file": "clinic.csv", "number": "1", "kind-1": ["category x", "drop y"]}
    changed = page.client.post("/inspect", data=told).text
    kinds = dict(re.findall(r'<th scope="row"><bdi class="s">(\w+)</bdi></th><td>([^<]*)</td>', changed))
    assert kinds == {"id": "id", "x": "category", "y": "left out"}
    assert "3 rows" in changed
    assert '<option value="category x" selected>' in changed
    assert '<option value="category id">' in changed
    assert 'data-names="[&#34;x&#34;, &#34;y&#34;]"' in changed, "no group and no shared column: it names the rows"


def test_the_form_becomes_the_words_of_a_command(page):
    form = {
        "file": ["clinic.csv", "lab.csv"], "kind-0": ["category x", ""], "kind-1": ["drop u", "id id"],
        "decimal-1": [","], "within": ["site"], "shared": ["a=b\nc"], "missing": ["?\n--out=/etc"], "max-time": ["30"],
        "known-pairs": [""], "missingness": ["yes"], "repeats": ["1"],
    }  # fmt: skip
    assert form_words(page.folder, form) == [
        "link", "clinic.csv", "lab.csv", "--as-category=clinic:x", "--missing=?", "--missing=--out=/etc",
        "--drop=lab:u", "--id=lab:id", "--decimal=lab:,", "--within=site", "--shared=a=b", "--shared=c",
        "--repeats=lab", "--max-time=30", "--missingness",
    ]  # fmt: skip
    with pytest.raises(InputError, match="at least two"):
        form_words(page.folder, {"file": ["clinic.csv"]})


def test_columns_with_odd_names_keep_what_is_chosen_for_them(tmp_path):
    """Browsers send a line break as two characters; a column may have no name."""
    for name in ("one.csv", "two\nlines.csv"):
        (tmp_path / name).write_text('"a\nb",,c\n1,2,3\n')
    page = Page(tmp_path)
    form = {"file": ["one.csv", "two\r\nlines.csv"], "kind-0": ["drop a\r\nb", "id "], "kind-1": [""]}
    assert page.client.post("/link", data=form, follow_redirects=False).status_code == 303
    words = page.jobs.all()[0].words
    page.close()
    assert words[:5] == ("link", "one.csv", "two\nlines.csv", "--drop=one:a\nb", "--id=one:")


# The result.


def lines(page, **query):
    return page.client.get("/run/matches", params={"at": "run", "most": 500} | query).json()


def test_pages_of_matches_are_the_matches(page, clinic_lab_and_watch):
    matches = clinic_lab_and_watch.matches
    got = lines(page)
    assert (got["total"], got["all"]) == (len(matches), len(matches))
    shown = [(one["id"], one["name"], one["match"]) for one in got["lines"]]
    expected = matches[["reference_id", "table", "row_id"]].astype(object)
    assert shown == [(a, b, None if pd.isna(c) else c) for a, b, c in expected.itertuples(index=False)]
    parts = [one for start in range(0, 120, 50) for one in lines(page, start=start, most=50)["lines"]]
    assert parts == got["lines"]


def test_filters_search_and_order_of_matches(page, clinic_lab_and_watch):
    matches = clinic_lab_and_watch.matches
    there = matches["row_id"].notna()
    for threshold in (0.5, 0.9, 0.999):
        sure = matches["probability"] >= threshold
        got = {show: lines(page, show=show, threshold=threshold) for show in ("kept", "check", "alone")}
        assert got["kept"]["total"] == got["kept"]["kept"] == (there & sure).sum()
        assert got["check"]["total"] == got["check"]["below"] == (~sure).sum()
        assert got["alone"]["total"] == (~there).sum()
        assert abs(got["kept"]["right"] - matches["probability"][there & sure].sum()) <= 0.5
    assert lines(page, table=1)["total"] == 60
    wanted = matches.iloc[17]
    for text in (wanted["reference_id"], wanted["row_id"].lower()):
        found = lines(page, search=text)
        assert wanted["reference_id"] in [one["id"] for one in found["lines"]]
        assert found["total"] < 15
    down = lines(page, sort="probability", down="true")["lines"]
    order = np.argsort(-np.floor(matches["probability"] * 1e4 + 1e-9), kind="stable")
    assert [one["id"] for one in down] == matches["reference_id"].iloc[order].tolist()
    names = [one["match"] for one in lines(page, sort="match", table=1)["lines"]]
    assert names == [*sorted(filter(None, names)), *[None] * 10], "no partner comes last"
    for bad in ({"show": "x"}, {"sort": "x"}, {"threshold": "nan"}, {"start": -5}):
        assert page.client.get("/run/matches", params={"at": "run"} | bad).status_code in (200, 400)


def test_the_result_has_the_reports_sections_and_what_repeats_it(page):
    text = page.client.get("/run?at=run").text
    for heading in ("How many rows, and how sure?", "Is it more than chance?", "What was left out, and why?"):
        assert heading in text
    assert '<code id="command">keyless link clinic.csv lab.csv watch.csv --out=run</code>' in text
    assert "random_state=3" in text
    assert "within=[&#39;ward&#39;]" in text


def test_a_run_that_was_stopped_says_so(clinic_lab_and_watch, tmp_path):
    status = Status("stopped", "Stopped when asked to.")
    options = runs.to_toml({"tables": ["clinic.csv", "lab.csv", "watch.csv"]}, title="x")
    runs.write_run(replace(clinic_lab_and_watch, status=status), tmp_path / "run", configuration=options)
    page = Page(tmp_path)
    text = page.client.get("/run?at=run").text
    page.close()
    assert "<li>Stopped when asked to.</li>" in text
    assert "These lines search to the end, and may find more." in text


def test_a_row_shows_both_records_all_columns_and_candidates(page, clinic_lab_and_watch):
    links = clinic_lab_and_watch
    row = 7
    text = page.client.get("/run/row", params={"at": "run", "table": 0, "row": row}).text
    partner = links.tables[1].row_ids[links.permutations["lab"][row]]
    assert f'row <bdi class="s">{links.tables[0].row_ids[row]}</bdi>' in text
    assert f'row <bdi class="s">{partner}</bdi>' in text
    assert "seen by nurse 7 at noon" in text, "a column that is not used for linking helps to look a row up"
    nats = [float(one) for one in re.findall(r'<td class="n nats chance">([+-][\d.]+)<', text)]
    told = float(re.search(r"tell ([+-][\d.]+) nats", text)[1])
    assert abs(sum(nats) - told) < 0.01 * len(nats) + 0.05, "contributions add up"
    blind = page.client.get("/run/row", params={"at": "run", "table": 0, "row": row, "blind": "true"}).text
    assert "probability" not in blind
    assert "Candidates" not in blind
    for bad in (
        {"table": 9, "row": 0},
        {"table": 0, "row": 60},
        {"table": 0, "row": -1},
        {"table": 0, "row": 0, "partner": 99},
    ):
        assert page.client.get("/run/row", params={"at": "run"} | bad).status_code == 400


@pytest.mark.parametrize("form", ["csv", "xlsx", "parquet"])
def test_downloads_hold_the_matches_and_the_joined_table(page, clinic_lab_and_watch, form):
    readers = {"csv": pd.read_csv, "xlsx": partial(pd.read_excel, engine="openpyxl"), "parquet": pd.read_parquet}
    got = page.client.get("/download", params={"at": "run", "what": "matches", "form": form})
    assert f'filename="run-matches.{form}"' in got.headers["content-disposition"]
    frame = readers[form](io.BytesIO(got.content))
    expected = clinic_lab_and_watch.matches
    assert frame["reference_id"].tolist() == expected["reference_id"].tolist()
    np.testing.assert_allclose(frame["probability"], expected["probability"])
    got = page.client.get("/download", params={"at": "run", "what": "joined", "form": form})
    assert len(readers[form](io.BytesIO(got.content))) == 60


def test_matches_that_reach_the_threshold_can_be_downloaded(page, clinic_lab_and_watch):
    matches = clinic_lab_and_watch.matches
    for threshold in (0.5, 0.9):
        asked = {"at": "run", "what": "matches", "form": "csv", "threshold": threshold}
        frame = pd.read_csv(io.BytesIO(page.client.get("/download", params=asked).content))
        kept = matches[matches["row_id"].notna() & (matches["probability"] >= threshold)]
        assert 0 < len(kept) < len(matches)
        assert frame["row_id"].tolist() == kept["row_id"].tolist()


def test_the_run_folder_can_be_downloaded_whole(page, start):
    got = page.client.get("/download", params={"at": "run", "what": "folder"})
    with zipfile.ZipFile(io.BytesIO(got.content)) as packed:
        for name in json.loads((start / "run" / "run.json").read_text())["files"]:
            assert packed.read(f"run/{name}") == (start / "run" / name).read_bytes()
    assert page.client.get("/download", params={"at": "run", "what": "x"}).status_code == 400


def test_hostile_names_and_cells_are_shown_and_not_run(hostile_links, tmp_path):
    name, link = next(iter(hostile_links.found.items()))
    even = np.full_like(link.probability, 1 / len(link.probability))
    link = replace(link, probability=even, margin=even, coupling=np.tile(even, (len(even), 1)))
    runs.write_run(replace(hostile_links, found={name: link}), tmp_path / "run")
    page = Page(tmp_path)
    texts = [page.client.get(path, params={"at": "run"}).text for path in ("/run", "/review")]
    texts.append(page.client.get("/run/row", params={"at": "run", "table": 0, "row": 0}).text)
    texts.append(page.client.get("/", params={}).text)
    for text in texts:
        assert "<script>window" not in text
        assert "<img src=x" not in text
    assert "&lt;script&gt;window" in texts[0]
    assert "&lt;script&gt;window" in texts[2]
    got = page.client.get("/run/matches", params={"at": "run"})
    assert got.headers["content-type"] == "application/json"
    page.close()


# The review.


def test_a_row_that_is_shown_alone_has_its_columns_in_the_order_of_the_table(page, clinic_lab_and_watch):
    cells = page.desk.run("run").alone("lab", 3)["sides"][0]["cells"]
    shown, columns = [one["column"] for one in cells], clinic_lab_and_watch.tables[0].all_columns
    assert len(shown) > 4
    assert shown == [str(name) for name in columns if str(name) in shown]


@pytest.fixture
def reviewed(start, tmp_path):
    """A page of its own, over a copy of the run."""
    shutil.copytree(start / "run", tmp_path / "start" / "run")
    for name in ("clinic", "lab", "watch"):
        (tmp_path / "start" / f"{name}.csv").write_text("x\n1\n")
    page = Page(tmp_path / "start")
    yield page
    page.close()


def asked(page):
    text = page.client.get("/review", params={"at": "run"}).text
    found = re.search(r'name="table" value="(\d+)"><input type="hidden" name="row" value="(\d+)"', text)
    return text, None if found is None else {"at": "run", "table": found[1], "row": found[2]}


def pairs(page):
    return pd.read_csv(page.folder.root / "run" / "pairs.csv", keep_default_na=False, dtype=str)


def test_answers_are_saved_at_once_and_can_be_taken_back(reviewed, clinic_lab_and_watch):
    links, page = clinic_lab_and_watch, reviewed
    text, first = asked(page)
    assert f"<b>{review.CHOSEN + review.DRAWN}</b> questions are left" in text
    page.client.post("/review/answer", data=first | {"said": "same"})
    written = pairs(page)
    names = list(links.found)
    partner = re.findall(r'<h3><bdi class="s">\w+</bdi>: row <bdi class="s">([^<]+)</bdi></h3>', text)[-1]
    reference = links.tables[0].row_ids[int(first["row"])]
    assert written[["reference_id", "table", "row_id", "answer"]].values.tolist() == [
        [reference, names[int(first["table"])], partner, "same"]
    ]
    text, second = asked(page)
    assert second != first
    assert f"<b>{review.CHOSEN + review.DRAWN - 1}</b> questions are left" in text
    page.client.post("/review/answer", data=second | {"said": "not the same"})
    assert pairs(page)["row_id"].tolist() == [partner, ""]
    assert pairs(page)["not_row_id"].tolist()[1]
    page.client.post("/review/undo", data={"at": "run"})
    assert len(pairs(page)) == 1
    assert asked(page)[1] == second, "the question comes again"
    _, third = asked(page)
    page.client.post("/review/answer", data=third | {"said": "cannot tell"})
    assert pairs(page).iloc[1][["row_id", "not_row_id", "answer"]].tolist() == ["", "", "cannot tell"]
    # Another server reads the same answers from the folder alone.
    again = Page(page.folder.root)
    text, now = asked(again)
    assert f"<b>{review.CHOSEN + review.DRAWN - 2}</b> questions are left" in text
    assert now not in (first, third)
    again.close()
    runs.read_run(page.folder.root / "run")


def test_it_is_another_row_and_what_cannot_be(reviewed, clinic_lab_and_watch):
    page, links = reviewed, clinic_lab_and_watch
    _, form = asked(page)
    name = list(links.found)[int(form["table"])]
    labels = links.tables[links._number(name)].row_ids
    wrong = page.client.post("/review/answer", data=form | {"said": "row", "partner": "no such row"})
    assert "has no row" in wrong.text
    page.client.post("/review/answer", data=form | {"said": "row", "partner": labels[5]})
    assert pairs(page)["row_id"].tolist() == [labels[5]]
    # The same question from a window that is behind.
    late = page.client.post("/review/answer", data=form | {"said": "same"})
    assert "answered already" in late.text
    # A row has one partner.
    while (form := asked(page)[1])["table"] != str(list(links.found).index(name)):
        page.client.post("/review/answer", data=form | {"said": "cannot tell"})
    taken = page.client.post("/review/answer", data=form | {"said": "row", "place": "5"})
    assert "already said to be the partner of another row" in taken.text
    for odd in ({"said": "maybe"}, {"said": "same", "row": "9999"}, {}):
        page.client.post("/review/answer", data=form | odd)
    assert (pairs(page)["row_id"] != "").sum() == 1
    found = page.client.get("/run/ids", params={"at": "run", "table": 0, "search": labels[5][-3:]}).json()
    assert found == [one for one in links.tables[1].row_ids if labels[5][-3:] in one]


def answer_all(page, links, truth):
    """Answer a round by a truth; returns whether each answer was held out."""
    names = list(links.found)
    while (form := asked(page)[1]) is not None:
        partner = truth(names[int(form["table"])], int(form["row"]))
        page.client.post("/review/answer", data=form | {"said": "row", "place": str(partner)})


def test_held_out_answers_tell_the_share_and_are_not_given_to_the_next_link(reviewed, clinic_lab_and_watch):
    page, links = reviewed, clinic_lab_and_watch

    # By this truth every match is wrong, but for the rows of which nobody is matched twice.
    def truth(name, row):
        match = int(links.permutations[name][row])
        return match if row % 2 and match >= 0 else (row * 7 + 3) % links.found[name].coupling.shape[1]

    answer_all(page, links, truth)
    text, _ = asked(page)
    assert "This round is done" in text
    assert f"{review.CHOSEN} known pairs, 0 not the same, 0 cannot tell, {review.DRAWN} held out" in text
    assert 'id="again"' in text
    written = pairs(page)
    held = written[written["held_out"] == "yes"]
    assert len(written) == review.CHOSEN + review.DRAWN
    assert len(held) == review.DRAWN
    ids = {str(label): k for k, label in enumerate(links.tables[0].row_ids)}
    right = 0
    for one in held.itertuples():
        match = links.permutations[one.table][ids[one.reference_id]]
        right += match >= 0 and links.tables[links._number(one.table)].row_ids[match] == one.row_id
    expected = rate(right, len(held))
    shown = re.search(r'id="share">Of (\d+) rows .*?, (\d+) (?:is|are) .* between (\d+)% and (\d+)%', text)
    assert [int(one) for one in shown.groups()] == [
        len(held), right, round(100 * expected.low), round(100 * expected.high),
    ]  # fmt: skip
    page.client.post("/again", data={"at": "run"}, follow_redirects=False)
    job = page.jobs.all()[0]
    given = next(word for word in job.words if word.startswith("--known-pairs=")).partition("=")[2]
    known = read_pairs(page.folder.root / given, links.tables, option="--known-pairs")
    used = written[written["held_out"] == "no"]
    assert {(a, n, b) for n, both in known.items() for a, b in both} == set(
        used[["reference_id", "table", "row_id"]].itertuples(index=False, name=None)
    )
    # The file of the run itself is one of known pairs, too.
    whole = read_pairs(page.folder.root / "run" / "pairs.csv", links.tables, option="--known-pairs")
    assert sum(map(len, whole.values())) == len(written)


def test_pairs_of_files_go_along_when_a_run_is_linked_again(clinic_lab_and_watch, tmp_path):
    """What the link was told is what the files of its first run said; a later answer about a row replaces it."""
    links = clinic_lab_and_watch
    told = {"known": {"lab": [[0, 5], [1, 6], [2, 8], [4, 9]], "watch": [[0, 3]]}, "forbidden": {"lab": [[2, 7]]}}
    links = replace(links, choices=dict(links.choices) | {"told": told})
    rows, lab, watch = (table.row_ids for table in links.tables)
    answers = [
        review.Answer(rows[1], "lab", lab[20], "same", lab[6]),  # not 6, as the file says
        review.Answer(rows[3], "lab", lab[5], "same"),  # whom the file gave to row 0
        review.Answer(rows[9], "lab", lab[30], "same", held_out=True),
    ]
    carried = [review.Answer(rows[2], "lab", lab[8], "same")]  # an earlier answer, taken back since
    places = review.known_files(tmp_path, links, answers, carried=carried)
    known, forbidden = (read_pairs(place, links.tables, option="--known-pairs") for place in places)
    assert set(known["lab"]) == {(rows[1], lab[20]), (rows[3], lab[5]), (rows[4], lab[9])}
    assert set(known["watch"]) == {(rows[0], watch[3])}
    assert set(forbidden["lab"]) == {(rows[1], lab[6]), (rows[2], lab[7])}


@pytest.mark.slow
def test_the_page_gives_the_pairs_of_files_to_the_next_link(clinic_lab_and_watch, tmp_path):
    links = clinic_lab_and_watch
    links = replace(links, choices=dict(links.choices) | {"told": {"known": {"lab": [[7, 11]]}}})
    options = {"tables": ["clinic.csv", "lab.csv", "watch.csv"], "known-pairs": "gone.csv"}
    (tmp_path / "start").mkdir()
    for name in ("clinic", "lab", "watch"):
        (tmp_path / "start" / f"{name}.csv").write_text("x\n1\n")
    runs.write_run(links, tmp_path / "start" / "run", configuration=runs.to_toml(options, title="x"))
    page = Page(tmp_path / "start")
    answer_all(page, links, lambda name, row: (row * 7 + 3) % links.found[name].coupling.shape[1])
    page.client.post("/again", data={"at": "run"}, follow_redirects=False)
    given = next(word for word in page.jobs.all()[0].words if word.startswith("--known-pairs=")).partition("=")[2]
    known = read_pairs(page.folder.root / given, links.tables, option="--known-pairs")
    page.close()
    assert (links.tables[0].row_ids[7], links.tables[1].row_ids[11]) in known["lab"]
    assert len(known["lab"]) > 1


@pytest.mark.slow
def test_the_share_of_a_run_that_was_linked_again_is_called_rough(reviewed, clinic_lab_and_watch):
    page, links = reviewed, clinic_lab_and_watch
    answer_all(page, links, lambda name, row: (row * 7 + 3) % links.found[name].coupling.shape[1])
    assert "Some of these answers were given about an earlier run" not in asked(page)[0]
    page.client.post("/again", data={"at": "run"}, follow_redirects=False)
    job = page.jobs.all()[0]
    words = dict(word[2:].split("=", 1) for word in job.words if "=" in word)
    files = {name: words[name] for name in ("known-pairs", "forbid") if name in words}
    options = {"tables": ["clinic.csv", "lab.csv", "watch.csv"], **files}
    runs.write_run(links, page.folder.root / job.run, configuration=runs.to_toml(options, title="x"))
    text = page.client.get("/review", params={"at": job.run}).text
    assert "Some of these answers were given about an earlier run" in text
    assert 'id="again"' not in text, "the run was linked with these answers"
    page.client.post("/review/undo", data={"at": job.run})
    page.client.post("/review/undo", data={"at": job.run})
    assert 'id="again"' in page.client.get("/review", params={"at": job.run}).text


def test_rows_drawn_at_random_are_matched_and_never_ones_that_the_link_was_told(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    told = {"told": {"known": {"lab": [[row, 0] for row in range(0, 60, 2)]}}}
    knowing = replace(links, choices=dict(links.choices) | told)
    drawn = {(one.table, one.row) for one in review._drawn(knowing, set(), 120)}
    matched = {name: np.flatnonzero(links.permutations[name] >= 0).tolist() for name in ("lab", "watch")}
    assert 0 < len(matched["watch"]) < 60, "some rows have no match"
    lab = {("lab", row) for row in matched["lab"] if row % 2}
    assert drawn == lab | {("watch", row) for row in matched["watch"]}
    assert all(one.held_out for one in review._drawn(knowing, set(), 120))


def test_the_share_is_that_of_matches(clinic_lab_and_watch):
    links = clinic_lab_and_watch
    rows, watch = links.tables[0].row_ids, links.tables[2].row_ids
    match = links.permutations["watch"]
    alone, (one, two) = int(np.flatnonzero(match < 0)[0]), np.flatnonzero(match >= 0)[:2].tolist()
    answers = [
        review.Answer(rows[alone], "watch", watch[0], "same", held_out=True),
        review.Answer(rows[one], "watch", watch[match[one]], "same", held_out=True),
        review.Answer(rows[two], "watch", "", "not the same", watch[match[two]], held_out=True),
    ]
    assert review.share(links, answers[:1]) is None, "a row without match is no match that is wrong"
    assert review.share(links, answers) == rate(1, 2)


def test_ids_that_a_spreadsheet_would_run_survive_in_the_file(linked_by_hand, tmp_path):
    ids = ["=1+1", "+49 30", "@me", "a,b", 'say "so"', "two\nlines", "-cmd|x", " plain"]
    values = np.random.default_rng(3).normal(size=(len(ids), 2))
    tables = {name: pd.DataFrame(values * k, columns=["x", "y"], index=ids) for k, name in ((1, "a"), (2, "b"))}
    links = linked_by_hand(tables, [np.arange(len(ids))], rank=1)
    answers = [review.Answer(one, "b", one, "same", held_out=k % 2 == 1) for k, one in enumerate(ids)]
    review.write(tmp_path, answers)
    assert review.read(tmp_path, links) == answers
    assert "\n=1" not in (tmp_path / "pairs.csv").read_text()
    (tmp_path / "pairs.csv").write_text("reference_id,table,row_id\nnobody,b,@me\n")
    with pytest.raises(InputError, match="line 2"):
        review.read(tmp_path, links)


# The work.


def until(jobs, number, *states, seconds=30):
    end = time.monotonic() + seconds
    while jobs.get(number).state not in states:
        assert time.monotonic() < end, jobs.get(number)
        time.sleep(0.05)
    return jobs.get(number)


@pytest.mark.slow
def test_work_that_fails_says_why_and_the_next_one_begins(tmp_path):
    (tmp_path / "one.csv").write_text("x\n1\n2\n")
    (tmp_path / "empty.csv").write_text("")
    jobs = Jobs(tmp_path / "jobs", tmp_path)
    first = jobs.add("first", ["link", "one.csv", "none.csv"])
    second = jobs.add("second", ["link", "one.csv", "empty.csv"])
    third = jobs.add("third", ["link", "one.csv", "none.csv"])
    assert jobs.ahead(third) == 2
    jobs.stop(third.number)
    assert jobs.get(third.number).state == "stopped", "it was waiting"
    assert "none.csv: must be a table file; there is no such file" in until(jobs, first.number, "failed").message
    assert "empty.csv" in until(jobs, second.number, "failed").message
    jobs.remove(first.number)
    assert [job.run for job in jobs.all()] == ["third", "second"]
    jobs.close()
    again = Jobs(tmp_path / "jobs", tmp_path)
    assert [job.run for job in again.all()] == ["third", "second"], "what was asked for is kept in files"
    again.close()


def test_a_job_that_ran_when_the_server_was_killed_can_go_on(tmp_path):
    jobs = Jobs(tmp_path / "jobs", tmp_path)
    jobs.close()
    place = tmp_path / "jobs" / "4"
    place.mkdir()
    kept = vars(Job(4, "run", ("link", "a.csv"), state="running", started=time.time() - 5000))
    (place / "job.json").write_text(json.dumps(kept))
    (place / "progress.json").write_text('{"seconds": 6.0, "stages": []}')
    (tmp_path / "jobs" / "5").mkdir()
    (tmp_path / "jobs" / "5" / "job.json").write_text('{"number": 5, "ru')
    again = Jobs(tmp_path / "jobs", tmp_path)
    assert [job.number for job in again.all()] == [4]
    assert again.get(4).state == "cut off"
    assert job_view(again.get(4), again.progress(4), ahead=0)["seconds"] == "6 s", "it did not work in between"
    assert again.get(4).can_go_on
    again.close()


def test_files_of_the_folder_that_are_called_like_modules_are_not_run(tmp_path):
    for name in ("json", "numpy", "keyless"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the start folder was run')")
    assert run_command(["--version"], cwd=tmp_path, seconds=60).strip()
    jobs = Jobs(tmp_path / "jobs", tmp_path)
    number = jobs.add("run", ["link", "one.csv", "two.csv"]).number
    assert "one.csv: must be a table file" in until(jobs, number, "failed").message
    jobs.close()


def test_the_page_lives_when_the_work_dies(page):
    number = page.jobs.add("killed", ["link", "clinic.csv", "lab.csv"]).number
    until(page.jobs, number, "running")
    time.sleep(0.2)
    page.jobs._child.kill()
    assert until(page.jobs, number, "cut off").message.startswith("The work was ended from outside")
    text = page.client.get(f"/job/{number}").text
    assert "Go on from the last finished stage" in text
    assert page.client.get("/").status_code == 200
    page.client.post(f"/job/{number}/remove")
    assert page.client.get(f"/job/{number}").status_code == 400


def test_python_lines_say_what_the_command_said(clinic_lab_and_watch):
    options = {
        "tables": ["clinic.csv", "my lab.csv"], "id": ["clinic:patient"], "missing": ["?"], "decimal": ["lab:,"],
        "skip": ["2"], "shared": ["a=b"], "seed": 0, "max-time": 5.0, "scales": "auto", "missingness": False,
    }  # fmt: skip
    text = python_lines(options, clinic_lab_and_watch)
    calls = []
    code = text.replace("import keyless\n", "")
    exec(code, {"keyless": type("K", (), {"link": staticmethod(lambda *a, **k: calls.append((a, k)))})})
    (tables,), given = calls[0]
    assert tables == {"clinic": "clinic.csv", "my lab": "my lab.csv"}
    reading = given.pop("reading")
    assert reading.id == ("clinic:patient",)
    assert reading.missing[-1] == "?"
    assert len(reading.missing) > 5
    assert (reading.decimal, reading.skip) == ({"lab": ","}, {"": 2})
    assert given == {"shared": {"a": "b"}, "random_state": 0, "max_time": 5.0}


def test_python_lines_read_ids_as_their_tables_have_them(linked_by_hand, tmp_path, monkeypatch):
    values = np.random.default_rng(3).normal(size=(6, 2))
    names = pd.Index([f"S{k}" for k in range(6)])
    tables = {name: pd.DataFrame(values * (k + 1), columns=["x", "y"]) for k, name in enumerate("abc")}
    tables["c"].index = names
    links = linked_by_hand(tables, [np.arange(6)] * 2, rank=1)
    monkeypatch.chdir(tmp_path)
    Path("known.csv").write_text("reference_id,table,row_id\n0,b,1\n2,c,S3\n4,b,\n")
    text = python_lines({"tables": ["a.csv", "b.csv", "c.csv"], "known-pairs": "known.csv"}, links)
    calls = []
    code = text.replace("import keyless\n", "")
    exec(code, {"keyless": type("K", (), {"link": staticmethod(lambda *_, **given: calls.append(given))})})
    assert calls[0]["known_pairs"].to_numpy().tolist() == [[0, "b", 1], [2, "c", "S3"]]


def test_progress_is_kept_in_a_file_for_other_programs(tmp_path):
    from keyless.cli.progress import _into_file
    from keyless.progress import Stages

    now = iter([0.0, 1.0, 1.2, 3.0, 3.1, 3.2, 3.3]).__next__
    stages, heard = Stages(clock=now), []
    path = tmp_path / "progress.json"
    stages.after = _into_file(stages, path, also=lambda stage: heard.append(stage.step))
    stages("search", 1, 4, float("nan"))
    first = json.loads(path.read_text())
    assert [(one["name"], one["step"], one["objective"]) for one in first["stages"]] == [("search", 1, None)]
    stages("search", 2, 4, 2.5)
    kept = json.loads(path.read_text())["stages"][0]
    assert (kept["step"], kept["total"], kept["objective"], kept["left"]) == (2, 4, 2.5, 3.0)
    assert heard == [1, 2], "lines on stderr are told as before"
    path.unlink()
    path.mkdir()
    stages("chance", 1, 3, 1.0)  # a file that cannot be written does not end the work
    assert heard == [1, 2, 1]


def test_the_work_is_told_in_words():
    job = Job(1, "run", (), state="running", started=time.time() - 20)
    stages = [
        {"name": "search", "seconds": 5.0, "step": 3, "total": 0, "objective": 2.25, "left": None},
        {"name": "chance", "seconds": 9.0, "step": 1, "total": 3, "objective": 9.9, "left": 18.4},
    ]
    view = job_view(job, {"seconds": 14.0, "stages": stages}, ahead=0)
    assert view["best"] == "2.2", "what chance reaches is not the best so far"
    assert [one["name"] for one in view["stages"]] == [
        "Trying ways to fit the tables", "Measuring what chance reaches",
    ]  # fmt: skip
    assert view["stages"][1]["left"] == "about 12 s left", "six of the eighteen seconds have passed since"
    assert (view["seconds"], view["stages"][0]["left"]) == ("20 s", "")
    assert [one["seconds"] for one in view["stages"]] == ["5 s", "15 s"], "and count for the stage at work"
    shown = " ".join(templates().get_template("job-state.html").render(job=view | {"has_result": False}).split())
    assert "20 s so far. Best so far: 2.2 nats a row" in shown
    limited = job_view(replace(job, words=("link", "a", "b", "--max-time=90")), {}, ahead=0)
    assert limited["rest"] in ("1 min 10 s", "1 min 9 s")
    for odd in (replace(job, words=("--max-time=inf",)), replace(job, words=("--max-time=9",), state="done")):
        assert job_view(odd, {}, ahead=0)["rest"] == ""
    assert "1 of 3, 15 s" in shown
    assert "3 of" not in shown, "how far a stage came that is over tells nothing"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "parquet", "xlsx", "h5ad"])
def test_files_of_many_kinds_can_be_dropped(page, tmp_path, ending):
    frame = pd.DataFrame({"x": [1.5, 2.5, 4.0], "y": [3.0, 1.0, 2.0]})
    path = tmp_path / f"table.{ending}"
    if ending == "parquet":
        frame.to_parquet(path)
    elif ending == "xlsx":
        frame.to_excel(path, index=False)
    elif ending == "h5ad":
        anndata = pytest.importorskip("anndata", reason="anndata is not installed: pip install '.[anndata]'")
        frame.index = ["a", "b", "c"]
        anndata.AnnData(frame).write_h5ad(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    page.folder.max_upload = 10**6
    line = send(page.client, path.name, path.read_bytes()).json()["line"]
    stored = re.search('value="([^"]+)"', line)[1]
    text = page.client.post("/inspect", data={"file": stored, "number": "0"}).text
    assert "<b>3 rows</b>, 2 columns" in text
    page.client.post("/forget", data={"file": stored})
    page.folder.max_upload = 10_000


# The command.


def test_the_command_says_which_extra_is_missing(monkeypatch, capsys):
    from keyless.cli import main

    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SystemExit) as left:
        main(["ui", "--no-browser"])
    assert left.value.code == 2
    assert 'pip install "keyless[ui]"' in capsys.readouterr().err


def started(folder, *more):
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", "from keyless.cli import main; main()", "ui", "--no-browser", *more],
        cwd=folder, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    line = child.stderr.readline()
    return child, re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", line)


def test_an_address_can_be_opened_before_the_server_runs():
    with server._listening(0) as listening, socket.create_connection(listening.getsockname(), timeout=5) as opened:
        assert opened.getpeername() == listening.getsockname()


@pytest.mark.slow
def test_the_command_serves_this_machine_only_one_page_a_folder_and_ends_on_ctrl_c(tmp_path):
    child, found = started(tmp_path)
    try:
        with httpx.Client(follow_redirects=True) as client:
            assert client.get(f"http://127.0.0.1:{found[1]}/").status_code == 403
            assert "Which rows of your tables" in client.get(found[0]).text
        with open(f"/proc/{child.pid}/net/tcp") as listing:
            ports = [line.split()[1] for line in listing.readlines()[1:] if line.split()[3] == "0A"]
        assert f"0100007F:{int(found[1]):04X}" in ports
        assert f"00000000:{int(found[1]):04X}" not in ports
        other, none = started(tmp_path)
        assert none is None
        assert other.wait(20) == 1
        child.send_signal(2)
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.stderr.close()
        other.stderr.close()


def working_in(folder):
    """Processes whose working folder is this one."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (place / "cwd").readlink() == folder:
                found.append(int(place.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs Linux's /proc, to see processes")
def test_a_server_that_is_killed_in_mid_run_starts_again_with_the_run_resumable(tmp_path):
    clinic, lab, _ = ui_server.hard_tables()
    clinic.to_csv(tmp_path / "clinic.csv", index=False)
    lab.to_csv(tmp_path / "lab.csv", index=False)
    child, found = started(tmp_path)
    home = f"http://127.0.0.1:{found[1]}"
    with httpx.Client(follow_redirects=True, headers={"origin": home}, timeout=60) as client:
        client.get(found[0])
        client.post(f"{home}/link", data={"file": ["clinic.csv", "lab.csv"], "name": "run"})
        end = time.monotonic() + 120
        while not any(tmp_path.glob("run.unfinished/checkpoint/*.stage")):
            assert time.monotonic() < end
            time.sleep(0.1)
    child.kill()
    child.wait()
    child.stderr.close()
    while working_in(tmp_path):
        assert time.monotonic() < end, "the work ends with the server"
        time.sleep(0.1)
    assert not (tmp_path / "run").exists()
    child, found = started(tmp_path)
    home = f"http://127.0.0.1:{found[1]}"
    try:
        with httpx.Client(follow_redirects=True, headers={"origin": home}, timeout=60) as client:
            assert "Cut off" in client.get(found[0]).text
            client.post(f"{home}/job/1/again")
            end = time.monotonic() + 240
            while client.get(f"{home}/job/1/state").json()["state"] != "done":
                assert time.monotonic() < end
                time.sleep(0.2)
        assert "continuing the unfinished run" in (tmp_path / ".keyless-ui/jobs/1/said.txt").read_text()
        assert len(runs.read_run(tmp_path / "run").links.matches) == 80
    finally:
        child.terminate()
        child.wait(20)
        child.stderr.close()


@pytest.mark.slow
def test_the_command_opens_a_run_for_review(start):
    child, found = started(start, "run")
    try:
        with httpx.Client(follow_redirects=True) as client:
            answer = client.get(found[0])
        assert answer.url.path == "/review"
        assert answer.url.params["at"] == "run"
        assert "questions are left of this round" in answer.text
    finally:
        child.terminate()
        child.wait(20)
        child.stderr.close()
