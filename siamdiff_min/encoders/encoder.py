"""The base of all encoders: `Encoder` turns a `Protein` into an `Encoding`."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ..conventions import PAPER, Conventions
from ..files import ConfigError
from ..protein.protein import Protein
from .graph import Graph, GraphBuilder


class Encoder(nn.Module):
    """(Protein) -> Encoding, on graphs of `builder`."""

    builder: GraphBuilder
    layer_dims: list[int]  # widths of the layers, side by side in the output
    has_esm = False  # whether there is an ESM-2 inside, called `esm`
    identity: tuple[str, str, str, str] | None = None  # name, level, size, preset: how `ENCODERS` builds it again
    as_built: tuple[GraphBuilder, list[str]] | None = None  # the `layout` when `ENCODERS` had built it

    @property
    def out_dim(self) -> int:
        """Width d of all representations."""
        return sum(self.layer_dims)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    def embed(self, *structures, batch_nodes: int | None = None, **options):
        """Embeddings of structures, in evaluation mode: see `siamdiff_min.Embedder`; without tools/, of proteins."""
        from .. import embedding  # one name leads out of this folder: it reads files, and nothing else here knows it

        modes = [(module, module.training) for module in self.modules()]  # a frozen batch norm stays as it is
        try:
            return embedding.embed(self.eval(), *structures, batch_nodes=batch_nodes, **options)
        finally:
            for module, training in modes:
                module.training = training

    def save(self, path: str | Path, **values) -> None:
        """Write a file that `load_encoder` reads. `values` are your own: numbers, words, lists and dicts of them, and
        dicts of tensors; numbers of numpy become Python's.

        Raises WriteError, and ConfigError for other values, and for an encoder that was not built by its name in
        `ENCODERS`.
        """
        from .weights import save_encoder_file

        if self.identity is None:
            raise ConfigError(f"{path} is not written: build this {type(self).__name__} by its name in ENCODERS")
        if self.as_built != self.layout():
            changed = f"graphs or layers were changed since ENCODERS[{self.identity[0]!r}] built them"
            warnings.warn(f"{path}: {changed}, and load_encoder builds them as they were", stacklevel=2)
        save_encoder_file(Path(path), self, *self.identity, **values)

    def with_graph(self, protein: Protein, graph: Graph | None) -> tuple[Protein, Graph]:
        """The protein and graph as given. Without a graph: the nodes of this level, and their graph.

        Raises ConfigError if the coordinates have another type than the weights, or one of the two half the precision.
        """
        own = next(self.parameters()).dtype
        given = protein.pos.dtype
        types = f"the weights of the encoder are {own}, the coordinates {given}"
        if {own, given} & {torch.float16, torch.bfloat16}:
            advice = "keep both in float32, and call it under torch.autocast"
            raise ConfigError(f"{types}: half the precision moves atoms by up to .25 angstrom; {advice}")
        if own != given:
            raise ConfigError(f"{types}: give both one")
        if graph is None:
            protein = self.builder.select_nodes(protein)
            graph = self.builder(protein)
        return protein, graph

    def layout(self) -> tuple[GraphBuilder, list[str]]:
        """Its graphs, but for their conventions, and the names of its tensors."""
        return replace(self.builder, conventions=PAPER), list(self.state_dict())

    def follow(self, conventions: Conventions) -> None:
        """Build graphs by these conventions from now on, whatever the preset says."""
        for module in self.modules():  # ESM-GearNet has a GearNet in it
            if isinstance(module, Encoder):
                module.builder = replace(module.builder, conventions=conventions)

    def lr_factors(self) -> dict[str, float]:
        """Learning rates relative to the run's, for the parameters that have their own."""
        return {}
