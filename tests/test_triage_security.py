"""Laws of the triage server under attack: stalled clients are closed, strangers get 4xx, nothing is written."""

import asyncio
import re
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operant import Samples, Suite, results, spawn
from operant.data import LabelFolder, LabelsMissing
from operant.suite.verdicts import log_files
from operant.triage import open_desk
from operant.triage.connections import server_config
from operant.triage.desk import RequestFields
from operant.triage.server import _listen, make_app

uvicorn = pytest.importorskip("uvicorn", reason="the extra [triage] is not installed")
TOKEN = "a-token-nobody-knows"
SECRET = b"for nobody"
PATIENCE = 60  # seconds until a test gives up on a server that should have acted


@contextmanager
def running(app: Any, **limits: Any) -> Iterator[int]:
    """The port of a server in a thread."""
    listening = _listen(0)
    server = uvicorn.Server(server_config(app, **limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def read_all(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection; raises TimeoutError if it does not."""
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionError:  # closed before it had read everything
        pass
    return received


def exchange(port: int, content: bytes) -> bytes:
    with connect(port) as client:
        with suppress(ConnectionError):
            client.sendall(content)
        return read_all(client)


def statuses(received: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"(?:^|\n|})HTTP/1\.1 (\d{3}) ", received)]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def made_suite(path: Path) -> Path:
    g = spawn(0, "attacked")
    seeds = Samples(torch.rand(6, 1, 5, 5, generator=g), torch.arange(6) % 3)
    return Suite.of(seeds.x, seeds=seeds, origin=torch.arange(6), prediction=torch.zeros(6).long(), method="none").save(
        path
    )


def made_labels(path: Path) -> Path:
    ask = LabelFolder(folder=path, classes=3)
    with pytest.raises(LabelsMissing):
        ask(Samples(torch.rand(6, 1, 5, 5, generator=spawn(0, "asked"))))
    return path


# Files ----------------------------------------------------------------------------------------------------------------


def permissions(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.mark.parametrize("within_a_run", [False, True])
def test_verdicts_can_be_read_by_nobody_else(tmp_path, within_a_run) -> None:
    if within_a_run:
        (tmp_path / "run.json").touch()
    path = made_suite(tmp_path / "cases")
    before = set(tree(tmp_path))
    for row in range(3):
        open_desk(path).mark(RequestFields({"row": row, "verdict": "valid"}))  # each opens a log of its own
    assert len(log_files(path)) == 3
    written = set(tree(tmp_path)) - before
    assert {permissions(tmp_path / name) for name in written} == {0o600}


def test_labels_can_be_read_by_nobody_else_unless_the_owner_allows_it(tmp_path) -> None:
    table = made_labels(tmp_path / "to_label") / "labels.csv"
    desk = open_desk(table.parent)
    assert permissions(table) == 0o600
    desk.mark(RequestFields({"row": 0, "label": 1}))
    assert permissions(table) == 0o600
    table.chmod(0o664)  # for a group of people
    desk.mark(RequestFields({"row": 1, "label": 1}))
    assert permissions(table) == 0o664
    assert list(desk._table.read().values()) == [1, 1, None, None, None, None]


def test_a_private_file_is_never_open_to_others(tmp_path, monkeypatch) -> None:
    seen: list[int] = []
    chmod = results.os.chmod
    monkeypatch.setattr(results.os, "chmod", lambda path, mode: (seen.append(permissions(path)), chmod(path, mode)))
    for mode in (0o600, 0o644, 0o666):
        results.write_atomically(tmp_path / "file", b"x", mode=mode)
        assert permissions(tmp_path / "file") == mode
    assert seen == [0o600] * 3


# Connections ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """Two servers of one application: one is quick to close stalled connections, the other one is not."""

    hasty: int  # port
    patient: int
    place: Path
    cookie: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    (place / "secret.png").write_bytes(SECRET)
    app = make_app(open_desk(made_suite(place / "suite")), TOKEN)
    with running(app, timeout=0.05) as hasty, running(app, timeout=1000) as patient:
        yield Served(hasty, patient, place, new_cookie(patient))


def new_cookie(port: int) -> str:
    request = f"GET /?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    found = re.search(rb"set-cookie: ([^;]+);", exchange(port, request.encode()))
    assert found
    return found[1].decode()


WHOLE = b"GET /page.js HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"
HALVES = {
    "nothing": b"",
    "half a line": b"GET / HT",
    "headers without an end": b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n",
    "half a body": b"POST /api/mark HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 100\r\n\r\n{",
    "half a chunk": b"POST /api/mark HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    "a second half": WHOLE + b"GET / HTTP/1.1\r\nHos",
    "no second request": WHOLE,
}


@pytest.mark.parametrize("name", HALVES)
def test_a_client_that_stalls_is_closed(served, name) -> None:
    before = tree(served.place)
    half, port = HALVES[name], served.hasty
    with connect(port) as stalled:
        stalled.sendall(half % port if b"%d" in half else half)
        assert set(statuses(read_all(stalled))) <= {403}
    assert tree(served.place) == before


@pytest.mark.parametrize("half", [b"X-Header: ", b"Content-Length: 999999\r\n\r\n"])
def test_bytes_that_complete_nothing_do_not_keep_a_connection_open(served, half) -> None:
    with connect(served.hasty) as client, pytest.raises(ConnectionError):  # noqa: PT012
        client.sendall(b"POST /api/mark HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s" % (served.hasty, half))
        while True:
            client.sendall(b"x")
            threading.Event().wait(0.02)


def test_a_client_that_reads_no_answers_is_closed(served) -> None:
    head = f"GET /page.js HTTP/1.1\r\nHost: 127.0.0.1:{served.hasty}\r\nCookie: {served.cookie}\r\n\r\n"
    request = head.encode()
    with connect(served.hasty) as client, pytest.raises(ConnectionError):  # noqa: PT012
        while True:
            client.sendall(request * 100)


def test_an_answer_may_take_longer_than_the_timeout() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    with running(slow, timeout=0.1) as port:
        assert statuses(exchange(port, WHOLE % port)) == [200]


def test_idle_connections_cannot_keep_others_out(tmp_path) -> None:
    """New ones replace the oldest of those that wait for their clients, and there are never more than allowed."""
    path = made_suite(tmp_path / "suite")
    with running(make_app(open_desk(path), TOKEN), timeout=1000, max_connections=8) as port:
        idle = []
        for i in range(20):
            idle.append(connect(port))
            idle[-1].sendall(b"GET / HT" if i % 2 else b"")
        for old in idle[:12]:
            assert read_all(old) == b""
        for i, new in enumerate(idle[12:]):
            new.sendall(
                (b"" if i % 2 else b"GET / HT") + b"TP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % port
            )
            assert statuses(read_all(new)) == [403]
        for client in idle:
            client.close()


def test_a_connection_too_many_is_closed_if_all_others_are_at_work() -> None:
    begun, done = threading.Semaphore(0), threading.Event()

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        begun.release()
        await asyncio.to_thread(done.wait, PATIENCE)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    with running(busy, timeout=1000, max_connections=2) as port:
        working = [connect(port) for _ in range(2)]
        for client in working:
            client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % port)
            assert begun.acquire(timeout=PATIENCE)
        with connect(port) as other:
            assert read_all(other) == b""
        done.set()
        for client in working:
            assert statuses(read_all(client)) == [200]
            client.close()


# Attacks --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """A request that is put together as it comes, and may not be one."""

    method: str = "GET"
    target: str = "/api/about"
    version: str = "HTTP/1.1"
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False  # whether a server that waits for nothing more must answer it

    def content(self, port: int) -> bytes:
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        text = f"{self.method} {self.target} {self.version}\r\n{head}\r\n".replace("PORT", str(port))
        return text.encode("utf-8", "surrogateescape") + self.body


KNOWN = [
    "/",
    "/page.css",
    "/page.js",
    "/classes.js",
    "/controls.js",
    "/api/about",
    "/api/state",
    "/image/0/case.png",
    "/verdicts.csv",
]
CHANGES = ["/api/list", "/api/mark", "/api/undo"]
MARK = b'{"row": 0, "by": "eve", "verdict": "valid"}'
METHODS = ["GET", "POST"] * 4 + [
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "G E T",
    "é",
    "",
]
TARGETS = [
    *KNOWN, *CHANGES * 4, "/..", "/../secret.png", "/%2e%2e/secret.png", "/image/../../secret.png", "*", "?", "", "/é",
    "/image/0/..%2f..%2fsecret.png", "/image/%2e%2e%2fsecret/case.png", "/image/0/case.png/../../../../secret.png",
    "/image/%00/case.png", "/%ff%fe", "/%zz", "//evil.example/", "http://evil.example/", "\\..\\secret.png",
    "http://127.0.0.1:PORT/api/about", "http://127.0.0.1:PORT/../secret.png", "/api/mark/", "/api//mark", "/api/mark;a",
    "/API/MARK", "/api/mark%20", "/api/rows?key=%zz", "/api/rows?start=-1", "/image/0/difference.png?factor=1e9",
    "/?token=", "/?token=guess", "/verdicts-000000.jsonl", "/manifest.json", "/" + "a" * 3000, "/" + "a" * 100_000,
    "/image/" + "9" * 300 + "/case.png", "/api/about HTTP/1.1",
]  # fmt: skip
VERSIONS = ["HTTP/1.1"] * 9 + ["HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "http/1.1", "", "HTTP/1.1 x"]
HOSTS = ["127.0.0.1:PORT", "localhost:PORT", "[::1]:PORT", "localhost"]
BAD_HOSTS = [
    "", "evil.example", "127.0.0.1.:PORT", "me@127.0.0.1:PORT", "127.0.0.1:1", "127.0.0.1:PORT0", "127.0.0.1: PORT",
    "127.0.0.1:PORT, evil.example", "0.0.0.0:PORT", "localhost.:PORT", "evil.example:PORT", "é:PORT", "127.0.0.1:+PORT",
]  # fmt: skip
BAD_ORIGINS = [
    "null", "", "http://evil.example", "https://127.0.0.1:PORT", "http://127.0.0.1:1", "http://127.0.0.1:PORT/",
]  # fmt: skip
BAD_COOKIES = [
    "", "operant-1=x", "operant=", "NAME=", f"NAME={TOKEN}", "NAME=x; NAME=y", "NAME", "=SECRET", "é=1", "NAME=\x7f",
]  # fmt: skip
KINDS = ["application/json"] * 6 + [
    "application/json; charset=utf-8", "text/plain", "application/x-www-form-urlencoded", "", "é",
    "multipart/form-data; boundary=x", "application/json, text/plain",
]  # fmt: skip
BODIES = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'{"row": 1e999}', b'{"row": -1, "verdict": "valid"}',
    b'{"row": 0, "verdict": "valid", "by": "a,b"}', b'{"row": 0, "verdict": ["valid"]}', b"x" * 40_000, MARK[:-1],
    b'{"row": 0, "row": 99, "verdict": "valid"}',
]  # fmt: skip
LENGTHS = ["EXACT"] * 9 + ["0", "7", "99999", "-1", "1e3", "9" * 30, "", "5, 5"]
FETCHES = ["cross-site", "same-site", "é", ""]
MORE = [
    ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "gzip"), ("Expect", "100-continue"), ("Range", "bytes=0-1"),
    ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Content-Length", "3"), ("X-HTTP-Method-Override", "POST"),
    ("X-Forwarded-Host", "127.0.0.1"), ("Forwarded", "host=127.0.0.1"), ("X-Operant-Token", TOKEN), ("Accept", "é"),
    ("X-Long", "x" * 70_000), ("Bad Name", "x"), ("X\tTab", "y"), *[("Connection", "close")] * 9,
]  # fmt: skip
HARMLESS = [header for header in MORE if header[0] not in ("Transfer-Encoding", "Content-Length", "X-Long", "Upgrade")]
MAX_CERTAIN = 10_000  # bytes; a server may close before it has read more, and its answer is lost


@st.composite
def attacks(draw: Any, cookie: str, *, rightful: bool) -> Attack:
    """A random request; one that is not rightful has the wrong host, origin or cookie, or several of them.

    A rightful one never has a body that is a verdict. Half of them are complete requests, though their parts may be
    wrong.
    """
    complete = draw(st.booleans())
    wrong = set() if rightful else draw(st.sets(st.sampled_from(["host", "origin", "cookie", "fetch"]), min_size=1))
    one = lambda values: draw(st.sampled_from(values))  # noqa: E731
    bodies = BODIES if rightful else [*BODIES, MARK, MARK, MARK]
    body = one([b for b in bodies if len(b) < MAX_CERTAIN] if complete else bodies)
    host = one(BAD_HOSTS if "host" in wrong else HOSTS)
    origin = one(BAD_ORIGINS) if "origin" in wrong else f"http://{host}"
    name, _, secret = cookie.partition("=")
    sent = one(BAD_COOKIES).replace("NAME", name).replace("SECRET", secret) if "cookie" in wrong else cookie
    length = "EXACT" if complete else one(LENGTHS)
    headers = [
        ("Host", host),
        ("Origin", origin),
        ("Cookie", sent),
        ("Content-Length", length.replace("EXACT", str(len(body)))),
        ("Content-Type", one(KINDS)),
    ]
    if "fetch" in wrong:
        headers.append(("Sec-Fetch-Site", one(FETCHES)))
    more = draw(st.lists(st.sampled_from(HARMLESS if complete else MORE), max_size=2))
    if complete:
        more.append(("Connection", "close"))
    targets = [t for t in TARGETS if wrong != {"fetch"} or t.partition("?")[0] != "/"]  # links may lead to the page
    if complete:
        targets = [t for t in targets if len(t) < MAX_CERTAIN]
    version = "HTTP/1.1" if complete else one(VERSIONS)
    return Attack(one(METHODS), one(targets), version, draw(st.permutations(headers + more)), body, complete)


def answer(served: Served, attack: Attack) -> bytes:
    """What is answered to an attack; a complete request must get an answer, however busy the machine is."""
    port = served.patient if attack.complete else served.hasty
    received = exchange(port, attack.content(port))
    assert statuses(received) or not attack.complete, attack
    return received


RAW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RAW
@given(data=st.data())
def test_strangers_get_4xx_and_write_nothing(served, data) -> None:
    before = tree(served.place)
    attack = data.draw(attacks(served.cookie, rightful=False))
    received = answer(served, attack)
    assert all(400 <= status < 500 for status in statuses(received)), received[:300]
    assert SECRET not in received
    assert served.cookie.partition("=")[2].encode() not in received
    assert tree(served.place) == before


@RAW
@given(data=st.data())
def test_the_rightful_client_gets_2xx_or_4xx_and_wrong_requests_write_nothing(served, data) -> None:
    before = tree(served.place)
    attack = data.draw(attacks(served.cookie, rightful=True))
    received = answer(served, attack)
    assert all(200 <= status < 300 or 400 <= status < 500 or status == 100 for status in statuses(received)), received[
        :300
    ]
    assert SECRET not in received
    assert tree(served.place) == before


@pytest.mark.parametrize("host", HOSTS)
def test_the_rightful_client_is_answered(served, host) -> None:
    port = served.patient
    own = [("Host", host), ("Cookie", served.cookie), ("Origin", f"http://{host}"), ("Connection", "close")]
    for target in KNOWN:
        assert statuses(exchange(port, Attack(target=target, headers=own).content(port))) == [200]
    for target, body in (("/api/list", b'{"order": "suite"}'), ("/api/undo", b"{}")):
        kind = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        assert statuses(exchange(port, Attack("POST", target, headers=own + kind, body=body).content(port))) == [200]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([], 400),
        (["Host: 127.0.0.1:PORT"] * 2, 400),
        (["Host: 127.0.0.1:PORT", "Host: evil.example"], 400),
        (["Host: 127.0.0.1:PORT ", "host: 127.0.0.1:PORT"], 400),
        (["Host : 127.0.0.1:PORT"], 400),
        (["Host: 127.0.0.1:PORT\r\n evil.example"], 421),
        (["Host:"], 421),
        (["Host: 127.0.0.1:PORT\t"], 200),  # blanks around a value are not part of it
    ],
)
def test_hosts_are_read_strictly_on_the_wire(served, lines, status) -> None:
    head = "\r\n".join(["GET /api/about HTTP/1.1", *lines, f"Cookie: {served.cookie}", "Connection: close", "", ""])
    content = head.replace("PORT", str(served.patient)).encode()
    assert statuses(exchange(served.patient, content)) == [status]


def test_an_old_client_without_host_is_rejected(served) -> None:
    content = f"GET /api/about HTTP/1.0\r\nCookie: {served.cookie}\r\n\r\n".encode()
    assert statuses(exchange(served.patient, content)) == [421]
