"""Weights of other programs: the names of torchdrug's GearNet, of ESM-GearNet and of ESM-2, made ours.

Only names and shapes are looked at here; `weights.py` reads the files.
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from ..files import CheckpointError
from ..names import IDENTITY
from . import ATOM_GRAPH, GEARNET_DIMS, RESIDUE_GRAPH
from .esm import ESM_SIZES, RESIDUE_TOKEN

_FIRST = re.compile(r"((?:.+?\.)??)((?:structure_model\.)?)layers\.0\.self_loop\.weight")  # in whatever it is
_GEARNET = re.compile(r"((edge_)?layers|batch_norms)\.\d+\..*")
_ESM_GEARNET = re.compile(r"(sequence|structure)_model\..*")
_NOT_IN_ESM = r".*rot(ary)?_emb(eddings)?\.inv_freq|contact_head\..*|lm_head\..*|pooler\..*"  # constants, and heads


def tensors_of(content) -> dict[str, Tensor]:
    """The weights in a file of another program, beside which torchdrug, Lightning and others keep an optimizer."""
    for name in ("model", "state_dict", "model_state_dict"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict):
        return {}
    are_weights = all(isinstance(name, str) and isinstance(x, Tensor) for name, x in content.items())
    return content if are_weights else {}


def released_encoder(state: dict[str, Tensor], path: str | Path) -> dict:
    """The encoder in the weights of torchdrug's GearNet or of ESM-GearNet, alone or inside something.

    Encoder, level and size are told from the shapes, never from the name of the file: two released links are swapped.
    What is beside the encoder is not loaded, but `not_loaded` has its names.
    """
    # The one GearNet in it: what stands before the names of its layers, and whether ESM is beside it.
    found = [match for match in map(_FIRST.fullmatch, state) if match]
    if len(found) != 1:
        names = ", ".join([match[0] for match in found] or list(state)[:3])
        problem = "several GearNets" if found else "no GearNet: no layers.0.self_loop.weight, but"
        raise CheckpointError(f"{path} holds {problem} {names}, ...")
    prefix, structure_model = found[0].groups()
    pattern = _ESM_GEARNET if structure_model else _GEARNET

    # What is the encoder's, by its names without the prefix, and the first words of the other names.
    around = re.sub(r"[^.]+\.$", "", prefix)  # the prefix of the module that has the encoder in it
    loaded = {}
    beside = set()
    for name, tensor in state.items():
        within = name.removeprefix(prefix)
        if name.startswith(prefix) and pattern.fullmatch(within):
            loaded[within] = tensor
        else:
            rest = within if name.startswith(prefix) else name.removeprefix(around)
            beside.add(rest.split(".")[0])

    # Its widths, of the input and of the layers, decide which encoder it is.
    layer = re.compile(rf"{structure_model}layers\.\d+\.self_loop\.weight")
    shapes = [tensor.shape for name, tensor in loaded.items() if layer.fullmatch(name)]
    dims = [shapes[0][1], *(shape[0] for shape in shapes)]
    known = _widths(bool(structure_model))
    if structure_model:
        loaded = _esm_gearnet(loaded, path)
    for identity, widths in known.items():
        if dims == widths:
            return {**dict(zip(IDENTITY, (*identity, "official"))), "state": loaded, "not_loaded": sorted(beside)}
    listed = "; ".join(f"{widths[0]} and {widths[1:]}" for widths in known.values())
    shape = f"input {dims[0]} and widths {dims[1:]}"
    raise CheckpointError(f"{path} holds a GearNet with {shape}; known are input and widths {listed}")


def _widths(with_esm: bool) -> dict[tuple[str, ...], list[int]]:
    """The widths of the input and the layers of every GearNet, by encoder, level and size. ESM's output is an input."""
    known: dict[tuple[str, ...], list[int]] = {}
    if with_esm:
        for esm, (_, width, _) in ESM_SIZES.items():
            name = "esm-gearnet" if esm == "650M" else f"esm-gearnet-{esm}"
            known[name, "residue", "paper"] = [width, *GEARNET_DIMS["paper"]["residue"]]
        return known
    for level, graph in (("atom", ATOM_GRAPH), ("residue", RESIDUE_GRAPH)):
        for size, dims in GEARNET_DIMS.items():
            known["gearnet", level, size] = [graph.node_dim, *dims[level]]
    return known


def _esm_gearnet(state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """torchdrug's weights by the names of `ESMGearNet`. Raises CheckpointError for another order of types."""
    mapping = state.pop("sequence_model.mapping", torch.zeros(0)).tolist()
    tokens = mapping[: len(RESIDUE_TOKEN)]  # of the residue types
    if tokens != list(RESIDUE_TOKEN):
        raise CheckpointError(f"{path} has the residue types in another order, with ESM's tokens {tokens}")
    state = {re.sub(r"^sequence_model\.model\.", "esm.", name): x for name, x in state.items()}
    state = {re.sub(r"^structure_model\.", "gearnet.", name): x for name, x in state.items()}
    return {name: x for name, x in state.items() if not re.fullmatch(rf"esm\.({_NOT_IN_ESM})", name)}


_HUGGING_FACE = {  # parts of the names of ESM-2 there -> those of fair-esm, in this order
    "embeddings.word_embeddings.": "embed_tokens.",
    "encoder.layer.": "layers.",
    "encoder.emb_layer_norm_after.": "emb_layer_norm_after.",
    **{f"attention.self.{name}.": f"self_attn.{name[0]}_proj." for name in ("query", "key", "value")},
    "attention.output.dense.": "self_attn.out_proj.",
    "attention.LayerNorm.": "self_attn_layer_norm.",
    "intermediate.dense.": "fc1.",
    "output.dense.": "fc2.",
    "LayerNorm.": "final_layer_norm.",
}


def esm_weights(content, path: str) -> dict[str, Tensor]:
    """The weights of ESM-2 by the names of `esm.ESM2`, from the content of a file. Raises CheckpointError."""
    state = tensors_of(content)
    if any(name.endswith("word_embeddings.weight") for name in state):
        if "rotary" in " ".join(state):  # then a table of positions is a relic; in ESM-1 it is used
            state = {name: x for name, x in state.items() if "embeddings.position_" not in name}
        for theirs, ours in _HUGGING_FACE.items():
            state = {name.replace(theirs, ours): x for name, x in state.items()}
        state = {re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name)): x for name, x in state.items()}
    first = [name for name in state if name.endswith("embed_tokens.weight")]
    if len(first) != 1:
        raise CheckpointError(f"{path} is not a weight file of ESM-2")
    prefix = first[0].removesuffix("embed_tokens.weight")
    state = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    return {name: x for name, x in state.items() if not re.fullmatch(_NOT_IN_ESM, name)}
