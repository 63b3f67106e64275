"""How alike two proteins are: families by sequence, without another program; structures superposed, and GDT_TS.

GDT_TS is what the PSR task predicts (Zemla 2003, Nucleic Acids Res. 31:3370), the superposition that of least squares
(Kabsch 1976, Acta Cryst. A32:922). Coordinates are in angstrom, the atoms of both structures correspond one to one.
"""

from itertools import combinations

import torch
from Bio.Align import PairwiseAligner, substitution_matrices
from torch import Tensor

from siamdiff_min.protein.constants import ONE_LETTER
from siamdiff_min.protein.geometry import length
from siamdiff_min.protein.protein import Protein

IDENTITY, COVERED, EXPECTED = 0.30, 0.50, 1e-3  # of the aligned residues; of the shorter sequence; chance hits
K, LAMBDA = 0.041, 0.267  # of BLOSUM62 with gaps of 11 + 1 per residue (Altschul and Gish 1996)
CUTOFFS = (1.0, 2.0, 4.0, 8.0)  # angstrom, those of GDT_TS
SHORTEST_WINDOW = 3  # residues; a seed of the search
ITERATIONS = 20  # per seed at most; nearly all are stable before


# ---- sequences -------------------------------------------------------------------------------------------------------


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


# ---- structures ------------------------------------------------------------------------------------------------------


def superpose(mobile: Tensor, fixed: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The proper rotation and the shift that bring `mobile` closest to `fixed` (Kabsch 1976).

    `mobile @ rotation.T + shift` has the smallest weighted sum of squared distances to `fixed`. Where several rotations
    are equally good (points on a line, one point, no weight at all) it is one of them; mirror images are never used.

    Args:
        mobile, fixed: (..., K, 3); leading dimensions are broadcast.
        weight: (..., K), not negative; 1 for all by default.

    Returns:
        rotation (..., 3, 3) with determinant +1, shift (..., 3).
    """
    weight = mobile.new_ones(mobile.shape[-2]) if weight is None else weight.to(mobile.dtype)
    weight = weight[..., None, :] / weight.sum(-1)[..., None, None].clamp(min=1e-12)  # (..., 1, K)
    from_centre, to_centre = weight @ mobile, weight @ fixed  # (..., 1, 3)
    covariance = ((mobile - from_centre).mT * weight) @ (fixed - to_centre)  # (..., 3, 3)
    u, _, vh = torch.linalg.svd(covariance)
    # Where U V is a mirror image, the direction that matters least (the last singular value) is turned round.
    sign = torch.ones_like(u[..., 0])
    sign[..., 2] = torch.linalg.det(u @ vh).sign()
    rotation = (vh.mT * sign[..., None, :]) @ u.mT
    return rotation, (to_centre - from_centre @ rotation.mT).squeeze(-2)


@torch.no_grad()
def gdt_ts(model: Tensor, native: Tensor) -> float:
    """GDT_TS in [0, 1]: the mean over 1, 2, 4 and 8 angstrom of the largest share of atoms within that distance.

    For every cutoff the superposition that brings most atoms within it counts (Zemla 2003). Finding it exactly is hard,
    so it is searched for, and the value is a lower bound, as that of every program is: superpose windows of the chain
    of several lengths, then again and again all atoms that came within a cutoff, until they stay the same. The whole
    chain is one of the windows, so the value is never below that of the ordinary superposition.

    Args:
        model, native: (R, 3) CA atoms, in the same order.

    Raises:
        ValueError: no atoms, or not as many in both.
    """
    if model.shape != native.shape or len(model) == 0:
        raise ValueError(f"cannot compare {tuple(model.shape)} with {tuple(native.shape)} coordinates")
    model, native = model.double(), native.double()
    cutoffs = model.new_tensor(CUTOFFS)
    seeds = _windows(len(model)).to(model.device)
    chosen, reach = seeds.repeat(len(cutoffs), 1), cutoffs.repeat_interleave(len(seeds))  # (S, R), (S,)
    most = torch.zeros(len(cutoffs), dtype=torch.long, device=model.device)
    for _ in range(ITERATIONS):
        rotation, shift = superpose(model, native, chosen)
        distance = length(model @ rotation.mT + shift[:, None] - native)  # (S, R)
        most = most.maximum((distance[..., None] <= cutoffs).sum(1).amax(0))
        third = distance.kthvalue(min(3, len(model)), dim=1).values  # three atoms at least make a superposition
        near = distance <= reach.maximum(third)[:, None]
        state = torch.cat([reach[:, None], near], 1)[(near != chosen).any(1)]  # those that still change
        if not len(state):
            break
        state = state.unique(dim=0)  # seeds that meet go on as one
        reach, chosen = state[:, 0], state[:, 1:] > 0
    return float(most.double().mean() / len(model))


def _windows(size: int) -> Tensor:
    """Windows over a chain of `size` residues (S, size) bool: the whole, halves, quarters, and so on.

    Each begins a quarter of its length after the one before.
    """
    row, window = torch.arange(size), size
    windows = []
    while True:
        last = size - window
        start = torch.tensor([*range(0, last, max(1, window // 4)), last])[:, None]
        windows.append((row >= start) & (row < start + window))
        if window <= SHORTEST_WINDOW:
            return torch.cat(windows)
        window = max(window // 2, SHORTEST_WINDOW)
