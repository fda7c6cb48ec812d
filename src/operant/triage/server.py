"""The web server of the page, reachable from this machine only."""

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

from operant.extras import install_command
from operant.signals import Stopped
from operant.triage.access import AccessControl, App
from operant.triage.connections import TIMEOUT, server_config
from operant.triage.desk import NotFound, RequestFields
from operant.triage.opening import Desk
from operant.validation import check_positive

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = "127.0.0.1"
MAX_BODY = 16_384  # bytes
SCRIPTS = ("page", "classes", "controls")
FILES = {"/page.css": "text/css", **{f"/{name}.js": "text/javascript" for name in SCRIPTS}}
PICTURE_HEADERS = {"cache-control": "private, max-age=600"}
TABLE_HEADERS = {"content-disposition": 'attachment; filename="verdicts.csv"', "cache-control": "no-store"}
Api = Callable[[RequestFields], dict[str, Any]]
Endpoint = Callable[["Request"], Any]


def make_app(desk: Desk, *tokens: str) -> App:
    """The application: page, API and pictures, behind access control; each token opens the page once."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise _missing() from None

    def picture(fields: RequestFields) -> bytes:
        return desk.picture(fields.number("row"), fields.text("what"), min(fields.number("factor", 1), 1000))

    queries: dict[str, Api] = {"about": lambda _: desk.about(), "rows": desk.rows, "state": desk.state}
    changes: dict[str, Api] = {"list": desk.arrange, "mark": desk.mark, "undo": desk.undo}
    routes = [
        Route("/", _page),
        *(Route(path, _file) for path in FILES),
        *(Route(f"/api/{name}", _query_endpoint(answer)) for name, answer in queries.items()),
        *(Route(f"/api/{name}", _json_endpoint(answer), methods=["POST"]) for name, answer in changes.items()),
        Route("/image/{row}/{what}.png", _file_endpoint(picture, "image/png", PICTURE_HEADERS)),
        Route("/verdicts.csv", _file_endpoint(lambda _: desk.table(), "text/csv; charset=utf-8", TABLE_HEADERS)),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False  # an address is right or wrong
    return AccessControl(app, *tokens)


def serve(
    desk: Desk,
    *,
    port: int = 0,
    open_browser: bool = True,
    on_start: Callable[[str], object] = print,
    timeout: float = TIMEOUT,
) -> None:
    """Serve the page to this machine until Ctrl-C; port 0 is any free one.

    ``on_start`` is called with the address, which contains a token that works once. The browser gets a token of its
    own. A connection on which a client neither completes a request nor reads the response is closed after one to two
    times ``timeout`` seconds. `Stopped` is raised after other signals than Ctrl-C.
    """
    check_positive(timeout=timeout)
    try:
        import uvicorn
    except ImportError:
        raise _missing() from None
    printed, opened = token_urlsafe(24), token_urlsafe(24)
    app = make_app(desk, printed, opened)
    with _listen(port) as listening, ExitStack() as stack:
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/?token="
        on_start(address + printed)
        if open_browser:
            file = stack.enter_context(_redirect_file(address + opened))
            threading.Thread(target=webbrowser.open, args=[file], daemon=True).start()
        try:
            uvicorn.Server(server_config(app, timeout=timeout)).run(sockets=[listening])
        except Stopped:  # by another signal
            raise
        except KeyboardInterrupt:  # the normal way to stop
            return


@contextmanager
def _redirect_file(address: str) -> Iterator[str]:
    """The address of a temporary file that redirects to another address.

    All users of the machine can see the arguments a browser is started with, so the token must not be among them. Only
    the owner can read the file.
    """
    descriptor, name = tempfile.mkstemp(prefix="operant-", suffix=".html")  # with mode 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta charset="utf-8"><title>Operant</title>'
                f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">'
                f'<a href="{html.escape(address)}">Open the page</a>\n'
            )
        yield Path(name).as_uri()
    finally:
        Path(name).unlink(missing_ok=True)


def _missing() -> ValueError:
    return ValueError(f"triage needs starlette and uvicorn, which are not installed; {install_command('triage')}")


def _listen(port: int) -> socket.socket:
    """A socket that only this machine can reach; connections wait until the server runs."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sends without delay
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        raise ValueError(f"port {port} cannot be used ({error.strerror}); choose another, or omit --port") from None
    return listening


def _file_text(name: str) -> str:
    return (resources.files("operant.triage") / name).read_text(encoding="utf-8")


async def _page(request: Request) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(_file_text("page.html"), headers={"cache-control": "no-store"})


async def _file(request: Request) -> Response:
    from starlette.responses import Response

    path = request.url.path
    return Response(_file_text(path[1:]), media_type=FILES[path], headers={"cache-control": "no-cache"})


def _query_endpoint(api: Api) -> Endpoint:
    """An endpoint that reads; fields come in the address."""

    async def ask(request: Request) -> Response:
        return await _answer(api, RequestFields(dict(request.query_params)))

    return ask


def _json_endpoint(api: Api) -> Endpoint:
    """An endpoint that changes something; fields come as a JSON object, which forms of other pages cannot send."""

    async def change(request: Request) -> Response:
        from starlette.requests import ClientDisconnect

        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _error(415, "send application/json")
        content = b""
        try:
            async for part in request.stream():
                content += part
                if len(content) > MAX_BODY:
                    return _error(413, f"send at most {MAX_BODY} bytes")
            values = json.loads(content)
        except (ValueError, RecursionError):
            return _error(400, "send JSON")
        except ClientDisconnect:
            return _error(400, "the request is incomplete; send it again")
        if not isinstance(values, dict):
            return _error(400, "send a JSON object")
        return await _answer(api, RequestFields(values))

    return change


async def _answer(api: Api, fields: RequestFields) -> Response:
    """The answer, computed in a thread, since flushing to disk takes a while."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse

    try:
        answer = await run_in_threadpool(api, fields)
    except NotFound as error:
        return _error(404, str(error))
    except ValueError as error:
        return _error(400, str(error))
    except OSError as error:
        return _error(507, f"writing failed: {error.strerror or error}; nothing was changed")
    return JSONResponse(answer, headers={"cache-control": "no-store"})


def _error(status: int, text: str) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": text}, status, headers={"cache-control": "no-store"})


def _file_endpoint(read: Callable[[RequestFields], bytes | str], kind: str, headers: dict[str, str]) -> Endpoint:
    async def file(request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import Response

        try:
            content = await run_in_threadpool(read, RequestFields({**request.query_params, **request.path_params}))
        except (NotFound, ValueError, OSError) as error:
            return _error(404, str(error))
        return Response(content, media_type=kind, headers=headers)

    return file
