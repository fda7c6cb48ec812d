"""Access control: only browsers on this machine that opened the printed address are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from secrets import compare_digest, token_hex, token_urlsafe
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = (b"127.0.0.1", b"localhost", b"[::1]")  # the last one through a tunnel
SAME_ORIGIN = (b"same-origin", b"none")  # what a browser sends for requests of our own page or of the user
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


class AccessControl:
    """Rejects requests without a session, and requests from pages of another origin.

    A browser that opens ``/?token=...`` gets a cookie that scripts cannot read and other sites cannot send. It holds a
    new random secret. Each token can be used once, so neither the address in a log nor the cookie gives the other.
    Programs do the same: open the address, keep the cookie, and send ``Origin`` with every change. Requests under
    another host name or port that leads to this machine (DNS rebinding) are rejected, whatever the cookie.

    Args:
        tokens: the tokens of the addresses that open a session, each one once.
    """

    def __init__(self, app: App, *tokens: str) -> None:
        self.app = app
        self.cookie = f"operant-{token_hex(4)}"  # one per server: ports share cookies
        self._tokens = [token.encode() for token in tokens]
        self._sessions: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif rejection := self._rejection_by_headers(scope):
            await _send_text(send, *rejection)
        elif (token := self._token(scope)) is not None:
            self._tokens.remove(token)
            await self.app(scope, receive, _with_headers(send, [*HEADERS, (b"set-cookie", self._new_session())]))
        elif rejection := self._rejection_by_session(scope):
            await _send_text(send, *rejection)
        else:
            await self.app(scope, receive, _with_headers(send, HEADERS))

    def _rejection_by_headers(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason if the host or the origin of a request is not our own, otherwise None."""
        headers = _headers(scope)
        host = headers.get(b"host", b"")
        if host not in own_hosts(scope["server"][1]):
            return 421, "This server answers only under its own name and port; open the address of `operant triage`."
        origin = headers.get(b"origin")
        foreign = origin is not None and origin != b"http://" + host
        if foreign or (headers.get(b"sec-fetch-site", b"none") not in SAME_ORIGIN and scope["path"] != "/"):
            return 403, "Requests from pages of another origin are rejected."
        return None

    def _token(self, scope: Scope) -> bytes | None:
        """The unused token in the address of a request, if it has one."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return _equal_one(given[0].encode("utf-8", "replace"), self._tokens) if len(given) == 1 else None

    def _new_session(self) -> bytes:
        """A cookie with a new secret."""
        secret = token_urlsafe(32)
        self._sessions.append(secret.encode())
        return f"{self.cookie}={secret}; Path=/; HttpOnly; SameSite=Strict".encode()

    def _rejection_by_session(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason if a request is not from the page in a browser that has the cookie, otherwise None."""
        headers = _headers(scope)
        if _equal_one(self._secret(headers), self._sessions) is None:
            return 403, (
                "This browser may not see the page: the address is not the one that `operant triage` printed, or it "
                "was used before, since each works once. End the command with Ctrl-C and start it again for a new one."
            )
        if scope["method"] not in ("GET", "HEAD") and b"origin" not in headers:
            return 403, "Only the page itself can make changes here."
        return None

    def _secret(self, headers: dict[bytes, bytes]) -> bytes:
        """The secret in the cookie of a request; empty if there is none, or more than one.

        Servers at other ports of this machine share the browser's cookies, so there may be others, of any form.
        """
        pairs = [part.strip().partition(b"=") for part in headers.get(b"cookie", b"").split(b";")]
        found = [value for name, _, value in pairs if name == self.cookie.encode()]
        return found[0] if len(found) == 1 else b""


def own_hosts(port: int) -> set[bytes]:
    """The values of the header ``Host`` that name this server, exactly as browsers write them.

    >>> b"localhost:8000" in own_hosts(8000), b"localhost:9000" in own_hosts(8000), b"localhost." in own_hosts(8000)
    (True, False, False)
    """
    return {host for name in HOSTS for host in (name, name + b":%d" % port)}


def _equal_one(given: bytes, secrets: Sequence[bytes]) -> bytes | None:
    """The secret that equals a given value, if any; the time does not depend on where they differ."""
    found = [secret for secret in secrets if compare_digest(given, secret)]
    return found[0] if found else None


def _with_headers(send: Send, headers: Sequence[tuple[bytes, bytes]]) -> Send:
    """``send`` that adds headers to the response."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *headers]}
        await send(message)

    return sending


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers; one that is sent twice is ambiguous and counts as empty."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found[name.lower()] = b"" if name.lower() in found else value
    return found


async def _send_text(send: Send, status: int, text: str) -> None:
    content = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *HEADERS]})
    await send({"type": "http.response.body", "body": content})
