"""From a `Protein` to representations. `ENCODERS` is the choice of `--encoder`."""

from .gearnet import Encoding, GearNet
from .graph import ATOM_GRAPH, RESIDUE_GRAPH, Graph, GraphBuilder

__all__ = ["ATOM_GRAPH", "ENCODERS", "RESIDUE_GRAPH", "Encoding", "GearNet", "Graph", "GraphBuilder"]

GEARNET_DIMS = {  # size -> level -> hidden widths (App. D); "tiny" is this project's, for laptops
    "paper": {"atom": [128] * 6, "residue": [512] * 6},
    "tiny": {"atom": [32] * 3, "residue": [32] * 4},
}


def build_gearnet(level: str, size: str = "paper", preset: str = "paper") -> GearNet:
    """GearNet-Edge of App. D: mean readout at atom level, sum readout at residue level."""
    builder = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level]
    if preset == "official":
        builder = builder.as_official()
    return GearNet(builder, GEARNET_DIMS[size][level], readout={"atom": "mean", "residue": "sum"}[level])


ENCODERS = {"gearnet": build_gearnet}
