"""The structures that come with the package: 180 single chains and 37 two-sided complexes of the PDB."""

from pathlib import Path

from ..files import read_rows


def bundle_path() -> Path:
    """Folder with the bundled structures, see its README."""
    return Path(__file__).parent / "bundle"


def bundle_index() -> list[dict[str, str]]:
    """Rows of the bundle's index.tsv as text: `file`, `pdb_id`, `chains`, `n_residues`, `ec`, `split` and more."""
    header, *rows = read_rows(bundle_path() / "index.tsv")
    return [dict(zip(header, row, strict=True)) for row in rows]
