"""Pre-train a protein structure encoder with DiffPreT or SiamDiff.

    siamdiff train --size tiny                           # a laptop, the bundled structures
    torchrun --nproc_per_node 4 train.py --data FOLDER   # the paper's setting

A run that was interrupted continues when the same command is given again. The result is OUT/encoder.pt.
"""

from argparse import Namespace
from pathlib import Path

import torch
from torch.utils.data import Subset

from .conventions import CONVENTIONS
from .encoders import weights
from .reading.crops import Crops, split
from .reading.store import open_store
from .training import checkpoint
from .training.config import flag, printed
from .training.engine import Run, begin, train
from .training.evaluation import Kept, evaluate
from .training.metrics_file import summary
from .training.presets import parent_of
from .training.ranks import Ranks, launch

# Held-out proteins of a validation, each measured DRAWS times: of 365,000 structures 5 % would be 18,000.
VALIDATED = 500
HELD_OUT_SEED = 0  # of the crops of held-out proteins


def run(config: Namespace) -> int:
    """Do what `pretrain_options` has read; returns the exit status, 128 + n after signal n."""
    with launch(config.device, config.threads, config.deterministic, config.amp) as ranks:
        data, held_out = open_data(config, ranks)
        objective = build_objective(config, ranks)
        per_epoch = max(1, len(data.indices) // config.global_batch_size) if data is not None else "?"
        ranks.say(
            f"steps       {per_epoch} of {config.global_batch_size} proteins per epoch, "
            f"{' + '.join(map(str, config.epochs))} epochs, on {ranks.world} x {ranks.device.type}, to {config.out}"
        )
        if config.dry_run:
            ranks.say(printed(config))
            return 0

        kept = Kept()

        def validate(epochs: float) -> dict[str, float]:
            return evaluate(objective, held_out, config, ranks, Path(config.out) / "valid.tsv", kept)

        with ranks.alone_in(config.out):
            state = Run(config, objective, data, ranks)
            begin(state)
            stopped = train(state, validate)
            if stopped:
                return 128 + stopped
            if ranks.rank == 0:
                save_encoder(objective, state)
                ranks.say(summary(state.metrics))
            state.warn_of_infinite()
            ranks.say(f"encoder     {Path(config.out) / 'encoder.pt'}")
    return 0


def save_encoder(objective: torch.nn.Module, run: Run) -> None:
    """Write OUT/encoder.pt, with the heads that the objective keeps and what the encoder learned from."""
    config = run.config
    identity = config.encoder, config.level, config.size, config.preset
    heads = {name: head.state_dict() for name, head in checkpoint.kept_heads(objective).items()}
    origin = {"method": config.method, "steps": run.step, "config": vars(config)}
    path = Path(config.out) / "encoder.pt"
    weights.save_encoder_file(path, objective.encoder, *identity, **origin, **heads)


def open_data(config: Namespace, ranks: Ranks) -> tuple[Subset, Subset] | tuple[None, None]:
    """The proteins for training and for validation.

    The first process converts structures to a memory-mapped store, once. A dry run does not: without a store both are
    None.
    """
    source = config.data or "demo set (bundled structures; --data for your own)"
    workers = config.num_workers or 1
    store = ranks.build_in_turn(lambda: open_store(config.data, config.store, workers, not config.dry_run))
    if store is None:
        ranks.say(f"data        {source}: not converted to a store yet")
        return None, None
    train, valid = split(store, config.valid_fraction)
    sequences = store.sequences  # their hashes, made anew by every look
    measured = sorted(sorted(valid, key=lambda index: sequences[index])[:VALIDATED])
    only = f", {len(measured)} of them are measured" if len(measured) < len(valid) else ""
    ranks.say(f"data        {source}: {len(train)} proteins to train on, {len(valid)} held out{only}")
    if config.level == "atom" and (lacking := store.lacking_backbone()):
        ranks.say(f"warning     {lacking}, and this model reads all atoms")
    if not valid:
        help = f"{flag('valid_fraction', 0.2)} holds out a fifth"
        ranks.say(f"warning     no protein is held out, so there is no validation: {help}")
    last_window = CONVENTIONS[config.preset].last_window
    crops = Crops(store, config.max_length, config.seed, last_window)
    held_out = Crops(store, config.max_length, HELD_OUT_SEED, last_window)  # the same crops whatever --seed is
    return Subset(crops, train), Subset(held_out, measured)


def build_objective(config: Namespace, ranks: Ranks) -> torch.nn.Module:
    """Encoder and objective: from scratch, or with the weights of --init-from."""
    torch.manual_seed(config.seed)
    encoder = weights.new_encoder(config, ranks.say)
    objective = checkpoint.new_objective(encoder, config)
    if config.init_from:
        checkpoint.initialise(objective, config.init_from, ranks.say)
    if len(getattr(objective, "stages", ())) > len(config.epochs):
        ranks.say(f"warning     {config.method} is trained in stage 1 alone: a plugin adds its name to STAGED for both")
    count, part = (sum(p.numel() for p in module.parameters()) for module in (objective, encoder))
    if config.size != "paper" and parent_of(config.method) is None:
        ranks.say(f"note        its row in TABLE_5 counts: --size {config.size} changes the network, not batch or rate")
    ranks.say(f"objective   {config.method}, {config.level} level, preset {config.preset}: {count:,} parameters")
    ranks.say(f"encoder     {config.encoder}, size {config.size}: {part:,} parameters")
    return objective
