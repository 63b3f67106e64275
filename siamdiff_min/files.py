"""The one way to write, lock and checksum files, the errors that users see, and the frame of all commands.

A file gets its name only when it is whole, so a run killed at any moment leaves the old file as it was. Every error
that a user can cause is a `SiamDiffError` whose text is one sentence; the commands print it and exit.
"""

import argparse
import contextlib
import csv
import difflib
import errno
import fcntl
import hashlib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

TEMPORARY = ".siamdiff-tmp"  # ends the names of our temporary files
MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM}


def printable(text: str) -> str:
    """The text on one line. Tabs, line ends, control characters and bytes beyond UTF-8 are escaped as in Python."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_three(names: Sequence[str]) -> str:
    """The first of these names, for a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


class SiamDiffError(ValueError):
    """Something the user can mend: options, a file, a full disk. The message says what and where."""

    everywhere = False  # whether all processes of torchrun raise it, so that one message is enough

    def __str__(self) -> str:
        return "\n".join(map(printable, super().__str__().split("\n")))


class ConfigError(SiamDiffError):
    """Options that do not fit together, or do not fit the files."""

    everywhere = True


class StoreError(SiamDiffError):
    """A store that is damaged, of another version, or cannot be built; the message names its folder."""


class CheckpointError(SiamDiffError):
    """A file of weights that is damaged, or not what it should be."""

    everywhere = True


class WriteError(SiamDiffError):
    """A file that could not be written: full disk, read-only folder, no permission."""


class MachineError(SiamDiffError):
    """A fault of the machine, not of a file: no room, memory or open files left, a disk that fails."""


class StructureError(SiamDiffError):
    """A file, `path`, that is no protein: a fixed `reason`, which bulk runs count, and what was found (`detail`)."""

    def __init__(self, path, reason: str = "", detail: str = ""):
        super().__init__(str(path), reason, detail)  # all of them in `args`, so that it survives pickling
        self.path = str(path)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        text = f"{self.path}: {self.reason}" if self.reason else self.path
        return printable(f"{text} ({self.detail})" if self.detail else text)


class UnwantedError(StructureError):
    """A structure that can be read, but was not wanted: it counts as skipped, not as failed."""


def speaks_first() -> bool:
    """Whether this is the first process of torchrun on its machine: another machine may have other files."""
    return os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0"


class Parser(argparse.ArgumentParser):
    """Options cannot be abbreviated, so a new one changes no old command. A misspelt one is told the nearest."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str):
        wrong = "".join(re.findall(r"unrecognized arguments:.*?--([^\s=]+)", message))
        known = re.findall(r"--([\w-]+)", self.format_help())
        near = difflib.get_close_matches(wrong, known, 1)  # without the dashes, which all options share
        if not speaks_first():
            sys.exit(2)
        super().error(f"{message}. Did you mean --{near[0]}?" if near else message)


def load_module(name: str):
    """A module of the package: `.encoders`, `.tools.build`. Raises ConfigError for one of tools/ without tools/."""
    try:
        return importlib.import_module(name, __package__)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(f"{__package__}.tools"):
            raise
        raise ConfigError(f"{name[1:]} is not there: this copy of {__package__} is without its folder tools") from error


def part(name: str):
    """A function of tools/ by its name in `PARTS` of the package's face, which all processes import. ConfigError."""
    return getattr(load_module(sys.modules[__package__].PARTS[name]), name)


def part_or_none(name: str):
    """The same, None without tools/."""
    return part(name) if importlib.util.find_spec(f"{__package__}.tools") else None


def import_plugins(paths: Sequence[str | Path]) -> None:
    """Import the files of --plugin, which add to what can be chosen. Raises ConfigError if one is not there."""
    for path in map(Path, paths):
        if not path.is_file() or path.suffix != ".py" or "." in path.stem:
            raise ConfigError(f"--plugin {path}: no such file, or its name is not NAME.py with one dot")
        sys.path.insert(0, str(path.parent))
        found = getattr(importlib.import_module(path.stem), "__file__", None)
        if not (found and path.samefile(found)):
            raise ConfigError(f"--plugin {path}: another module has its name, {found}. Rename it")


@contextlib.contextmanager
def console() -> Iterator[None]:
    """The frame of all commands: a SiamDiffError ends them with its sentence, said once on a machine, and status 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not of a notebook
            stream.reconfigure(errors="backslashreplace")  # for file names that the encoding cannot hold
    try:
        yield
        sys.stdout.flush()
    except SiamDiffError as error:
        if error.everywhere and not speaks_first():
            sys.exit(1)
        ahead = "" if os.environ.get("RANK", "0") == "0" else "\n"  # the first may show a bar on this line
        sys.exit(f"{ahead}error: {error}")
    except KeyboardInterrupt:  # `train` and `embed` say first what they keep
        print("stopped", file=sys.stderr)
        sys.exit(128 + 2)
    except BrokenPipeError:  # `| head` has seen enough: end as silently as other commands do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)


def blame_machine(path, error: BaseException) -> None:
    """Raise MachineError if the machine is at fault: another file would have met this error too."""
    if isinstance(error, ModuleNotFoundError):  # of an optional one
        raise MachineError(f"{path} needs the package {error.name}: pip install {error.name}") from error
    if isinstance(error, OSError) and error.errno in MACHINE:
        raise MachineError(f"{path}: {error.strerror}; that is a fault of the machine, not of this file") from error


@contextlib.contextmanager
def structure_errors(path, reason: str) -> Iterator[None]:
    """Turn every error inside into a StructureError, since any conversion may fail on a damaged file."""
    try:
        yield
    except SiamDiffError:
        raise
    except Exception as error:
        blame_machine(path, error)
        name = "" if type(error) is ValueError else f"{type(error).__name__}: "  # our own checks raise ValueError
        raise StructureError(path, reason, f"{name}{error}"[:200]) from error


def read_rows(path, separator: str = "\t", text: str | None = None) -> dict[int, list[str]]:
    """The cells of a table of text in UTF-8, by the number of the row in a spreadsheet, without blank rows.

    A cell may be in quotes, as Excel and pandas write it. White space around a cell is removed. With `text`, which has
    been read, `path` only names it. Raises StructureError.
    """
    if text is None:
        with structure_errors(path, "cannot be opened"):
            text = Path(path).read_text("utf-8-sig")
    with structure_errors(path, "malformed table"):
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
        cells = {number: [cell.strip() for cell in row] for number, row in enumerate(rows, 1)}
    return {number: row for number, row in cells.items() if any(row)}


def checksum(path: Path) -> str:
    """SHA-256 of a file, read piece by piece."""
    digest = hashlib.sha256(usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


@contextlib.contextmanager
def writing(path) -> Iterator[None]:
    """Turn errors of the disk (full, read-only, ...) into a WriteError that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # of a library, about what it reads
            raise
        raise WriteError(f"could not write {path}: {error.strerror or error}; earlier files are unchanged") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write. Whatever happens, `path` is the old file or the complete new one. Raises WriteError."""
    path = Path(path)
    temporary = path.with_name(path.name + TEMPORARY)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # of a run that was killed
        with open(temporary, "xb") as file:
            ours = os.fstat(file.fileno())
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if not is_still(temporary, ours):
                    raise OSError(errno.EBUSY, "another process writes it too")
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    if is_still(temporary, ours):  # and not the other process's
                        temporary.unlink()
                raise


def is_still(path: Path, file: os.stat_result) -> bool:
    """Whether a path is this file, neither another one nor gone."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(file, os.stat(path))
    return False


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file, see `replacing`."""
    with replacing(path) as file:
        file.write(content)


def write_rows(path: Path, rows: Iterable[Sequence], delimiter: str = "\t") -> None:
    """Write a table that `read_rows` reads, a line for each row: texts are `printable`, and in quotes where needed."""
    with replacing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        table = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        for row in rows:
            table.writerow([printable(cell) if isinstance(cell, str) else cell for cell in row])
        text.detach()


@contextlib.contextmanager
def lock(path: Path, busy: str = "") -> Iterator[IO[bytes]]:
    """Hold the lock of the file `path`; the system frees it when the process ends, however it ends. Children hold none.

    If another process holds it, wait, or raise SiamDiffError(busy). Closing the file again would free it. WriteError.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b")  # noqa: SIM115
    with file:
        with writing(path):  # a network disk may know no locks
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
            except (BlockingIOError, PermissionError) as error:
                raise SiamDiffError(busy) from error
        yield file
