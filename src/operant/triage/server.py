"""The page and what it asks for, served to this machine only."""

from __future__ import annotations

import html
import json
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from operant.triage.asking import Asked, Desk, Unknown
from operant.triage.guard import App, Guard

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = "127.0.0.1"
LARGEST_BODY = 16_384  # bytes
FILES = {"/page.css": "text/css", "/page.js": "text/javascript", "/controls.js": "text/javascript"}
MISSING = "triage needs starlette and uvicorn, which are not installed; pip install 'operant[triage]'"


def make_app(desk: Desk, token: str) -> App:
    """The application: pages, questions and pictures, behind a guard."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise ValueError(MISSING) from None
    asks: dict[str, Callable[[Asked], dict[str, Any]]] = {"rows": desk.rows, "state": desk.state}
    says: dict[str, Callable[[Asked], dict[str, Any]]] = {"list": desk.arrange, "mark": desk.mark, "undo": desk.undo}
    routes = [
        Route("/", _page),
        *(Route(path, _file) for path in FILES),
        Route("/api/about", _asking(lambda _: desk.about())),
        *(Route(f"/api/{name}", _asking(answer)) for name, answer in asks.items()),
        *(Route(f"/api/{name}", _saying(answer), methods=["POST"]) for name, answer in says.items()),
        Route("/image/{row}/{what}.png", _picturing(desk)),
        Route("/verdicts.csv", _table(desk)),
    ]
    return Guard(Starlette(routes=routes), token)


def serve(desk: Desk, *, port: int = 0, opened: bool = True, told: Callable[[str], object] = print) -> None:
    """Serve the page to this machine until Ctrl-C.

    Args:
        desk: what the page works on.
        port: 0 for any that is free.
        opened: whether to open the page in a browser.
        told: is given the address, which holds the token.
    """
    try:
        import uvicorn
    except ImportError:
        raise ValueError(MISSING) from None
    token = token_urlsafe(24)
    app = make_app(desk, token)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="off",
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    with _listen(port) as listening, ExitStack() as kept:
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/?token={token}"
        told(address)
        if opened:
            door = kept.enter_context(_leading_to(address))
            threading.Thread(target=webbrowser.open, args=[door], daemon=True).start()
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:  # as people end it
            return


@contextmanager
def _leading_to(address: str) -> Iterator[str]:
    """The address of a file that leads on to another; it is there as long as this is open.

    Everybody on the machine can see what a browser is started with, and so must not find the token there. The file can
    be read by its owner only.
    """
    descriptor, name = tempfile.mkstemp(prefix="operant-", suffix=".html")  # with mode 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta charset="utf-8"><title>Operant</title>'
                f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">'
                f'<a href="{html.escape(address)}">To the page</a>\n'
            )
        yield Path(name).as_uri()
    finally:
        Path(name).unlink(missing_ok=True)


def _listen(port: int) -> socket.socket:
    """A socket that only this machine can reach; connections wait there until the server has begun."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio then sends at once
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        raise ValueError(f"port {port} cannot be used ({error.strerror}); choose another, or none") from None
    return listening


# Answers


def _file_text(name: str) -> str:
    return (resources.files("operant.triage") / name).read_text(encoding="utf-8")


async def _page(request: Request) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(_file_text("page.html"), headers={"cache-control": "no-store"})


async def _file(request: Request) -> Response:
    from starlette.responses import Response

    path = request.url.path
    return Response(_file_text(path[1:]), media_type=FILES[path], headers={"cache-control": "no-cache"})


Answer = Callable[["Request"], Any]


def _asking(answer: Callable[[Asked], dict[str, Any]]) -> Answer:
    """Questions come in the address."""

    async def ask(request: Request) -> Response:
        return await _answered(answer, Asked(dict(request.query_params)))

    return ask


def _saying(answer: Callable[[Asked], dict[str, Any]]) -> Answer:
    """What changes something comes as a JSON object, which no form of another page can send."""

    async def say(request: Request) -> Response:
        from starlette.requests import ClientDisconnect

        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _sentence(415, "send application/json")
        content = b""
        try:
            async for part in request.stream():
                content += part
                if len(content) > LARGEST_BODY:
                    return _sentence(413, f"send at most {LARGEST_BODY} bytes")
            page = json.loads(content)
        except (ValueError, RecursionError):
            return _sentence(400, "send JSON")
        except ClientDisconnect:
            return _sentence(400, "send all of it")
        if not isinstance(page, dict):
            return _sentence(400, "send a JSON object")
        return await _answered(answer, Asked(page))

    return say


async def _answered(answer: Callable[[Asked], dict[str, Any]], asked: Asked) -> Response:
    """The answer, worked out beside other requests: flushing to disk takes a while."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse

    try:
        told = await run_in_threadpool(answer, asked)
    except Unknown as error:
        return _sentence(404, str(error))
    except ValueError as error:
        return _sentence(400, str(error))
    except OSError as error:
        return _sentence(507, f"this could not be written: {error.strerror or error}; nothing was changed")
    return JSONResponse(told, headers={"cache-control": "no-store"})


def _sentence(status: int, text: str) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": text}, status, headers={"cache-control": "no-store"})


def _picturing(desk: Desk) -> Answer:
    async def picture(request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import Response

        try:
            asked = Asked({**request.query_params, **request.path_params})
            what, row, factor = asked.text("what"), asked.number("row"), min(asked.number("factor", 1), 1000)
            content = await run_in_threadpool(desk.picture, row, what, factor)
        except (Unknown, ValueError, OSError) as error:
            return _sentence(404, str(error))
        return Response(content, media_type="image/png", headers={"cache-control": "private, max-age=600"})

    return picture


def _table(desk: Desk) -> Answer:
    async def table(request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import Response

        try:
            text = await run_in_threadpool(desk.table)
        except (ValueError, OSError) as error:
            return _sentence(404, str(error))
        headers = {"content-disposition": 'attachment; filename="verdicts.csv"', "cache-control": "no-store"}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

    return table
