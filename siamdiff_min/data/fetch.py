"""One file over a network that fails: connections that break, servers that lie, files that change on the way.

What has come in so far is a file `.part`; beside it lies, as JSON, which version of which URL it is the beginning of.
So an attempt goes on where the last one stopped, even in another process, and never joins two versions. Whether the
whole is what it should be is for the caller to find out: a length that is announced too short shows only then.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from ..files import SiamDiffError, write_file

TIMEOUT = 60  # seconds without a byte
PAUSES = (1, 2, 4, 8, 16, 32, 60)  # seconds before each further attempt; counted anew where the file has grown
LONGEST_PAUSE = 300  # seconds, where the server asks for one
BLOCK = 2**20  # bytes
LATER = (408, 416, 425, 429)  # statuses below 500 after which another attempt may succeed
_VERSION = ("ETag", "Last-Modified")


class DownloadError(SiamDiffError):
    """Something could not be downloaded, or is not what it should be; the message names it and the reason."""

    def __init__(self, what, reason: str):
        super().__init__(f"{what}: {reason}")


class _Interrupted(Exception):
    """An attempt that failed in a way that the next may not; after so many seconds, where the server says so."""

    def __init__(self, reason: str, pause: int = 0):
        super().__init__(reason)
        self.pause = pause


def fetch(url: str, part: Path) -> None:
    """Download to the file `part`, from where an earlier attempt stopped, also one of an earlier process.

    Raises:
        DownloadError: the server refuses, sends something else than a file, or not all of it after many attempts.
        OSError: the disk is full or cannot be written.
    """
    if not url.startswith(("https://", "http://")):
        raise DownloadError(url, "neither https:// nor http://")
    failures, reached = 0, 0
    with tqdm(desc=url.rpartition("/")[2], unit="B", unit_scale=True, disable=None) as bar:
        while True:
            try:
                return _attempt(url, part, bar)
            except _Interrupted as error:
                size = part.stat().st_size if part.exists() else 0
                failures, reached = (1, size) if size > reached else (failures + 1, reached)
                if failures > len(PAUSES):
                    reason = f"given up after {failures} attempts without progress: {error}"
                    raise DownloadError(url, f"{reason}; {size} bytes are kept, the same command goes on") from error
                pause = max(PAUSES[failures - 1], error.pause)
                tqdm.write(f"{url}: {error}; again in {pause:g} s", file=sys.stderr)
                time.sleep(pause)


def discard(part: Path) -> None:
    """Remove an unfinished file; what is said of it first, so that it is never said of another."""
    _state_file(part).unlink(missing_ok=True)
    part.unlink(missing_ok=True)


def _attempt(url: str, part: Path, bar: tqdm) -> None:
    """One request; whatever comes of it is appended to `part`."""
    state = _read_state(part, url)
    offset = part.stat().st_size if state and part.exists() else 0
    if state and offset == state["size"]:
        return  # the last process was interrupted after this
    headers = {"User-Agent": "siamdiff_min"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        version = state["ETag"] or state["Last-Modified"]
        if version and not version.startswith("W/"):  # a weak ETag must not be used for this
            headers["If-Range"] = version
    with _open(url, headers) as response:
        found = {name: response.headers.get(name, "") for name in _VERSION}
        if response.status == 206:
            sent = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+)", response.headers.get("Content-Range", "").strip())
            same = all(state.get(name) == value for name, value in found.items() if value)
            if not same or sent is None or [int(x) for x in sent.groups()] != [offset, state.get("size")]:
                discard(part)
                raise _Interrupted("another part than the one asked for, or of another version")
            size = state["size"]
        elif response.status == 200:
            if response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
                raise DownloadError(url, "an HTML page, not an archive")
            if response.length == 0:
                raise DownloadError(url, "an empty file")
            offset, size = 0, response.length
            discard(part)
            part.touch()
            if size is not None:  # without it, whole and interrupted look the same: nothing can go on from there
                write_file(_state_file(part), json.dumps({"url": url, "size": size, **found}).encode())
        else:
            _refuse(url, part, response)
        bar.total, bar.n = size, offset
        with open(part, "ab") as file:
            while block := _read(response):
                file.write(block)
                bar.update(len(block))
            file.flush()
            os.fsync(file.fileno())
            length = file.tell()
    if size is not None and length < size:
        raise _Interrupted(f"{length} of {size} bytes")
    if size is not None and length > size:
        discard(part)
        raise _Interrupted(f"{length} bytes where {size} were announced")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a redirect only to https, or from http to http."""

    def redirect_request(self, request, response, code, message, headers, target):
        if not target.lower().startswith(("https://", f"{request.type}://")):
            raise DownloadError(request.full_url, f"the server redirects to {target:.200}, which is not https")
        return super().redirect_request(request, response, code, message, headers, target)


def _open(url: str, headers: dict[str, str]):
    """The response, whatever its status. Raises DownloadError where another attempt would not help."""
    opener = urllib.request.build_opener(_Redirects)
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        return error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise DownloadError(url, f"the server's certificate is not valid: {reason.verify_message}") from error
        raise _Interrupted(str(reason) or type(error).__name__) from error


def _refuse(url: str, part: Path, response) -> None:
    """Raise what a status means that brings no bytes."""
    reason = f"the server answers {response.status} {response.reason}"
    if response.status == 416:  # there is no more: the file is now shorter, or never was as long as announced
        discard(part)
    if response.status in LATER or response.status >= 500:
        pause = response.headers.get("Retry-After", "")
        raise _Interrupted(reason, min(int(pause), LONGEST_PAUSE) if pause.isdecimal() else 0)
    raise DownloadError(url, reason)


def _read(response) -> bytes:
    """What has come in; nothing at the end, be it the right one or not."""
    try:
        return response.read1(BLOCK)
    except (OSError, http.client.HTTPException, ValueError) as error:  # the last from lengths that are no numbers
        raise _Interrupted(str(error) or type(error).__name__) from error


def _state_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_state(part: Path, url: str) -> dict:
    """Size and version of the file that `part` is the beginning of; nothing where that is not known."""
    try:
        state = json.loads(_state_file(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if state["url"] == url else {}
