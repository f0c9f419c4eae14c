"""Routes about files and work: what there is, what the columns count as, links that are asked for, and the queue.

Annotations of routes are read by FastAPI when the routes are made: here they must not become text.
"""

import json
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from keyless.errors import InputError, KeylessError, printable
from keyless.runs.folder import read_record
from keyless.tables import name_tables
from keyless.ui.app import Desk, Form, form_of, page, to
from keyless.ui.folder import TableFile
from keyless.ui.jobs import run_command
from keyless.ui.repeat import form_words, reading_words
from keyless.ui.words import job_view

if TYPE_CHECKING:
    from fastapi import APIRouter
    from fastapi.responses import HTMLResponse

__all__ = ["routes"]

_READING = 120.0
"""Seconds that looking at a file may take."""

MOST_COLUMNS = 300
"""Columns of a table that the page lists with a menu each."""

_AT_ONCE = BoundedSemaphore(2)
"""Files that are looked at, at a time."""


def routes(desk: Desk) -> "APIRouter":
    """Return the routes.

    Args:
        desk: what they work on.
    """
    from fastapi import APIRouter, Query
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
    from starlette.requests import ClientDisconnect, Request

    router = APIRouter()

    @router.get("/")
    def home() -> HTMLResponse:
        runs = [_run_line(desk, at) for at in desk.folder.runs()]
        return page("home.html", files=desk.folder.files(), runs=runs, jobs=_jobs(desk), root=desk.folder.root.name)

    @router.put("/upload")
    async def upload(request: Request) -> JSONResponse:
        name = unquote(request.headers.get("x-file-name", ""))
        try:
            with desk.folder.receiving(name) as taken:
                length = request.headers.get("content-length", "")
                taken.check(int(length) if length.isdecimal() else 0)
                async for chunk in request.stream():
                    taken.take(chunk)
        except ClientDisconnect:
            raise InputError(
                f"{printable(name)[:200]}: the upload ended before the whole file had arrived. Upload it again."
            ) from None
        file = desk.folder._file(taken.path, uploaded=True)
        return JSONResponse({"line": _fragment("file-line.html", file=file, chosen=True)})

    @router.post("/forget")
    async def forget(request: Request) -> RedirectResponse:
        form = await form_of(request)
        desk.folder.forget(form.get("file", [""])[0])
        return RedirectResponse("/", 303)

    @router.get("/new")
    def new(file: list[str] = Query(default=[])) -> HTMLResponse:  # noqa: B008 — as FastAPI has them
        if len(file) < 2:
            raise InputError(f"tables: must be at least two; found {len(file)}. Choose them on the first page.")
        known = {one.path: one for one in desk.folder.files()}
        chosen = [known.get(given) or _named(desk, given) for given in file]
        names = list(name_tables([one.path for one in chosen]))
        others = [one for one in desk.folder.files() if one not in chosen]
        return page("new.html", files=list(zip(chosen, names, strict=True)), others=others)

    @router.post("/inspect")
    async def inspect(request: Request) -> HTMLResponse:
        form = await form_of(request)
        return await run_in_threadpool(_inspected, desk, form)

    @router.post("/link")
    async def link(request: Request) -> RedirectResponse:
        form = await form_of(request)
        words = form_words(desk.folder, form)
        with desk.naming:
            job = desk.jobs.add(desk.free_name(form.get("name", [""])[0]), words)
        return RedirectResponse(f"/job/{job.number}", 303)

    @router.get("/jobs")
    def jobs() -> HTMLResponse:
        return page("jobs.html", jobs=_jobs(desk))

    @router.get("/job/{number}")
    def job(number: int) -> HTMLResponse:
        return page("job.html", job=_view(desk, number))

    @router.get("/job/{number}/state")
    def state(number: int) -> JSONResponse:
        view = _view(desk, number)
        return JSONResponse({"state": view["state"], "run": view["run"], "html": _fragment("job-state.html", job=view)})

    @router.post("/job/{number}/{what}")
    def change(number: int, what: str) -> RedirectResponse:
        changes = {"stop": desk.jobs.stop, "again": desk.jobs.again, "remove": desk.jobs.remove}
        if what not in changes:
            raise InputError(f"{printable(what)[:40]}: must be stop, again or remove.")
        changes[what](number)
        return RedirectResponse("/" if what == "remove" else f"/job/{number}", 303)

    @router.post("/invite")
    def invite() -> JSONResponse:
        return JSONResponse({"address": desk.address()})

    return router


def _fragment(name: str, **values: Any) -> str:
    return bytes(page(name, **values).body).decode("utf-8")


def _view(desk: Desk, number: int) -> dict[str, Any]:
    job = desk.jobs.get(number)
    view = job_view(job, desk.jobs.progress(number), ahead=desk.jobs.ahead(job))
    return view | {"has_result": (desk.folder.root / job.run / "run.json").is_file()}


def _jobs(desk: Desk) -> list[dict[str, Any]]:
    return [_view(desk, job.number) for job in desk.jobs.all()]


def _named(desk: Desk, given: str) -> TableFile:
    """Return a file that is not listed, such as one deeper in the start folder; refuse what is not in it."""
    path = desk.folder.inside(given)
    if not path.is_file():
        raise InputError(f"{printable(given)[:200]}: must be a file.")
    return desk.folder._file(path)


def _run_line(desk: Desk, at: str) -> dict[str, Any]:
    try:
        record = read_record(desk.folder.run(at))
    except (KeylessError, OSError) as error:
        return {"at": at, "trouble": printable(error)}
    tables = record.get("tables")
    names = list(tables) if isinstance(tables, dict) else []
    return {"at": at, "verdict": str(record.get("verdict")), "tables": names, "trouble": "", "to": to("/run", at=at)}


def _inspected(desk: Desk, form: Form) -> "HTMLResponse":
    """Return what each column of a file counts as, or what is wrong with the file, as a part of a page."""
    number = int(form.get("number", ["0"])[0]) if form.get("number", ["0"])[0].isdecimal() else 0
    given = form.get("file", [""])[0]
    try:
        file = desk.folder.table(given)
        # Alone, a table is called after its file; beside others it may be called otherwise.
        own = next(iter(name_tables([file])))
        words = reading_words(form, number, own)
        with _AT_ONCE:
            text = run_command(["inspect", file, "--json", *words], cwd=desk.folder.root, seconds=_READING)
        facts = json.loads(text)["tables"][0]
    except InputError as error:
        return page("columns.html", trouble=printable(error), number=number)
    chosen = {column: kind for kind, _, column in (e.partition(" ") for e in form.get(f"kind-{number}", ()))}
    columns = facts.pop("columns")
    listed = columns[:MOST_COLUMNS]
    # Where a column names the rows, no two rows of a table agree in it.
    names = [one["name"] for one in listed if one["name"] != facts["named_by"]]
    return page(
        "columns.html", trouble="", number=number, facts=facts, columns=listed, chosen=chosen,
        more=len(columns) - len(listed), names=json.dumps(names), file=Path(given).name,
    )  # fmt: skip
