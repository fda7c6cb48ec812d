"""Who may ask: only pages and programs on this machine that know the token."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost")
HEADER = b"x-operant-token"
SAME = (b"same-origin", b"none")  # what a browser says of a request that our own page or the user makes
POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Guard:
    """Answers nobody who does not know the token, and no page of another origin.

    A browser that opens ``/?token=...`` keeps the token in a cookie that scripts cannot read and that other sites
    cannot have sent along. Programs send it in the header ``X-Operant-Token``. A name that leads to this machine but
    is not its own (DNS rebinding) is refused, whatever the token.
    """

    def __init__(self, app: App, token: str) -> None:
        self.app, self.token = app, token.encode()
        self.cookie = f"operant-{hashlib.sha256(self.token).hexdigest()[:8]}"  # servers on other ports have others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if refused := self.refusal(scope):
            await _answer(send, *refused)
            return
        await self.app(scope, receive, self._with_headers(scope, send))

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is not answered; None if it may pass."""
        headers = _headers(scope)
        host = headers.get(b"host", b"").decode("latin-1")
        if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
            return 421, "This server answers to its own name only; open the address that `operant triage` printed."
        origin = headers.get(b"origin")
        if origin is not None and origin != b"http://" + host.encode("latin-1"):
            return 403, "A page of another origin cannot ask here."
        if headers.get(b"sec-fetch-site", b"none") not in SAME and scope["path"] != "/":
            return 403, "A page of another origin cannot ask here."
        by_cookie = self._known(self._cookie(headers))
        by_header = self._known(headers.get(HEADER, b""))
        if scope["method"] not in ("GET", "HEAD") and not (by_header or (by_cookie and origin is not None)):
            return 403, "Only the page itself can change something here."
        if not (by_cookie or by_header or self._opened(scope)):
            return 403, "Open the address that `operant triage` printed: it holds a token that is missing here."
        return None

    def _known(self, token: bytes) -> bool:
        return compare_digest(token, self.token)

    def _cookie(self, headers: dict[bytes, bytes]) -> bytes:
        try:
            jar = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return b""
        found = jar.get(self.cookie)
        return b"" if found is None else found.value.encode("latin-1", "replace")

    def _opened(self, scope: Scope) -> bool:
        """Whether this is the address that was printed."""
        if scope["path"] != "/" or scope["method"] not in ("GET", "HEAD"):
            return False
        told = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None).get("token", [""])
        return self._known(told[0].encode("utf-8", "replace"))

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        opened = self._opened(scope)
        cookie = f"{self.cookie}={self.token.decode()}; Path=/; HttpOnly; SameSite=Strict".encode()

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                more = [*HEADERS, (b"set-cookie", cookie)] if opened else HEADERS
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        return sending


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers; one that is sent twice could mean two things, so it means neither."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found[name.lower()] = b"" if name.lower() in found else value
    return found


async def _answer(send: Send, status: int, text: str) -> None:
    content = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *HEADERS]})
    await send({"type": "http.response.body", "body": content})
