"""Limits on connections: a client that sends nothing, or half a request, cannot keep the server from others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from operant.triage.access import App

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

TIMEOUT = 10.0  # seconds
MAX_CONNECTIONS = 64  # a browser opens six


def server_config(app: App, *, timeout: float = TIMEOUT, max_connections: int = MAX_CONNECTIONS) -> uvicorn.Config:
    """Settings of the web server: quiet, without WebSockets, and with guarded connections (see `GuardedConnection`)."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    opened: list[GuardedConnection] = []

    def connection(**options: Any) -> GuardedConnection:
        return GuardedConnection(H11Protocol(**options), opened, timeout, max_connections)

    return uvicorn.Config(
        app, http=cast(Any, connection), log_level="error", access_log=False, server_header=False, ws="none",
        lifespan="off", timeout_graceful_shutdown=2,
    )  # fmt: skip


class GuardedConnection(asyncio.Protocol):
    """A connection that is closed if its client stalls, or if there are too many.

    A client stalls if the server waits for it, and it neither completes a request nor reads from a response for a whole
    period of ``timeout`` seconds. Bytes that complete nothing are no progress. If there are ``max_connections``, a new
    one replaces the oldest one that waits for its client, so idle connections cannot keep the browser out.

    Args:
        inner: reads requests and writes responses.
        opened: the open connections of this server, oldest first; shared by all of them.
    """

    def __init__(
        self, inner: H11Protocol, opened: list[GuardedConnection], timeout: float, max_connections: int
    ) -> None:
        self.inner, self.opened, self.timeout, self.max_connections = inner, opened, timeout, max_connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.inner.connection_made(self.transport)
        if len(self.opened) >= self.max_connections:
            # Not its own turn yet: this one only goes if all others are at work.
            next((other for other in self.opened if other.waits()), self).transport.abort()
        self.opened.append(self)
        self.seen = self.progress()
        self.timer = self.inner.loop.call_later(self.timeout, self.check)

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        self.opened.remove(self)
        self.inner.connection_lost(exc)

    def waits(self) -> bool:
        """Whether it is the client's turn: to send the rest of a request, or to read a response."""
        import h11

        if self.transport.is_closing():
            return False
        return self.inner.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self.transport.get_write_buffer_size() > 0

    def progress(self) -> tuple[object, ...]:
        """Changes when a request begins, ends or is answered, or part of a response is read."""
        return self.inner.cycle, self.inner.conn.their_state, self.transport.get_write_buffer_size()

    def check(self) -> None:
        """Close the connection if its client has stalled since the last check."""
        now = self.progress()
        if self.waits() and now == self.seen:
            self.transport.abort()
        self.seen = now
        self.timer = self.inner.loop.call_later(self.timeout, self.check)

    def data_received(self, data: bytes) -> None:
        self.inner.data_received(data)

    def eof_received(self) -> None:
        self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()
