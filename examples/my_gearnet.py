"""A GearNet of another width, depth and graph, and another schedule of the noise."""

from dataclasses import replace

from siamdiff_min import ENCODERS
from siamdiff_min.conventions import CONVENTIONS
from siamdiff_min.encoders import ATOM_GRAPH, RESIDUE_GRAPH
from siamdiff_min.encoders.gearnet import GearNet
from siamdiff_min.pretraining import SCHEDULES, Schedule
from siamdiff_min.pretraining.diffusion import sigmoid_betas


def wide(level, size="paper", preset="paper"):
    graph = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level]
    graph = replace(graph, radius=8.0, num_neighbors=20, conventions=CONVENTIONS[preset])
    return GearNet(graph, [192] * 4, readout="mean")


ENCODERS["wide"] = wide
SCHEDULES["paper"][1] = Schedule(sigmoid_betas(500, 1e-4, 0.02), t_range=(50, 500))  # T = 500
