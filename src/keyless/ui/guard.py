"""Who gets in: the token's holder alone, from this machine, by a page of this server."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

__all__ = ["POLICY", "Guard"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What a page may do: nothing is fetched from elsewhere, and no script runs but the server's own file. Styles may be
inline: the plots have some."""

_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)

_HARMLESS = ("GET", "HEAD")


class Guard:
    """The door before the app.

    A token opens it once: who brings it gets a cookie, and a new token is made for the next browser.

    Args:
        app: what is behind the door.
        port: the server's.
        after: where the token leads to.
        renewed: called with the address that the next browser may open, each time there is a new one.
    """

    def __init__(
        self, app: App, *, port: int, after: str = "/", renewed: Callable[[str], object] | None = None
    ) -> None:
        self._app, self._after, self._renewed = app, after.encode(), renewed
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._cookie = f"keyless-{port}"
        self._secret, self._token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._home = f"http://127.0.0.1:{port}/"

    @property
    def address(self) -> str:
        """The address that lets the next browser in, once."""
        return f"{self._home}?token={self._token}"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or let the app answer it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            await _refuse(with_headers, "This page answers to its own address only: 127.0.0.1.")
            return
        changes = scope["method"] not in _HARMLESS
        foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        if (origin is None and changes) or (origin is not None and origin != f"http://{host}") or (foreign and changes):
            await _refuse(with_headers, "This request came from a page of another place.")
            return
        known = any(hmac.compare_digest(value.encode(), self._secret.encode()) for value in self._cookies(headers))
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["path"] == "/" and given:
            if not known and not hmac.compare_digest(given[0].encode(), self._token.encode()):
                await _refuse(with_headers, _NO_TOKEN)
                return
            await self._let_in(with_headers, new=not known)
            return
        if not known:
            await _refuse(with_headers, _NO_TOKEN)
            return
        await self._app(scope, receive, with_headers)

    def _cookies(self, headers: dict[str, str]) -> list[str]:
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return [value for name, _, value in pairs if name == self._cookie]

    async def _let_in(self, send: Send, *, new: bool) -> None:
        """Send on to the page without the token, which is then used up."""
        more = []
        if new:
            self._token = secrets.token_urlsafe(32)
            cookie = f"{self._cookie}={self._secret}; HttpOnly; SameSite=Strict; Path=/"
            more.append((b"set-cookie", cookie.encode()))
            if self._renewed is not None:
                self._renewed(self.address)
        await send({"type": "http.response.start", "status": 303, "headers": [(b"location", self._after), *more]})
        await send({"type": "http.response.body", "body": b""})


_NO_TOKEN = (
    "This page opens with the address that `keyless ui` printed last; each address opens it once. "
    "A page that is open already shows one for another browser."
)


async def _refuse(send: Send, why: str) -> None:
    plain = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 403, "headers": plain})
    await send({"type": "http.response.body", "body": why.encode() + b"\n"})
