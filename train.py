"""Pre-train a protein structure encoder with DiffPreT or SiamDiff.

    python train.py --size tiny                          # a laptop, the bundled structures
    torchrun --nproc_per_node 4 train.py --data FOLDER   # the paper's setting

A run that was interrupted continues when the same command is given again. The result is OUT/encoder.pt.
"""

import sys
from pathlib import Path

import torch

from siamdiff_min.conventions import CONVENTIONS
from siamdiff_min.data.build import open_store
from siamdiff_min.data.conformers import ConformerCrops
from siamdiff_min.data.crops import Crops, collate, split
from siamdiff_min.files import console
from siamdiff_min.training import checkpoint, engine
from siamdiff_min.training.config import PretrainConfig, parse
from siamdiff_min.training.log import summary
from siamdiff_min.training.ranks import Ranks, launch


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status, 128 + n after signal n."""
    # 1. Options. What is not given comes from the encoder file, then from the preset.
    config = parse(argv, PretrainConfig, __doc__.splitlines()[0])
    ranks = launch(config.device, config.threads, config.deterministic)
    source = checkpoint.load_encoder_file(Path(config.init_from)) if config.init_from else {}
    config = config.resolve(ranks.world, source)

    # 2. Data, encoder and objective.
    crops, train, valid = open_data(config, ranks)
    objective = build(config, ranks)
    per_epoch = max(1, len(train) // config.global_batch_size) if crops else "?"
    ranks.say(
        f"steps       {per_epoch} of {config.global_batch_size} proteins per epoch, "
        f"{' + '.join(map(str, config.epochs))} epochs, on {ranks.world} x {ranks.device.type}, to {config.out}"
    )
    if config.dry_run:
        ranks.say(str(config))
        return 0

    # 3. Minimise.
    def validate(epochs: float) -> dict[str, float]:
        return engine.evaluate(objective, (crops, collate, valid), config, ranks)

    path = Path(config.out) / "encoder.pt"
    with ranks.connected(), ranks.alone_in(config.out):
        stopped = engine.train(config, objective, (crops, collate, train), validate, ranks)
        if stopped:
            return 128 + stopped
        if ranks.rank == 0:
            identity = config.encoder, config.level, config.size, config.preset
            about = {"method": config.method, "config": config.plain()}
            checkpoint.save_encoder_file(path, objective.encoder, *identity, **about)
    ranks.say(summary(Path(config.out) / "metrics.jsonl"))
    ranks.say(f"encoder     {path}")
    return 0


def open_data(config: PretrainConfig, ranks: Ranks) -> tuple[Crops | None, list[int], list[int]]:
    """The proteins, and which of them are for training and for validation.

    Structures are converted once to a memory-mapped store, by the first process. A dry run writes none.
    """
    source = config.data or "demo set (bundled structures; --data for your own)"
    real = config.conformers != "simulated"
    options = {"workers": config.num_workers or 1, "build": not config.dry_run, "conformers": real}
    store = ranks.first("data", lambda: open_store(config.data, config.store, pairs=config.pairs, **options))
    if store is None:
        ranks.say(f"data        {source}: not converted to a store yet")
        return None, [], []
    train, valid = split(store, config.valid_fraction)
    ranks.say(f"data        {source}: {len(train)} proteins to train on, {len(valid)} held out")
    if not valid:
        ranks.say("warning     no protein is held out, so there is no validation: --valid-fraction")
    how = config.max_length, config.seed, CONVENTIONS[config.preset].last_window
    crops = ConformerCrops(store, *how, both=config.conformers == "both") if real else Crops(store, *how)
    if real:
        ranks.say(f"conformers  {config.conformers}: {crops.about}")
    return crops, train, valid


def build(config: PretrainConfig, ranks: Ranks) -> torch.nn.Module:
    """Encoder and objective: from scratch, or with the weights of --init-from."""
    torch.manual_seed(config.seed)
    encoder = checkpoint.new_encoder(config, ranks.say)
    objective = checkpoint.new_objective(encoder, config.plain())
    objective.given = config.conformers != "simulated"
    if config.init_from:
        checkpoint.initialise(objective, Path(config.init_from), ranks.say)
    count, part = (sum(p.numel() for p in module.parameters()) for module in (objective, encoder))
    ranks.say(f"objective   {config.method}, {config.level} level, preset {config.preset}: {count:,} parameters")
    ranks.say(f"encoder     {config.encoder}, size {config.size}: {part:,} parameters")
    return objective


if __name__ == "__main__":
    with console():
        sys.exit(main())
