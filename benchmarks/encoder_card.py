"""What the numbers of an encoder are like, for its model card.

    python -m benchmarks.encoder_card siamdiff-atom siamdiff-residue

On the 30 smallest single chains of the package, for every layer: the mean norm of a residue's vector, and the effective
rank of all of them (Roy and Vetterli 2007: the exponential of the entropy of the singular values, of centred vectors;
as large as the width where all directions are used alike). At atom level also: mean and lowest cosine of the mean
vectors with and without 20 % or all of the atoms beyond the backbone.
"""

import argparse

import torch
from torch.nn import functional as F

from benchmarks.probe import load
from siamdiff_min.encoders import weights
from siamdiff_min.files import console
from siamdiff_min.protein.constants import BACKBONE
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.sources import bundle_path, find_structures

CHAINS = 30


def chains() -> list[Protein]:
    """The smallest single chains of the package."""
    single = [source for source in find_structures(bundle_path()).sources if "_" in source.name]
    return [source.read().protein for source in sorted(single, key=lambda source: source.size)[:CHAINS]]


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


@torch.inference_mode()
def card(name: str) -> list[str]:
    """The lines of one encoder."""
    features, encoder, proteins = load(name, []), weights.load_encoder(name, "cpu"), chains()
    whole = [features(protein) for protein in proteins]
    lines = [f"{name}: {len(proteins)} chains, {sum(map(len, whole)):,} residues"]
    for k, layer in enumerate(torch.cat(whole).split(encoder.layer_dims, dim=1)):
        norm, rank = layer.norm(dim=1).mean(), effective_rank(layer)
        lines.append(f"  layer {k + 1}: norm {norm:.2f}, effective rank {rank:.1f}")
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
    for name in parser.parse_args(argv).encoders:
        print("\n".join(card(name)), flush=True)


if __name__ == "__main__":
    with console():
        main()
