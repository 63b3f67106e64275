"""Weights of other programs: the names of torchdrug's GearNet, of ESM-GearNet and of ESM-2, made ours.

Only names and shapes are looked at here; `weights.py` reads the files.
"""

import itertools
import re
from pathlib import Path

import torch
from torch import Tensor

from ..files import CheckpointError
from . import ATOM_GRAPH, GEARNET_DIMS, RESIDUE_GRAPH
from .esm import ESM_SIZES, RESIDUE_TOKEN

IDENTITY = ("encoder", "level", "size", "preset")  # an encoder is built again from these
_FIRST = re.compile(r"((?:.+?\.)??)((?:structure_model\.)?)layers\.0\.self_loop\.weight")  # in whatever it is
_GEARNET = re.compile(r"((edge_)?layers|batch_norms)\.\d+\..*")
_ESM_GEARNET = re.compile(r"(sequence|structure)_model\..*")
_NOT_IN_ESM = r".*rot(ary)?_emb(eddings)?\.inv_freq|contact_head\..*|lm_head\..*"  # constants, and heads


def tensors_of(content) -> dict[str, Tensor]:
    """The weights in a file of another program, beside which torchdrug, Lightning and others keep an optimizer."""
    for name in ("model", "state_dict", "model_state_dict"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    named = isinstance(content, dict) and all(isinstance(k, str) and isinstance(x, Tensor) for k, x in content.items())
    return content if named else {}


def released_encoder(state: dict[str, Tensor], path: str | Path) -> dict:
    """The encoder in the weights of torchdrug's GearNet or of ESM-GearNet, alone or inside something.

    Encoder, level and size are told from the shapes, never from the name of the file: two released links are swapped.
    What is beside the encoder is not loaded, but named.
    """
    found = [match for match in map(_FIRST.fullmatch, state) if match]
    if len(found) != 1:
        names = ", ".join([match[0] for match in found] or list(state)[:3])
        problem = "several GearNets" if found else "no GearNet: no layers.0.self_loop.weight, but"
        raise CheckpointError(f"{path} holds {problem} {names}, ...")
    prefix, gearnet = found[0].groups()
    around = re.sub(r"[^.]+\.$", "", prefix)  # of the module that has the encoder in it
    names = {name: name.removeprefix(prefix if name.startswith(prefix) else around) for name in state}
    own = _ESM_GEARNET if gearnet else _GEARNET
    loaded = {short: state[name] for name, short in names.items() if name == prefix + short and own.fullmatch(short)}
    heads = {short.split(".")[0] for name, short in names.items() if short not in loaded}
    shapes = [x.shape for name, x in loaded.items() if re.fullmatch(rf"{gearnet}layers\.\d+\.self_loop\.weight", name)]
    dims = [shapes[0][1], *(shape[0] for shape in shapes)]  # of the input, then of the layers
    if gearnet:
        esm = {f"esm-gearnet-{size}".removesuffix("-650M"): width for size, (_, width, _) in ESM_SIZES.items()}
        known = [(width, name, "residue", "paper") for name, width in esm.items()]
        loaded = _esm_gearnet(loaded, path)
    else:
        nodes = {"atom": ATOM_GRAPH.node_dim, "residue": RESIDUE_GRAPH.node_dim}
        known = [(nodes[level], "gearnet", level, size) for level, size in itertools.product(nodes, GEARNET_DIMS)]
    for width, name, level, size in known:
        if dims == [width, *GEARNET_DIMS[size][level]]:
            identity = dict(zip(IDENTITY, (name, level, size, "official")))
            return {**identity, "state": loaded, "not_loaded": sorted(heads)}
    listed = "; ".join(f"{width} and {GEARNET_DIMS[size][level]}" for width, _, level, size in known)
    shape = f"input {dims[0]} and widths {dims[1:]}"
    raise CheckpointError(f"{path} holds a GearNet with {shape}; known are input and widths {listed}")


def _esm_gearnet(state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """torchdrug's weights by the names of `ESMGearNet`. Raises CheckpointError for another order of types."""
    tokens = state.pop("sequence_model.mapping", torch.zeros(0)).tolist()[: len(RESIDUE_TOKEN)]  # of the residue types
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
    first = [name for name in state if name.endswith("embed_tokens.weight")]
    if len(first) != 1:
        raise CheckpointError(f"{path} is not a weight file of ESM-2")
    prefix = first[0].removesuffix("embed_tokens.weight")
    state = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    return {name: x for name, x in state.items() if not re.fullmatch(_NOT_IN_ESM, name)}
