"""One file over a network that fails: connections break, ranges are ignored, lengths are wrong.

What has come in so far is a file `.part`; the next attempt goes on from there, even in another process. Published files
have their version in their address, so two attempts get the same one. The caller checks the whole file.
"""

import http.client
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from ..files import SiamDiffError, writing

TIMEOUT = 60  # seconds without a byte
PAUSES = (1, 2, 4, 8, 16, 32, 60)  # seconds before each further attempt; counted anew where the file has grown
BLOCK = 2**20  # bytes


class DownloadError(SiamDiffError):
    """Something could not be downloaded, or is not what it should be; the message names it and the reason."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a redirect only to https, or from http to http."""

    def redirect_request(self, request, response, code, message, headers, target):
        if not target.lower().startswith(("https://", f"{request.type}://")):
            response.close()
            raise DownloadError(f"{request.full_url}: the server redirects to {target:.200}, which is not https")
        return super().redirect_request(request, response, code, message, headers, target)


def fetch(url: str, part: Path) -> None:
    """Download to the file `part`, from where an earlier attempt stopped.

    Raises:
        DownloadError: the server refuses, sends something else than a file, or not all of it after many attempts.
        WriteError: the disk is full or cannot be written.
    """
    if not url.startswith(("https://", "http://")):
        raise DownloadError(f"{url}: neither https:// nor http://")
    failures, reached = 0, 0
    while True:
        try:
            return _attempt(url, part)
        except SiamDiffError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a redirect to nonsense
            size = part.stat().st_size if part.exists() else 0
            failures, reached = (1, size) if size > reached else (failures + 1, reached)
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (416, 429)
            forged = isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)
            if failures > len(PAUSES) or refused or forged:
                kept = f"; {size} bytes are kept, the same command goes on" if size else ""
                raise DownloadError(f"{url}: {error}{kept}") from error
            pause = PAUSES[failures - 1]
            print(f"{url}: {error}; again in {pause} s", file=sys.stderr)
        time.sleep(pause)


def _attempt(url: str, part: Path) -> None:
    """One request. What comes of it is appended to `part`; what cannot be, begins the file anew."""
    offset = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "siamdiff_min"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing follows: the file is whole, or another one than before
            if error.headers.get("Content-Range") == f"bytes */{offset}":
                return
            part.unlink(missing_ok=True)
        raise
    with response:
        end = response.length
        if response.status == 206:
            place = re.fullmatch(rf"bytes {offset}-[0-9]+/([0-9]+)", response.headers.get("Content-Range", ""))
            if place is None:
                part.unlink()
                raise ConnectionError("another part than the one asked for")
            end = int(place[1])
        elif response.status != 200:
            raise DownloadError(f"{url}: the server answers {response.status} {response.reason}")
        elif end == 0 or response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
            raise DownloadError(f"{url}: {'an empty file' if end == 0 else 'an HTML page, not an archive'}")
        else:
            part.unlink(missing_ok=True)
            offset = 0
        name = url.rpartition("/")[2]
        with tqdm(desc=name, total=end, initial=offset, unit="B", unit_scale=True, disable=None) as bar:
            while block := response.read1(BLOCK):
                with writing(part), open(part, "ab") as file:
                    file.write(block)
                bar.update(len(block))
    with writing(part), open(part, "ab") as file:
        os.fsync(file.fileno())
    if end not in (None, part.stat().st_size):
        raise ConnectionError(f"{part.stat().st_size} of {end} bytes")
