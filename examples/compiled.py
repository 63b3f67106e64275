"""torch.compile: the graph is built outside, the network is compiled."""

import torch

import siamdiff_min

encoder = siamdiff_min.load_encoder("siamdiff-residue")
protein = encoder.builder.select_nodes(siamdiff_min.read_structure("1abc.cif.gz").protein).to(encoder.device)
compiled = torch.compile(encoder, dynamic=True)
with torch.inference_mode():
    encoding = compiled(protein, encoder.builder(protein))
