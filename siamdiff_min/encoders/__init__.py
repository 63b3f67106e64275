"""From a `Protein` to representations. `ENCODERS` is the choice of `--encoder`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps

from ..conventions import CONVENTIONS
from ..files import ConfigError
from .encoder import Encoder
from .encoding import Encoding
from .esm import ESM2, ESM_SIZES, RANDOM_ESM, ESMGearNet
from .gearnet import GearNet
from .graph import ATOM_GRAPH, RESIDUE_GRAPH, Graph, GraphBuilder
from .gvp import GVPGNN

__all__ = ["ENCODERS", "RANDOM_ESM", "Encoder", "Encoding", "Graph", "GraphBuilder"]

GEARNET_DIMS = {  # size -> level -> hidden widths (App. D); all but "paper" are this project's, for laptops
    "paper": {"atom": [128] * 6, "residue": [512] * 6},
    "medium": {"atom": [96] * 6, "residue": [128] * 6},
    "small": {"atom": [64] * 6, "residue": [64] * 6},
    "tiny": {"atom": [32] * 3, "residue": [32] * 4},
}


def build_gearnet(level: str, size: str = "paper", preset: str = "paper") -> GearNet:
    """GearNet-Edge of App. D. As in the released code a protein is the mean of its atoms, or the sum of its residues.

    The small sizes take the mean at both: a sum starts a head tens of times too large, and short runs never recover.
    """
    builder = replace({"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level], conventions=CONVENTIONS[preset])
    readout = "sum" if (level, size) == ("residue", "paper") else "mean"
    return GearNet(builder, GEARNET_DIMS[size][level], readout=readout)


def build_gvp(level: str, size: str = "paper", preset: str = "paper") -> GVPGNN:
    """GVP of App. H. Its radial basis covers 4.5 angstrom, or 20 in the official preset (differences.md, row 31).

    Raises ConfigError at residue level.
    """
    if level != "atom":
        raise ConfigError(f"the encoder gvp exists at atom level only (App. H), not at {level} level")
    sizes = {"paper": {}, "medium": {"dims": (80, 16)}}
    sizes |= {"small": {"dims": (64, 16), "num_layers": 4}, "tiny": {"dims": (32, 8), "num_layers": 3}}
    builder = replace(ATOM_GRAPH, conventions=CONVENTIONS[preset])
    return GVPGNN(builder, longest=builder.conventions.radial_basis, **sizes[size])


def build_esm_gearnet(
    level: str, size: str = "paper", preset: str = "paper", esm: str = "", num_angle_bins: int = 0
) -> ESMGearNet:
    """ESM-GearNet of Sec. 5.4 with random weights: ESM-2, by default of 650M, before the residue-level GearNet.

    Raises ConfigError at atom level, and for an `esm` with a small size, which has an ESM-2 of its own.
    """
    if level != "residue":
        raise ConfigError(f"the encoder esm-gearnet exists at residue level only (Sec. 5.4), not at {level} level")
    if esm and size != "paper":
        raise ConfigError(f"esm-gearnet-{esm} is of --size paper; of --size {size} there is esm-gearnet")
    sizes = {"paper": ESM_SIZES[esm or "650M"], "medium": ESM_SIZES["8M"], "small": (4, 128, 8), "tiny": (2, 64, 4)}
    model = ESM2(*sizes[size])
    builder = replace(RESIDUE_GRAPH, conventions=CONVENTIONS[preset])
    return ESMGearNet(builder, GEARNET_DIMS[size]["residue"], model, num_angle_bins)


def named(name: str, build: Callable) -> Callable:
    """The same `build`, whose encoders remember what builds them again, for their file.

    Raises ConfigError if the graph of an encoder is of another level than it is asked for.
    """

    @wraps(build, updated=())
    def built(level: str, size: str = "paper", preset: str = "paper") -> Encoder:
        encoder = build(level, size, preset)
        if level != encoder.builder.level:
            own = f"graphs of {encoder.builder.level} level"
            raise ConfigError(f"the encoder {name} builds {own}, but --level is {level}")
        encoder.identity = name, level, size, preset
        encoder.as_built = encoder.builder, [*encoder.state_dict()]
        return encoder

    return built


class Builders(dict[str, Callable[..., Encoder]]):
    """Name -> what builds an encoder, `named`, so that an encoder of a plugin can be saved too."""

    def __setitem__(self, name: str, build: Callable) -> None:
        super().__setitem__(name, named(name, build))

    def __missing__(self, name: str) -> Callable:
        raise ConfigError(f"there is no encoder {name!r}; there are {', '.join(self)}")


ENCODERS = Builders()
ENCODERS["gearnet"], ENCODERS["gvp"], ENCODERS["esm-gearnet"] = build_gearnet, build_gvp, build_esm_gearnet
for _size in ESM_SIZES:
    ENCODERS[f"esm-gearnet-{_size}"] = partial(build_esm_gearnet, esm=_size)
ENCODERS["esm-gearnet-edge"] = partial(build_esm_gearnet, num_angle_bins=8)
ONE_LEVEL = {name: "residue" for name in ENCODERS if name.startswith("esm")} | {"gvp": "atom"}
