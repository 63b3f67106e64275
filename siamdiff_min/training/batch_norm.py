"""The batch norm of a frozen encoder without training, measured."""

from argparse import Namespace
from contextlib import closing

from torch.optim.swa_utils import update_bn

from ..downstream.tasks import Task
from .batches import epoch_batches
from .loader import load_batches
from .ranks import Ranks


def calibrate(config: Namespace, task: Task, dataset, ranks: Ranks) -> None:
    """Measure the means and variances of batch norm over 100 training batches, for a frozen encoder without training.

    With mean 0 and variance 1 instead, values would grow from layer to layer. All processes see the same batches.
    """
    batches = epoch_batches(len(dataset), config.batch_size, config.seed, 0)[:100]
    keys = [[(0, int(i)) for i in batch] for batch in batches]
    with closing(load_batches(dataset, keys, config, ranks.device)) as loaded:
        proteins = (sample.protein.to(ranks.device) for sample, _ in loaded)
        update_bn(map(task.encoder.builder.select_nodes, proteins), task.encoder)
