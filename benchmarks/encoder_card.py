"""What the numbers of an encoder are like, for its model card.

    python -m benchmarks.encoder_card siamdiff-atom siamdiff-residue [--held-out VECTORS.npz FAMILIES.tsv]

On the 30 smallest single chains of the package, for every layer: the mean norm of a residue's vector, and the effective
rank of all of them (Roy and Vetterli 2007: the exponential of the entropy of the singular values, of centred vectors;
as large as the width where all directions are used alike). Then how far Gaussian errors of the coordinates move a
residue's vector, over its mean distance from the protein's mean vector, and how often the nearest vector of the whole
protein is still its own; and the correlation of the first principal component of mean vectors with the logarithm of
the length, over all single chains. At atom level also: mean and lowest cosine of the mean vectors with and without 20 %
or all of the atoms beyond the backbone. With --held-out, what E-values of `siamdiff nearest` promise and hold, by
`benchmarks.nearest`: the vectors of the last encoder.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.nearest import read_held_out, table_of_e
from benchmarks.probe import load
from siamdiff_min.encoders import weights
from siamdiff_min.files import console
from siamdiff_min.protein.constants import BACKBONE
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.sources import bundle_path, find_structures

CHAINS = 30
ERRORS = (0.05, 0.2, 0.5)  # angstrom, of each coordinate


def chains(count: int | None = CHAINS) -> list[Protein]:
    """The smallest single chains of the package; all of them for None."""
    single = [source for source in find_structures(bundle_path()).sources if "_" in source.name]
    return [source.read().protein for source in sorted(single, key=lambda source: source.size)[:count]]


def effective_rank(vectors: torch.Tensor) -> float:
    """Of vectors (K, d): between 1 and d. 0 where all are the same."""
    values = torch.linalg.svdvals((vectors - vectors.mean(0)).double())
    share = values / values.sum().clamp(min=1e-12)
    return float(torch.special.entr(share).sum().exp()) if values.sum() > 0 else 0.0


def without_side_chains(protein: Protein, share: float) -> Protein:
    """Without a share of the atoms that are none of N, CA, C, O, always the same ones."""
    beyond = (protein.atom_name >= len(BACKBONE)).nonzero()[:, 0]
    order = torch.randperm(len(beyond), generator=torch.Generator().manual_seed(0))
    keep = torch.ones(protein.num_atoms, dtype=torch.bool)
    keep[beyond[order[: round(share * len(beyond))]]] = False
    return protein.select_atoms(keep)


def with_error(protein: Protein, error: float) -> Protein:
    """With Gaussian noise on every coordinate (angstrom), always the same one."""
    noise = torch.randn(protein.pos.shape, generator=torch.Generator().manual_seed(0))
    return replace(protein, pos=protein.pos + error * noise)


def moved_by_error(whole: list[torch.Tensor], noisy: list[torch.Tensor]) -> tuple[float, float]:
    """How far vectors move, over their mean distance from the protein's mean; the share whose nearest is their own."""
    shift = torch.cat([(a - b).norm(dim=1) for a, b in zip(whole, noisy)]).mean()
    spread = torch.cat([(a - a.mean(0)).norm(dim=1) for a in whole]).mean()
    own = [torch.cdist(b, a).argmin(1) == torch.arange(len(a)) for a, b in zip(whole, noisy)]
    return float(shift / spread), float(torch.cat(own).float().mean())


def correlation_with_length(means: torch.Tensor, lengths: torch.Tensor) -> float:
    """|r| of the first principal component of mean vectors (K, d) with the logarithm of lengths (K,)."""
    centred = means - means.mean(0)
    first = torch.linalg.svd(centred.double(), full_matrices=False)[0][:, 0]
    return float(torch.corrcoef(torch.stack([first, lengths.double().log()]))[0, 1].abs())


@torch.inference_mode()
def card(name: str) -> list[str]:
    """The lines of one encoder."""
    features, encoder, proteins = load(name, []), weights.load_encoder(name, "cpu"), chains()
    whole = [features(protein) for protein in proteins]
    lines = [f"{name}: {len(proteins)} chains, {sum(map(len, whole)):,} residues"]
    for k, layer in enumerate(torch.cat(whole).split(encoder.layer_dims, dim=1)):
        norm, rank = layer.norm(dim=1).mean(), effective_rank(layer)
        lines.append(f"  layer {k + 1}: norm {norm:.2f}, effective rank {rank:.1f}")
    for error in ERRORS:
        noisy = [features(with_error(protein, error)) for protein in proteins]
        shift, own = moved_by_error(whole, noisy)
        lines.append(f"  errors of {error} A: moved {shift:.2f} of the spread, nearest is its own for {own:.0%}")
    everything = chains(None)
    means = torch.stack([features(protein).mean(0) for protein in everything])
    lengths = torch.tensor([protein.num_residues for protein in everything])
    r = correlation_with_length(means, lengths)
    lines.append(f"  first principal component of {len(everything)} mean vectors with log length: |r| {r:.2f}")
    if encoder.builder.with_elements:
        for share in (0.2, 1.0):
            fewer = [features(without_side_chains(protein, share)) for protein in proteins]
            cosines = torch.stack([F.cosine_similarity(a.mean(0), b.mean(0), dim=0) for a, b in zip(whole, fewer)])
            said = f"cosine {cosines.mean():.2f}, lowest {cosines.min():.2f}"
            lines.append(f"  without {share:.0%} of the atoms beyond the backbone: {said}")
    return lines


def main(argv: list[str] | None = None) -> None:
    """Print the cards of one command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoder_card", description=__doc__.splitlines()[0])
    parser.add_argument("encoders", nargs="+", help="names or files, as load_encoder takes them")
    parser.add_argument("--held-out", type=Path, nargs=2, help="vectors of siamdiff embed, and their families")
    args = parser.parse_args(argv)
    for name in args.encoders:
        print("\n".join(card(name)), flush=True)
    if args.held_out:
        print("\n".join(table_of_e(read_held_out(*args.held_out))))


if __name__ == "__main__":
    with console():
        main()
