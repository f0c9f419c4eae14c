"""The app: what the routes share, how trouble is shown, and the files of the page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader

import keyless
from keyless.errors import InputError, KeylessError, printable
from keyless.report.markup import environment
from keyless.report.page import page_file
from keyless.tables import in_words
from keyless.ui.folder import Folder
from keyless.ui.jobs import Jobs
from keyless.ui.opened import Opened, Shelf
from keyless.ui.review import Asked

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse

__all__ = ["Desk", "Form", "form_of", "make_app", "page", "templates", "to"]

Form = Mapping[str, list[str]]
"""Fields that a browser sent."""

_LONGEST_FORM, _MOST_FIELDS = 2_000_000, 20_000
"""Bytes and fields of a form."""


@dataclass
class Desk:
    """What the routes work on.

    Attributes:
        folder: the start folder.
        jobs: the queue.
        shelf: the runs that are open.
        rounds: the questions of each run's round, by the run's path.
        address: gives the address that lets another browser in.
        naming: held while a new run is named and asked for, so that no two get the same name.
    """

    folder: Folder
    jobs: Jobs
    shelf: Shelf = field(default_factory=Shelf)
    rounds: dict[str, list[Asked]] = field(default_factory=dict)
    address: Callable[[], str] = str
    naming: Lock = field(default_factory=Lock)

    def free_name(self, wanted: str) -> str:
        """Return a name for a new run that no run and no job has."""
        return self.folder.free_name(wanted, {job.run for job in self.jobs.all()})

    def run(self, at: str) -> Opened:
        """Return a run by its path from the start folder."""
        return self.shelf.open(self.folder.run(at))


@cache
def templates() -> Environment:
    """Return the page's templates, and the report's beside them."""
    own = PackageLoader("keyless.ui")
    made = environment().overlay(loader=ChoiceLoader([own, PackageLoader("keyless.report")]))
    made.filters = made.filters | {"size": in_words}
    made.globals = made.globals | {"to": to, "version": keyless.__version__}
    return made


def to(path: str, **query: object) -> str:
    """Return an address of the page.

    Example:
        >>> to("/run", at="a b")
        '/run?at=a+b'
    """
    return f"{path}?{urlencode(query)}" if query else path


def page(name: str, status: int = 200, **values: Any) -> "HTMLResponse":
    """Return a template as a response.

    Args:
        name: of the template.
        status: of the response.
        values: what the template needs.
    """
    from fastapi.responses import HTMLResponse

    return HTMLResponse(templates().get_template(name).render(values), status_code=status)


_WRONG_ADDRESS = {
    405: "This address cannot be used in this way. Go back, and reload the page.",
    422: "A value in this address is not one that the page understands. Go back, and use the fields of the page.",
}
"""What is said of an address that exists but was called wrongly, by the status of the answer."""


async def form_of(request: "Request") -> Form:
    """Return the fields of a form that was sent.

    Args:
        request: with a body as browsers encode forms.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            raise InputError(f"the form: must have at most {_LONGEST_FORM:,} bytes.")
    try:
        # Browsers send each line break of a field as two characters, also that of a column's name.
        text = body.decode("utf-8").replace("%0D%0A", "%0A")
        return parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise InputError(f"the form: must be as the page sends it; it is not ({error}). Reload the page.") from error


def make_app(desk: Desk) -> "FastAPI":
    """Return the app, without the guard before it.

    Args:
        desk: what the routes work on.
    """
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, PlainTextResponse, Response
    from starlette.exceptions import HTTPException

    from keyless.ui import run_routes, work_routes

    app = FastAPI(title="keyless", docs_url=None, redoc_url=None, openapi_url=None)

    def told(request: Request, message: str, status: int) -> Response:
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse({"error": message}, status_code=status)
        return page("trouble.html", status, message=message)

    def refused(request: Request, error: Exception) -> Response:
        return told(request, printable(error), 400 if isinstance(error, InputError) else 500)

    def unexpected(request: Request, error: Exception) -> Response:
        return told(
            request, printable(f"unexpected {type(error).__name__}: {error}. This is a mistake in keyless."), 500
        )

    def no_page(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 422)
        return told(request, _WRONG_ADDRESS.get(status, "There is no page of this address."), status)

    app.add_exception_handler(HTTPException, no_page)
    app.add_exception_handler(RequestValidationError, no_page)
    for kind in (KeylessError, OSError, MemoryError):
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(Exception, unexpected)
    app.include_router(work_routes.routes(desk))
    app.include_router(run_routes.routes(desk))

    style = page_file("page.css") + files("keyless.ui").joinpath("ui.css").read_text(encoding="utf-8")
    script = files("keyless.ui").joinpath("ui.js").read_text(encoding="utf-8")

    @app.get("/style.css")
    def styles() -> Response:
        return PlainTextResponse(style, media_type="text/css")

    @app.get("/ui.js")
    def scripts() -> Response:
        return PlainTextResponse(script, media_type="text/javascript")

    @app.get("/favicon.ico")
    def icon() -> Response:
        return Response(status_code=204)

    return app
