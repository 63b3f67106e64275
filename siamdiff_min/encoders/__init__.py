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

# Hidden widths: size -> level -> layers. "paper" is App. D's, the others are ours, for laptops. A smaller size is not
# only narrower: the readout of residues (`build_gearnet`), rate, batch and epochs (`SMALLER` of presets.py) change too.
GEARNET_DIMS = {
    "paper": {"atom": [128] * 6, "residue": [512] * 6},
    "medium": {"atom": [96] * 6, "residue": [128] * 6},
    "small": {"atom": [64] * 6, "residue": [64] * 6},
    "tiny": {"atom": [32] * 3, "residue": [32] * 4},
}
GVP_SIZES = {  # size -> channels and layers; "paper" are the defaults of GVPGNN (App. H), the others are ours
    "paper": {},
    "medium": {"dims": (80, 16)},
    "small": {"dims": (64, 16), "num_layers": 4},
    "tiny": {"dims": (32, 8), "num_layers": 3},
}


def build_gearnet(level: str, size: str = "paper", preset: str = "paper") -> GearNet:
    """GearNet-Edge of App. D: a protein is the mean of its atoms, or (paper size) the sum of its residues."""
    graph = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level]
    builder = replace(graph, conventions=CONVENTIONS[preset])
    readout = "sum" if (level, size) == ("residue", "paper") else "mean"  # after a sum short runs never recover
    return GearNet(builder, GEARNET_DIMS[size][level], readout=readout)


def build_gvp(level: str, size: str = "paper", preset: str = "paper") -> GVPGNN:
    """GVP of App. H, at atom level alone. Its basis covers 4.5 angstrom, officially 20 (differences.md, row 31)."""
    if level != "atom":
        raise ConfigError(f"the encoder gvp exists at atom level only (App. H), not at {level} level")
    conventions = CONVENTIONS[preset]
    builder = replace(ATOM_GRAPH, conventions=conventions)
    return GVPGNN(builder, longest=conventions.radial_basis, **GVP_SIZES[size])


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
    shapes = {"paper": ESM_SIZES[esm or "650M"], "medium": ESM_SIZES["8M"], "small": (4, 128, 8), "tiny": (2, 64, 4)}
    builder = replace(RESIDUE_GRAPH, conventions=CONVENTIONS[preset])
    return ESMGearNet(builder, GEARNET_DIMS[size]["residue"], ESM2(*shapes[size]), num_angle_bins)


class EncoderTable(dict[str, Callable[..., Encoder]]):
    """Name -> function (level, size, preset) that builds an encoder, also if a plugin adds it.

    An encoder remembers how it was built, for its file. Raises ConfigError if its graphs are of another level.
    """

    def __setitem__(self, name: str, build: Callable[..., Encoder]) -> None:
        @wraps(build, updated=())  # `build` may be a class, whose attributes stay its own
        def build_and_remember(level: str, size: str = "paper", preset: str = "paper") -> Encoder:
            encoder = build(level, size, preset)
            own = encoder.builder.level
            if level != own:
                raise ConfigError(f"the encoder {name} builds graphs of {own} level, but --level is {level}")
            encoder.identity = name, level, size, preset
            encoder.as_built = encoder.layout()
            return encoder

        super().__setitem__(name, build_and_remember)

    def __missing__(self, name: str) -> Callable[..., Encoder]:
        raise ConfigError(f"there is no encoder {name!r}; there are {', '.join(self)}")


ENCODERS = EncoderTable()
ENCODERS["gearnet"] = build_gearnet
ENCODERS["gvp"] = build_gvp
ENCODERS["esm-gearnet"] = build_esm_gearnet
for _esm in ESM_SIZES:  # each published ESM-2
    ENCODERS[f"esm-gearnet-{_esm}"] = partial(build_esm_gearnet, esm=_esm)
ENCODERS["esm-gearnet-edge"] = partial(build_esm_gearnet, num_angle_bins=8)  # ours (differences.md, row 33)
