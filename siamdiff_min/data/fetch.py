"""One file over a network that fails: connections that break, servers that lie, files that change on the way.

What has come in so far is a file `.part`. Beside it lies, as JSON, which version of which URL it is the beginning of:
the next attempt goes on from there, even in another process, and never joins two versions. A length that is announced
too short shows only in the whole file, which the caller checks.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
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
PASSING = (408, 416, 425, 429)  # statuses below 500 after which another attempt may succeed
DISK = (errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)
BLOCK = 2**20  # bytes


class DownloadError(SiamDiffError):
    """Something could not be downloaded, or is not what it should be; the message names it and the reason."""

    def __init__(self, what, reason: str):
        super().__init__(f"{what}: {reason}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a redirect only to https, or from http to http."""

    def redirect_request(self, request, response, code, message, headers, target):
        if not target.lower().startswith(("https://", f"{request.type}://")):
            response.close()
            raise DownloadError(request.full_url, f"the server redirects to {target:.200}, which is not https")
        return super().redirect_request(request, response, code, message, headers, target)


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
            except (OSError, http.client.HTTPException, ValueError) as error:  # the last: lengths that are no numbers
                if isinstance(error, SiamDiffError) or getattr(error, "errno", None) in DISK:
                    raise
                reason, pause = _passing(url, error)
                size = part.stat().st_size if part.exists() else 0
                failures, reached = (1, size) if size > reached else (failures + 1, reached)
                if failures > len(PAUSES):
                    reason = f"given up after {failures} attempts without progress: {reason}"
                    raise DownloadError(url, f"{reason}; {size} bytes are kept, the same command goes on") from error
            pause = max(PAUSES[failures - 1], pause)
            tqdm.write(f"{url}: {reason}; again in {pause:g} s", file=sys.stderr)
            time.sleep(pause)


def _passing(url: str, error: Exception) -> tuple[str, int]:
    """Why an attempt failed, and the seconds that the server asks to wait. Raises DownloadError if all would fail."""
    reason, wait = getattr(error, "reason", error), ""
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise DownloadError(url, f"the server's certificate is not valid: {reason.verify_message}") from error
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        reason, wait = f"the server answers {error.code} {reason}", error.headers.get("Retry-After", "")
        if error.code < 500 and error.code not in PASSING:
            raise DownloadError(url, reason) from error
    return str(reason) or type(error).__name__, min(int(wait), LONGEST_PAUSE) if wait.isdecimal() else 0


def discard(part: Path) -> None:
    """Remove an unfinished file; what is said of it first, so that it is never said of another."""
    _version_file(part).unlink(missing_ok=True)
    part.unlink(missing_ok=True)


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _attempt(url: str, part: Path, bar: tqdm) -> None:
    """One request. What comes of it is appended to `part`, unless it is of another version."""
    try:
        known = json.loads(_version_file(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    offset = part.stat().st_size if known.get("url") == url and part.exists() else 0
    if offset and offset == known["size"]:
        return  # an earlier process was interrupted after this
    request = urllib.request.Request(url, headers={"User-Agent": "siamdiff_min"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
        if known["version"] and not known["version"].startswith("W/"):  # HTTP allows no weak ETag here
            request.add_header("If-Range", known["version"])
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # there is no more: the file is now shorter, or never was as long as announced
            discard(part)
        raise
    with response:
        size, version = response.length, response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if response.status == 206:
            size = known.get("size", 0)
            asked = f"bytes {offset}-{size - 1}/{size}"
            if response.headers.get("Content-Range") != asked or version not in ("", known["version"]):
                discard(part)
                raise ConnectionError("another part than the one asked for, or of another version")
        elif response.status != 200:
            raise DownloadError(url, f"the server answers {response.status} {response.reason}")
        elif response.headers.get_content_type() in ("text/html", "application/xhtml+xml") or size == 0:
            raise DownloadError(url, "an empty file" if size == 0 else "an HTML page, not an archive")
        else:
            discard(part)
            part.touch()
            if size is not None:  # without it, whole and interrupted look the same: nothing can go on from there
                write_file(_version_file(part), json.dumps({"url": url, "size": size, "version": version}).encode())
        with open(part, "ab") as file:
            bar.total, bar.n = size, file.tell()
            while block := response.read1(BLOCK):
                file.write(block)
                bar.update(len(block))
            file.flush()
            os.fsync(file.fileno())
            length = file.tell()
    if size is not None and length != size:
        if length > size:
            discard(part)
        raise ConnectionError(f"{length} of {size} bytes")
