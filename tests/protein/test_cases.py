"""Small inputs that were read wrongly once, each with the right answer: `cases/cases.txt`.

A case is a title, the answer, and the file. The answer lists every residue as CHAIN:NAME NUMBER CODE @ x of its CA,
its other atoms if it has any, and counts of what is left out; or it is a part of the error.
"""

from pathlib import Path

import pytest

from siamdiff_min import StructureError, read_structure
from siamdiff_min.protein.constants import ATOM_NAMES, CA, RESIDUES

CASES = (Path(__file__).parent / "cases" / "cases.txt").read_text().removeprefix("== ").split("\n== ")


def described(structure) -> str:
    """The structure as `cases.txt` writes it."""
    protein, words = structure.protein, []
    for row, (chain, number, code) in enumerate(structure.positions):
        atoms = (protein.atom_residue == row).nonzero().squeeze(1).tolist()
        x = {int(protein.atom_name[atom]): float(protein.pos[atom, 0]) for atom in atoms}
        words.append(f"{chain}:{RESIDUES[protein.residue_type[row]]}{number}{code.strip()}@{x[CA]:g}")
        words += [ATOM_NAMES[name] + f"@{x[name]:g}" * (ATOM_NAMES[name] in ("CB", "OG")) for name in x if len(x) > 1]
    counts = ", ".join(f"{reason} {count}" for reason, count in sorted(structure.dropped.items()))
    return " ".join(words) + f" | {counts}" * bool(counts)


@pytest.mark.parametrize("case", CASES, ids=[case.partition("\n")[0] for case in CASES])
def test_what_was_read_wrongly_is_read_right(case):
    _, answer, text = case.split("\n", 2)
    if answer.startswith("error: "):
        with pytest.raises(StructureError) as caught:
            read_structure("x", text)
        assert answer.removeprefix("error: ") in str(caught.value)
    else:
        assert described(read_structure("x", text)) == answer
