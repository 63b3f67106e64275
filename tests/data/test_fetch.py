"""Downloads from a local server that breaks connections, lies about lengths, ignores ranges and changes its file."""

import contextlib
import os
import random
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from siamdiff_min.data import fetch as module
from siamdiff_min.data.fetch import DownloadError, fetch
from siamdiff_min.files import WriteError

BODY = random.Random(1).randbytes(300_000)


class Site(ThreadingHTTPServer):
    """A server of files. `plan` has one entry for each coming request, how it is to misbehave; then it behaves.

    cut: bytes after which the connection breaks; reset: by an RST; length: announced, or None for none; status, type,
    body, range: in place of the true ones; ranges: False where they are ignored; stall: nothing is sent.
    """

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.plan, self.requests, self.sent = files, [], [], 0
        self.always = {}
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.over = threading.Event()

    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the client may hang up
            super().handle_error(request, address)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        site = self.server
        site.requests.append(dict(self.headers))
        step = site.always | (site.plan.pop(0) if site.plan else {})
        body = step.get("body", site.files.get(self.path.lstrip("/")))
        status = step.get("status", 404 if body is None else 200)
        start, total = 0, len(body or b"")
        wanted = self.headers.get("Range")
        if status == 200 and wanted and step.get("ranges", True):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            status = 206 if start < total else 416
        data = (body or b"")[start:] if status in (200, 206) else step.get("body", b"no")
        self.send_response(status)
        for name, value in step.get("headers", ()):
            self.send_header(name, value)
        self.send_header("Content-Type", step.get("type", "application/octet-stream"))
        if status in (206, 416):
            place = f"{start}-{total - 1}" if status == 206 else "*"
            self.send_header("Content-Range", step.get("range", f"bytes {place}/{total}"))
        length = step.get("length", len(data))
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if step.get("stall"):
            site.over.wait(30)
        data = data[: step.get("cut", len(data))]
        site.sent += len(data)  # before the reader, who may be done at once, goes on to look at it
        self.wfile.write(data)
        if "cut" in step and step.get("reset"):
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def serve(files):
    site = Site(files)
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.over.set()
        site.shutdown()
        thread.join()
        site.server_close()


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(module, "PAUSES", (0,) * 7)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve({"x.tar": BODY}) as running:
        yield running


def got(site, tmp_path, name="x.tar"):
    fetch(f"{site.url}/{name}", tmp_path / "x.part")
    return (tmp_path / "x.part").read_bytes()


def starts(site):
    """Where every request wanted to begin."""
    return [int(r.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")) for r in site.requests]


# ---- connections that break ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
def test_cut_at_many_places(site, tmp_path, reset):
    """Connections that end early go on from there: every byte arrives, and few of them twice."""
    draw = random.Random(reset)
    cuts = sorted(draw.sample(range(len(BODY)), 40))
    site.plan = [{"cut": stop - start, "reset": reset} for start, stop in zip([0, *cuts], cuts)]
    assert got(site, tmp_path) == BODY
    asked = starts(site)
    assert len(asked) >= 20 and asked == sorted(asked) and asked[-1] > len(BODY) / 2
    assert site.sent < 2 * len(BODY)
    if not reset:  # where the connection is reset, bytes that had arrived may be lost
        assert asked == [0, *cuts] and site.sent == len(BODY)


def test_ranges_that_are_ignored(site, tmp_path):
    """The file then starts anew, and what came before is not joined to it."""
    site.always["ranges"] = False
    site.plan = [{"cut": n} for n in (1000, 0, 200_000, 7)]
    assert got(site, tmp_path) == BODY and site.sent == len(BODY) + 201_007
    assert starts(site) == [0, 1000, 0, 200_000, 7]


def test_bounded_attempts(site, tmp_path):
    site.plan = [{"cut": 1000}] + [{"cut": 0}] * 50
    with pytest.raises(DownloadError, match=r"x\.tar: 1000 of 300000 bytes; 1000 bytes are kept, the same command"):
        got(site, tmp_path)
    assert len(site.requests) == 8
    site.plan = []
    assert got(site, tmp_path) == BODY and starts(site)[-1] == 1000


def test_an_end_that_never_comes(site, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    site.plan = [{"stall": True}, {"cut": 5000}, {"stall": True}]
    assert got(site, tmp_path) == BODY and starts(site) == [0, 0, 5000, 5000]


def test_nobody_listens(site, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/x.tar"
        with pytest.raises(DownloadError, match=r"x\.tar: .*refused"):
            fetch(url, tmp_path / "x.part")
    with pytest.raises(DownloadError, match="neither https"):
        fetch("file:///etc/passwd", tmp_path / "x.part")


# ---- lies about lengths ----------------------------------------------------------------------------------------------


def test_more_is_announced_than_there_is(site, tmp_path):
    """The server itself then says where the file ends."""
    site.always["length"] = len(BODY) + 100
    assert got(site, tmp_path) == BODY and starts(site) == [0, len(BODY)]


def test_more_comes_than_is_announced(site, tmp_path):
    """A part that is too long is not kept; it starts anew."""
    site.plan = [{"cut": 1000}, {"body": BODY + b"more", "range": f"bytes 1000-{len(BODY) - 1}/{len(BODY)}"}]
    assert got(site, tmp_path) == BODY and starts(site) == [0, 1000, len(BODY) + 4, 0]


def test_less_is_announced_than_there_is(site, tmp_path):
    """Only the content can tell (`test_download.py`); nothing beyond the announced length is taken."""
    site.plan = [{"length": 1000}] * 9
    with contextlib.suppress(DownloadError):  # where Python lets the rest through
        assert got(site, tmp_path) == BODY[:1000]
    assert not (tmp_path / "x.part").exists() or (tmp_path / "x.part").stat().st_size <= 1000


def test_without_a_length(site, tmp_path):
    for length in (None, "-5", "many"):
        site.plan = [{"length": length}]
        assert got(site, tmp_path) == BODY and starts(site)[-1] == 0
        (tmp_path / "x.part").unlink()
    site.plan = [{"cut": 1000}, {"length": None}]
    assert got(site, tmp_path) == BODY and starts(site)[-2:] == [0, 1000]


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [204, 400, 401, 403, 404, 410])
def test_refusals_are_final(site, tmp_path, status):
    site.plan = [{"cut": 1000}, {"status": status}]
    with pytest.raises(DownloadError, match=rf"x\.tar: .* {status}.*"):
        got(site, tmp_path)
    assert len(site.requests) == 2 and (tmp_path / "x.part").read_bytes() == BODY[:1000]


def test_troubles_pass(site, tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(module, "PAUSES", (1, 2, 4, 8, 16, 32, 60))
    monkeypatch.setattr(time, "sleep", pauses.append)
    site.plan = [{"status": status} for status in (500, 429, 503, 503, 502)] + [{"cut": 9}, {"cut": 1}]
    assert got(site, tmp_path) == BODY
    assert pauses == [1, 2, 4, 8, 16, 1, 1]  # counted anew where bytes have come
    site.plan = [{"status": 500}] * 50
    (tmp_path / "x.part").unlink()
    with pytest.raises(DownloadError, match=r"x\.tar: HTTP Error 500"):
        got(site, tmp_path)
    assert pauses[7:] == [1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize("step, reason", [
    ({"type": "text/html; charset=utf-8"}, "an HTML page"), ({"type": "Application/XHTML+xml"}, "an HTML page"),
    ({"body": b""}, "an empty file"),
])  # fmt: skip
def test_pages_and_nothing(site, tmp_path, step, reason):
    site.plan = [{"cut": 1000}, {"ranges": False, **step}]
    with pytest.raises(DownloadError, match=reason):
        got(site, tmp_path)
    assert len(site.requests) == 2 and got(site, tmp_path) == BODY and starts(site)[-1] == 1000


def test_redirects_keep_the_range(site, tmp_path):
    moved = {"status": 302, "headers": [("Location", f"{site.url}/x.tar")]}
    site.plan = [moved, {"cut": 1000}, moved, {}]
    assert got(site, tmp_path, "old") == BODY and starts(site) == [0, 0, 1000, 1000]


CERTIFICATE = Path(__file__).parent / "certificate.pem"  # of 127.0.0.1, signed by itself; openssl req -x509 ...


def secure(site):
    """The server speaks TLS, with a certificate that nobody but itself has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    site.socket = context.wrap_socket(site.socket, server_side=True)
    site.url = site.url.replace("http:", "https:")


def test_a_certificate_that_is_not_valid_is_final(site, tmp_path, monkeypatch):
    secure(site)
    monkeypatch.setattr(time, "sleep", lambda pause: pytest.fail("a second attempt"))
    with pytest.raises(DownloadError, match=r"x\.tar: .*certificate verify failed: self.signed certificate"):
        got(site, tmp_path)
    assert site.requests == []


@pytest.mark.parametrize("start, target", [("https", "http"), ("https", "ftp"), ("http", "ftp")])
def test_redirects_do_not_leave_https(site, tmp_path, monkeypatch, start, target):
    if start == "https":
        secure(site)
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    assert got(site, tmp_path) == BODY and site.url.startswith(f"{start}:")
    (tmp_path / "x.part").unlink()
    site.plan = [{"status": 302, "headers": [("Location", f"{target}://127.0.0.1:1/y.tar")]}] * 2
    with pytest.raises(DownloadError, match=rf"x\.tar: the server redirects to {target}://.*, which is not https"):
        got(site, tmp_path)
    assert len(site.requests) == 2


# ---- files that change on the way ------------------------------------------------------------------------------------

OTHER = random.Random(2).randbytes(len(BODY))


def test_a_file_that_has_become_shorter_begins_anew(site, tmp_path):
    site.plan = [{"cut": 1000}, {"status": 404}]
    with pytest.raises(DownloadError):
        got(site, tmp_path)
    site.files["x.tar"] = OTHER[:500]
    assert got(site, tmp_path) == OTHER[:500] and starts(site) == [0, 1000, 1000, 0]


def test_an_answer_to_another_question(site, tmp_path):
    for wrong in ("bytes 0-9/10", f"bytes 999-{len(BODY) - 1}/{len(BODY)}", "bytes */300000", "nonsense", ""):
        site.plan = [{"cut": 1000}, {"range": wrong}]
        assert got(site, tmp_path) == BODY and starts(site)[-2:] == [1000, 0]
        (tmp_path / "x.part").unlink()


def test_a_whole_part_is_not_sent_again(site, tmp_path):
    assert got(site, tmp_path) == BODY and got(site, tmp_path) == BODY
    assert starts(site) == [0, len(BODY)] and site.sent <= len(BODY) + len(b"no")


# ---- the disk, and the end of the process ----------------------------------------------------------------------------


def test_a_full_disk(site, tmp_path):
    """A real limit on the size of files: not the network's fault, so it is not tried again; later it goes on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(WriteError, match=r"could not write .*x\.part: File too large"):
            got(site, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(site.requests) == 1 and (tmp_path / "x.part").stat().st_size <= 100_000
    assert got(site, tmp_path) == BODY and starts(site)[-1] > 0


KILLED = """
import http.client, os, random, signal, sys, time
from pathlib import Path
from siamdiff_min.data import fetch
url, part, draw, longest, status = sys.argv[1], Path(sys.argv[2]), random.Random(0), 0.2, signal.SIGKILL
fetch.BLOCK = 1000
while status == signal.SIGKILL:
    child = os.fork()
    if not child:
        read = http.client.HTTPResponse.read1
        http.client.HTTPResponse.read1 = lambda *args: (time.sleep(0.002), read(*args))[1]
        fetch.fetch(url, part)
        os._exit(0)
    time.sleep(draw.uniform(0, longest))
    longest *= 1.05  # so that it ends on a slow machine too
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    print(part.stat().st_size if part.exists() else 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that were forked")
def test_killed_at_random_moments(site, tmp_path):
    """Again and again, until it has got to the end: every process goes on where the last one was killed."""
    command = [sys.executable, "-c", KILLED, f"{site.url}/x.tar", str(tmp_path / "x.part")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.returncode == 0, result.stderr
    sizes = [int(size) for size in result.stdout.split()]
    assert sizes == sorted(sizes) and sizes[-1] == len(BODY) and len({*sizes} - {0, len(BODY)}) >= 3
    assert (tmp_path / "x.part").read_bytes() == BODY
