"""Which proteins are relatives: for splits of small sets by family, without another program."""

from itertools import combinations

from Bio.Align import PairwiseAligner, substitution_matrices

from siamdiff_min.protein.constants import ONE_LETTER
from siamdiff_min.protein.protein import Protein

IDENTITY, COVERED, EXPECTED = 0.30, 0.50, 1e-3  # of the aligned residues; of the shorter sequence; chance hits
K, LAMBDA = 0.041, 0.267  # of BLOSUM62 with gaps of 11 + 1 per residue (Altschul and Gish 1996)


def local_aligner() -> PairwiseAligner:
    """Local alignment with BLOSUM62, gaps of 11 to open and 1 for each residue."""
    aligner = PairwiseAligner(mode="local", open_gap_score=-12, extend_gap_score=-1)
    aligner.substitution_matrix = substitution_matrices.load("BLOSUM62")
    return aligner


def related(aligner: PairwiseAligner, one: str, two: str, searched: int) -> bool:
    """Whether the best local alignment has 30 % identity over half of the shorter sequence, and fewer than 1e-3 as good
    ones are to be expected among `searched` residues."""
    if len(one) * searched * K * 2.718281828 ** (-LAMBDA * aligner.score(one, two)) > EXPECTED:
        return False
    best = aligner.align(one, two)[0]
    same = sum(a == b for (i, j), (k, m) in zip(*best.aligned) for a, b in zip(one[i:j], two[k:m]))
    covered = sum(j - i for i, j in best.aligned[0])
    return same >= IDENTITY * covered and covered >= COVERED * min(len(one), len(two))


def families(proteins: dict[str, Protein]) -> dict[str, str]:
    """The family of every name, called by one of its members: names of one entry (four characters), or of related
    sequences, belong together, and so do those that others join."""
    aligner = local_aligner()
    sequences = {k: "".join(ONE_LETTER[t] for t in protein.residue_type.tolist()) for k, protein in proteins.items()}
    family = {name: name for name in sequences}
    searched = sum(map(len, sequences.values()))
    for one, two in combinations(sorted(sequences), 2):
        if family[one] != family[two] and (
            one[:4] == two[:4] or related(aligner, sequences[one], sequences[two], searched)
        ):
            old, new = sorted((family[one], family[two]))[::-1]
            family = {name: new if own == old else own for name, own in family.items()}
    return family
