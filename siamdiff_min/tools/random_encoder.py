"""An encoder without training, to compare a trained one with."""

import torch
from torch.optim.swa_utils import update_bn

from ..encoders import ENCODERS, Encoder
from ..machine import choose_device
from ..protein.protein import Protein
from ..reading.sources import bundle_path, find_structures

CHAINS, RESIDUES = 32, 100  # batch norm is measured on the first residues of so many chains, as long as training crops
TOGETHER = 8  # chains in a batch


def random_encoder(
    name: str, level: str, size: str = "paper", seed: int = 0, preset: str = "paper", device: str = "auto"
) -> Encoder:
    """The encoder of that name (`ENCODERS`) with random weights that follow from `seed`, in evaluation mode.

    The statistics of its batch norms are measured on pieces of bundled chains. As built they are 0 and 1, with which
    numbers grow from layer to layer, so that the vectors say less than such weights can. The generators of the caller
    do not notice. Raises ConfigError for an encoder, a level or a GPU that is not there.
    """
    device = choose_device(device)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = ENCODERS[name](level, size, preset)
    encoder = encoder.to(device)

    # Chains, not complexes; by name, as the order of files is the system's.
    sources = sorted(find_structures(bundle_path()).sources, key=lambda source: source.name)
    single = [source for source in sources if len(source.name.partition("_")[2]) == 1][:CHAINS]
    proteins = [source.read().protein.crop(0, RESIDUES) for source in single]
    batches = [Protein.pack(proteins[first : first + TOGETHER]) for first in range(0, CHAINS, TOGETHER)]
    nodes = [encoder.builder.select_nodes(batch).to(device) for batch in batches]
    with torch.no_grad():
        update_bn(nodes, encoder)
    return encoder.eval()
