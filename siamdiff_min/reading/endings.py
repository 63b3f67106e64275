"""What the name of a file tells: the formats that are read, by their endings, and what a structure is called.

A new format is added here by its ending. What its content looks like, and who reads it, stands in `parse.py`; its row
for users in docs/data.md.
"""

import os

# If a structure has several files, the first of these endings is taken.
_PLAIN = (".pdb", ".ent", ".cif", ".mmcif", ".pdb1", ".bcif")
FOLDCOMP, LOOKUP = ".fcz", ".lookup"  # a file of Foldcomp; the table of names beside a database of such files
ENDINGS = (*_PLAIN, *(f"{ending}.gz" for ending in _PLAIN), FOLDCOMP)
ARCHIVES = (".tar", ".zip", LOOKUP)
UNREAD = (".tar.gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".mmtf", ".pqr", ".pdbqt")
NOT_A_STRUCTURE = "not a structure file"  # why a file is skipped


def ending_of(file: str) -> str | None:
    """The longest of ENDINGS that the name of a file has, if any."""
    return next((ending for ending in reversed(ENDINGS) if file.lower().endswith(ending)), None)


def without_ending(file: str) -> str:
    """The name of a file without the ending of a structure file, if it has one."""
    return file[: len(file) - len(ending_of(file) or "")]


def why_skipped(inside: str) -> str:
    """Why a file is no structure by its path; "" if it may be one."""
    name = os.path.basename(inside)
    lower = name.lower()
    if name.startswith("._") or "__MACOSX" in inside.split("/"):
        return "a hidden file of macOS"
    if ending_of(inside) and lower != ending_of(inside):
        return ""
    unread = next((ending for ending in UNREAD if lower.endswith(ending)), None)
    return f"{unread} is not read: unpack or convert it to PDB or mmCIF, plain or .gz" if unread else NOT_A_STRUCTURE
