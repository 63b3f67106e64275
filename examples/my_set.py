"""A task with data of its own: the radius of gyration of every structure in --data."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from siamdiff_min import TASKS
from siamdiff_min.downstream.tasks import Regression
from siamdiff_min.reading.sources import Listing, Origin, find_structures
from siamdiff_min.sets.labelled_set import LabelledData
from siamdiff_min.sets.sets import SETS
from siamdiff_min.training.config import PREDICTED


class Gyration(Regression):
    """A number, in angstrom."""

    predicts = "radius of gyration (angstrom)"


def with_label(structure):
    pos = structure.protein.pos
    radius = (pos - pos.mean(0)).square().sum(1).mean().sqrt()
    return replace(structure, labels={"kind": "regression", "values": [radius.item()]})


def third(folder, which):
    listing = find_structures(folder)
    return Listing([replace(source, label=with_label) for source in listing.sources[which::3]], listing.skipped)


def gyration_set(config, needed):
    folder = Path(config.data)
    origins = [Origin(folder, f"gyration {k}", partial(third, folder, k), data=folder) for k in range(3)]
    return LabelledData(*origins, about=f"radius of gyration of {folder}")


TASKS["gyration"] = Gyration
SETS["gyration"] = gyration_set
PREDICTED.append("gyration")  # --predict applies it to new structures
