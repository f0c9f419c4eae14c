"""Routes about runs: the result, its matches and rows, the review, and downloads."""

import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import pandas as pd

from keyless import runs
from keyless.errors import InputError, KeylessError
from keyless.report.markup import one_line
from keyless.report.words import state
from keyless.tables import Dialect
from keyless.ui import review
from keyless.ui.app import Desk, Form, form_of, page, to
from keyless.ui.opened import Opened, Query
from keyless.ui.repeat import again_words, python_lines

if TYPE_CHECKING:
    from fastapi import APIRouter

__all__ = ["routes"]

_MOST_IDS = 20
"""Ids that are proposed while one is typed."""

_FORMATS = ("csv", "xlsx", "parquet")
_ANSWERS = "answers"

_SAID: dict[str, review.Verdict] = {
    "row": "same",
    "same": "same",
    "not the same": "not the same",
    "cannot tell": "cannot tell",
}
"""What the buttons of a question say, and what that means for the pair that is shown, or for the row that is named."""


def routes(desk: Desk) -> "APIRouter":
    """Return the routes.

    Args:
        desk: what they work on.
    """
    from fastapi import APIRouter
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
    from starlette.background import BackgroundTask
    from starlette.requests import Request

    router = APIRouter()
    reviews = Reviews(desk)

    @router.get("/run")
    def run(at: str) -> HTMLResponse:
        opened = desk.run(at)
        return page("run.html", at=at, names=list(opened.links.found), **_repeat(opened), **_whole(opened))

    @router.get("/run/matches")
    def matches(
        at: str, *, start: int = 0, most: int = 100, search: str = "", show: str = "all", threshold: float = 0.9,
        table: int = -1, sort: str = "", down: bool = False,
    ) -> JSONResponse:  # fmt: skip
        if show not in ("all", "kept", "check", "alone"):
            raise InputError("show: must be all, kept, check or alone.")
        if sort not in ("", "row", "table", "match", "probability", "other", "likely"):
            raise InputError("sort: must be one of the columns.")
        query = Query(search[:200], show, min(max(threshold, 0.0), 1.0), table, sort, down)
        return JSONResponse(desk.run(at).matches(query, start=max(0, start), most=max(1, most)))

    @router.get("/run/row")
    def row(at: str, table: int, row: int, partner: int | None = None, blind: bool = False) -> HTMLResponse:
        opened = desk.run(at)
        name = opened.table_name(table)
        opened.check_row(row)
        pair = opened.side_by_side(name, row, partner)
        others = [] if blind else opened.other_rows(name, row)
        return page("row.html", table=table, row=row, pair=pair, others=others, blind=blind)

    @router.get("/run/ids")
    def ids(at: str, table: int, search: str = "") -> JSONResponse:
        opened = desk.run(at)
        wanted = search.strip().casefold()
        labels = opened.links.tables[opened.links._number(opened.table_name(table))].row_ids
        found = (str(label) for label in labels if wanted in str(label).casefold())
        return JSONResponse([label for label, _ in zip(found, range(_MOST_IDS), strict=False)])

    @router.get("/review")
    def questions(at: str, trouble: str = "") -> HTMLResponse:
        return page("review.html", trouble=trouble, **reviews.question(at))

    @router.post("/review/{what}")
    async def answer(what: str, request: Request) -> RedirectResponse:
        form = await form_of(request)
        at = form.get("at", [""])[0]
        changes = {"answer": reviews.answer, "undo": reviews.undo, "more": reviews.more}
        if what not in changes:
            raise InputError("review: must be answer, undo or more.")
        trouble = await run_in_threadpool(changes[what], at, form)
        return RedirectResponse(to("/review", at=at) if not trouble else to("/review", at=at, trouble=trouble), 303)

    @router.post("/again")
    async def again(request: Request) -> RedirectResponse:
        form = await form_of(request)
        number = await run_in_threadpool(_again, desk, reviews, form.get("at", [""])[0])
        return RedirectResponse(f"/job/{number}", 303)

    @router.get("/download")
    def download(at: str, what: str, form: str = "csv", threshold: float | None = None) -> FileResponse:
        place = Path(tempfile.mkdtemp(prefix="keyless-"))
        try:
            file = _made(desk.run(at), place, what, form, threshold)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        cleaning = BackgroundTask(shutil.rmtree, place, ignore_errors=True)
        return FileResponse(file, filename=file.name, media_type="application/octet-stream", background=cleaning)

    return router


def _whole(opened: Opened) -> dict[str, Any]:
    warnings = opened.record.get("warnings", ())
    return opened.values | {
        "warnings": [*filter(None, [opened.links.status.advice]), *warnings],
        "reference": opened.links.reference,
        # Where the link itself is in doubt, the surest matches are the ones to check.
        "surest_first": state(opened.links.evidence) == "map",
    }


def _repeat(opened: Opened) -> dict[str, Any]:
    lines = python_lines(opened.options, opened.links) if opened.options.get("tables") else ""
    stopped = opened.links.status.reason == "stopped"
    return {"command": opened.record.get("command") or "", "python": lines, "stopped": stopped}


def _made(opened: Opened, place: Path, what: str, form: str, threshold: float | None) -> Path:
    """Return a file to download, made in a folder of its own.

    Args:
        opened: the run.
        place: the folder.
        what: `matches`, `joined` or `folder`.
        form: its format.
        threshold: probability that matches must reach; None for all rows.
    """
    base = next(iter(runs.file_names([opened.folder.name]).values()))
    if what == "folder":
        path = place / f"{base}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for file in sorted(opened.folder.rglob("*")):
                if file.is_file() and not file.is_symlink():
                    packed.write(file, f"{base}/{file.relative_to(opened.folder).as_posix()}")
        return path
    if what not in ("matches", "joined") or form not in _FORMATS:
        raise InputError("download: must be matches or joined, as csv, xlsx or parquet, or the folder.")
    path, links = place / f"{base}-{what}.{form}", opened.links
    runs.check_format("xlsx" if form == "xlsx" else "same", links.tables)
    if what == "matches":
        frame = pd.DataFrame(runs.match_records(links, min_probability=threshold))
        if threshold is not None:
            frame = frame[frame["row_id"].notna()]
    else:
        source = opened.folder / "joined.parquet"
        if not source.is_file() or source.is_symlink():
            raise InputError(f"{opened.folder.name}: must hold joined.parquet; it does not.")
        frame = pd.read_parquet(source)
    if form == "parquet":
        runs.write_parquet(frame, path)
    else:
        dialect = Dialect("sheet") if form == "xlsx" else Dialect()
        runs.write_table(frame, path, dialect, tables=() if what == "matches" else links.tables)
    return path


class Reviews:
    """The questions of runs, and their answers.

    Args:
        desk: what the routes work on.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk, self._lock = desk, RLock()

    def answers(self, opened: Opened) -> list[review.Answer]:
        """Return the answers of a run; those of the run that it was linked again from, where it has none of its own."""
        if (opened.folder / review.PAIRS).is_file():
            return review.read(opened.folder, opened.links)
        return self.carried(opened)

    def carried(self, opened: Opened) -> list[review.Answer]:
        """Return the answers with which a run was linked again; none where it is a first one."""
        earlier = self._desk.folder.own / _ANSWERS / opened.folder.name
        given = [str(opened.options.get(option, "")) for option in ("known-pairs", "forbid")]
        # Another run may have had this name before.
        its = any(path and (self._desk.folder.root / path).parent == earlier for path in given)
        return review.read(earlier / "all", opened.links) if its else []

    def question(self, at: str) -> dict[str, Any]:
        """Return what the page of the review shows."""
        with self._lock:
            opened = self._desk.run(at)
            answers = self.answers(opened)
            left = self._left(at, opened, answers)
            links = opened.links
            used = [one for one in answers if not one.held_out]
            carried = self.carried(opened)
            values: dict[str, Any] = {
                "at": at,
                "left": len(left),
                "given": len(answers),
                "known": sum(bool(one.row_id) for one in used),
                "denied": sum(one.answer == "not the same" for one in used),
                "unknown": sum(one.answer == "cannot tell" for one in used),
                "held_out": len(answers) - len(used),
                "share": review.share(links, answers),
                "carried": any(one.held_out for one in carried),
                "new": used != [one for one in carried if not one.held_out],
                "last": answers[-1] if answers else None,
                "asked": None,
                "verdict": links.evidence.verdict,
                "again": self._can_link_again(opened),
            }
            if left:
                asked = left[0]
                compared = asked.shown >= 0
                look = (asked.table, asked.row)
                pair = opened.side_by_side(*look, asked.shown) if compared else opened.alone(*look)
                values |= {
                    "asked": asked,
                    "pair": pair,
                    "number": list(links.found).index(asked.table),
                    "others": [
                        one
                        for one in (opened.other_rows(asked.table, asked.row) if compared else ())
                        if one["place"] not in (-1, pair["partner"])
                    ],
                }
            return values

    def _can_link_again(self, opened: Opened) -> str:
        """Return why the tables cannot be linked again; nothing where they can."""
        try:
            for given in opened.options.get("tables", ()):
                self._desk.folder.table(str(given))
        except KeylessError:
            return "The tables of this run are not in the folder that the page was started in."
        return "" if opened.options.get("tables") else "The run does not say which tables it was made of."

    def _left(self, at: str, opened: Opened, answers: list[review.Answer]) -> list[review.Asked]:
        if at not in self._desk.rounds:
            self._desk.rounds[at] = review.next_round(opened.links, answers)
        done = {(one.reference_id, one.table) for one in answers}
        return [one for one in self._desk.rounds[at] if _key(opened, one) not in done]

    def answer(self, at: str, form: Form) -> str:
        """Take an answer; return what is wrong with it, or nothing."""
        with self._lock:
            opened = self._desk.run(at)
            answers = self.answers(opened)
            said = form.get("said", [""])[0]
            try:
                asked = self._asked(at, opened, answers, form)
                partner = self._partner(opened, asked.table, form) if said == "row" else None
                if said not in _SAID:
                    raise InputError("answer: must be same, not the same, a row, or cannot tell.")
                verdict = "cannot tell" if said == "not the same" and asked.shown < 0 else _SAID[said]
                review.write(opened.folder, review.add(answers, asked, opened.links, said=verdict, partner=partner))
            except InputError as error:
                return str(error)
            return ""

    def _asked(self, at: str, opened: Opened, answers: list[review.Answer], form: Form) -> review.Asked:
        """Return the question that is answered; another window may have answered it before."""
        table, row = form.get("table", [""])[0], form.get("row", [""])[0]
        names = list(opened.links.found)
        for asked in self._left(at, opened, answers):
            if (str(names.index(asked.table)), str(asked.row)) == (table, row):
                return asked
        raise InputError("This question was answered already, perhaps in another window.")

    def _partner(self, opened: Opened, table: str, form: Form) -> int:
        """Return the number of the row that is said to be the partner: by its number, or by its id as it was typed."""
        wanted, place = form.get("partner", [""])[0].strip(), form.get("place", [""])[0]
        labels = [str(label) for label in opened.links.tables[opened.links._number(table)].row_ids]
        if place.isdecimal() and int(place) < len(labels):
            return int(place)
        if wanted not in labels:
            raise InputError(f"{table} has no row {one_line(wanted)!r}. Type an id as it stands in the table.")
        return labels.index(wanted)

    def undo(self, at: str, _form: Form) -> str:
        """Take the last answer back; its question comes again."""
        with self._lock:
            opened = self._desk.run(at)
            answers = self.answers(opened)
            if not answers:
                return "There is no answer to take back."
            review.write(opened.folder, answers[:-1])
            last = (answers[-1].reference_id, answers[-1].table)
            if last not in [_key(opened, one) for one in self._desk.rounds.get(at, ())]:
                self._desk.rounds.pop(at, None)  # of an earlier round
            return ""

    def more(self, at: str, _form: Form) -> str:
        """Begin another round."""
        with self._lock:
            self._desk.rounds.pop(at, None)
            return ""


def _key(opened: Opened, asked: review.Asked) -> tuple[str, str]:
    """Return row and table of a question as answers name them."""
    return str(opened.links.tables[0].row_ids[asked.row]), asked.table


def _again(desk: Desk, reviews: Reviews, at: str) -> int:
    """Put a link with the answers of a run into the queue; return its number."""
    opened = desk.run(at)
    answers = reviews.answers(opened)
    if not any(not one.held_out and (one.row_id or one.not_row_id) for one in answers):
        raise InputError("To link again, answer at least one question: same, not the same, or another row.")
    base = re.sub(r"-\d+$", "", opened.folder.name) or opened.folder.name
    with desk.naming:
        name = desk.free_name(base)
        place = desk.folder.own / _ANSWERS / name
        (place / "all").mkdir(parents=True, exist_ok=True)
        words = again_words(desk.folder, opened.options, place)
        review.write(place / "all", answers)
        files = review.known_files(place, opened.links, answers, carried=reviews.carried(opened))
        for option, file in zip(("known-pairs", "forbid"), files, strict=True):
            if file is not None:
                words.append(f"--{option}={desk.folder.relative(file)}")
        return desk.jobs.add(name, words).number
