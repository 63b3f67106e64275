"""Is the input of an encoder right? Squared deviations from the means of its batch norms, in their variances."""

from dataclasses import replace

import torch
from torch.nn.functional import pad

import siamdiff_min
from siamdiff_min.reading.sources import bundle_path, find_structures

encoder = siamdiff_min.load_encoder("siamdiff-residue", "cpu")  # or your file; of ESM-GearNet its encoder.gearnet
sources = sorted(find_structures(bundle_path()).sources, key=lambda source: source.name)[:8]
protein = siamdiff_min.Protein.pack([source.read().protein for source in sources]).alpha_carbons()
vectors = []


def check(name, graph):
    deviations, hooks = [], []
    for norm in encoder.batch_norms:

        def look(norm, x):
            deviations.append(((x[0] - norm.running_mean) ** 2 / norm.running_var).mean())

        hooks.append(norm.register_forward_pre_hook(look))
    with torch.inference_mode():
        vectors.append(encoder(protein, graph).node)
    for hook in hooks:
        hook.remove()
    print(f"{name}: cosine to the right vectors {torch.cosine_similarity(vectors[-1], vectors[0]).mean():.2f}")
    print("  deviation", *(f"{x:.1f}" for x in deviations))


graph = encoder.builder(protein)
length = (protein.pos[graph.src] - protein.pos[graph.dst]).norm(dim=1)
check("right", graph)
types, rest = graph.edge_feature.split([40, 18], 1)
radial = torch.exp(-(((length[:, None] - torch.linspace(0, 20, 10)) / 2) ** 2))
port = torch.cat([*(pad(x, (0, 1)) for x in types.split(20, 1)), rest[:, :7], radial[:, :9]], 1)
check("21 + 21 + 7 + 10", replace(graph, edge_feature=port, shown_length=radial[:, 9]))
turned = torch.where(graph.relation < 5, 4 - graph.relation, graph.relation)
check("offsets turned around", replace(graph, relation=turned))
