"""The structures that come with the package: 180 single chains and 37 two-sided complexes of the PDB."""

from ..files import ConfigError, read_rows
from .sources import bundle_path as bundle_path
from .sources import find_structures
from .structure import Structure


def bundle_index() -> list[dict[str, str]]:
    """Rows of the bundle's index.tsv as text: `file`, `pdb_id`, `chains`, `n_residues`, `ec`, `split` and more."""
    header, *rows = read_rows(bundle_path() / "index.tsv").values()
    return [dict(zip(header, row, strict=True)) for row in rows]


def bundled(name: str = "5PTI_A") -> Structure:
    """A chain or complex of the bundle by its name: the PDB id, an underscore, its chains. Raises ConfigError."""
    sources = {source.name: source for source in find_structures(bundle_path()).sources}
    if name not in sources:
        raise ConfigError(f"{name} is not in the bundle, which has {', '.join(list(sources)[:3])}, ...")
    return sources[name].read()
