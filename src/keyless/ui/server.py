"""The server: on the loopback address alone, for as long as the user wants it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

from keyless.errors import InputError, KeylessError
from keyless.places import locked
from keyless.ui.app import Desk, make_app, to
from keyless.ui.folder import Folder
from keyless.ui.guard import Guard
from keyless.ui.jobs import Jobs

__all__ = ["open_page"]

_HOST = "127.0.0.1"

_PATIENCE = 3
"""Seconds that answers under way may take when the page is closed."""


def open_page(
    place: Path, *, run: Path | None, port: int, browser: bool, max_upload: int, say: Callable[[str], object]
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        place: the start folder.
        run: a run in it, to open for review.
        port: on the loopback address; 0 takes a free one.
        browser: open the page in the browser, where there is one.
        max_upload: bytes that an uploaded file may have.
        say: takes a line for the user.
    """
    if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise InputError('keyless ui needs libraries that are not installed. Run: pip install "keyless[ui]"')
    import uvicorn

    folder = Folder(place, max_upload=max_upload)
    taken = f"{folder.root}: another `keyless ui` is open here. Use it, or close it first."
    with locked(folder.own / "lock", mode=0o600, taken=taken), _listening(port) as listening:
        port = listening.getsockname()[1]
        jobs = Jobs(folder.own / "jobs", folder.root)
        desk = Desk(folder, jobs)
        after = "/" if run is None else to("/review", at=folder.relative(run))
        guard = Guard(
            make_app(desk), port=port, after=after,
            renewed=lambda address: say(f"to open the page in another browser: {address}"),
        )  # fmt: skip
        desk.address = lambda: guard.address
        say(f"the page is at {guard.address}")
        say(f"it sees {folder.root} and nothing else. Ctrl-C ends it.")
        if browser and _has_browser():
            threading.Thread(target=webbrowser.open, args=(guard.address,), daemon=True).start()
        config = uvicorn.Config(
            guard, log_level="warning", access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=_PATIENCE,
        )  # fmt: skip
        try:
            # Ctrl-C is how the page is closed: no failure.
            with contextlib.suppress(KeyboardInterrupt):
                uvicorn.Server(config).run(sockets=[listening])
        finally:
            jobs.close()


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        if sys.platform != "win32":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((_HOST, port))
            # The address is told before the server runs: who opens it at once waits instead of being turned away.
            listening.listen()
        except OSError as error:
            raise KeylessError(f"--port: {port} cannot be used ({error.strerror}). Choose another, or 0.") from error
        yield listening


def _has_browser() -> bool:
    """Tell whether there is a browser with a window: one in the terminal would hide what is said there."""
    if sys.platform not in ("win32", "darwin") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
