"""Pre-train a protein structure encoder with DiffPreT or SiamDiff.

    python train.py --size tiny                          # a laptop, the bundled structures
    torchrun --nproc_per_node 4 train.py --data FOLDER   # the paper's setting

A run that was interrupted continues when the same command is given again. The result is OUT/encoder.pt.
"""

import sys
from pathlib import Path

import torch

from siamdiff_min.data.build import open_store
from siamdiff_min.data.crops import Crops, collate, split
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import SiamDiffError
from siamdiff_min.pretraining import ABLATIONS, OBJECTIVES
from siamdiff_min.training import checkpoint, engine
from siamdiff_min.training.config import parse
from siamdiff_min.training.ranks import launch


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status, 128 + n after signal n."""
    # 1. Options. What is not given comes from the preset.
    choices = {"method": OBJECTIVES, "encoder": ENCODERS, "ablation": ABLATIONS}
    config = parse(argv, choices, description=__doc__.splitlines()[0])
    ranks = launch(config.device, config.threads, config.deterministic)
    source = checkpoint.load_encoder_file(Path(config.init_from)) if config.init_from else {}
    config = config.resolve(ranks.world, source)

    # 2. Data: structures are converted once to a memory-mapped store, by the first process. A dry run writes none.
    workers, build = config.num_workers or 1, not config.dry_run
    store = ranks.first("data", lambda: open_store(config.data, config.store, workers, build))
    train, valid = split(store, config.valid_fraction) if store else ([], [])
    crops = store and Crops(store, config.max_length, config.seed, draw_last_window=config.preset == "paper")

    # 3. Encoder and objective.
    torch.manual_seed(config.seed)
    encoder = checkpoint.new_encoder(config, ranks.say)
    heads = {"head_dim": config.head_dim} if config.head_dim else {}
    objective = OBJECTIVES[config.method](encoder, config.level, config.preset, config.ablation, **heads)
    if config.init_from:
        checkpoint.initialise(objective, Path(config.init_from), ranks.say)

    # 4. What is going to happen.
    per_epoch = max(1, len(train) // config.global_batch_size) if store else "?"
    amount = f"{len(train)} proteins to train on, {len(valid)} held out" if store else "not converted to a store yet"
    source = config.data or "demo set (bundled structures; --data for your own)"
    ranks.say(f"data        {source}: {amount}")
    ranks.say(f"objective   {config.method}, {config.level} level: {count(objective):,} parameters")
    ranks.say(f"encoder     {config.encoder}, size {config.size}: {count(encoder):,} parameters")
    ranks.say(
        f"steps       {per_epoch} of {config.global_batch_size} proteins per epoch, "
        f"{' + '.join(map(str, config.epochs))} epochs, on {ranks.world} x {ranks.device.type}, to {config.out}"
    )
    if store and not valid:
        ranks.say("warning     no protein is held out, so there is no validation: --valid-fraction")
    if config.dry_run:
        ranks.say("\n".join(f"{name:18}  {value}" for name, value in config.plain().items()))
        return 0

    # 5. Minimise.
    def validate(epochs: float) -> dict[str, float]:
        return engine.evaluate(objective, (crops, collate, valid), config, ranks)

    with ranks.connected(), ranks.alone_in(config.out):
        stopped = engine.train(config, objective, crops, collate, train, validate, ranks)
        if stopped:
            return 128 + stopped
        if ranks.rank == 0:
            about = {"method": config.method, "config": config.plain()}
            identity = config.encoder, config.level, config.size, config.preset
            checkpoint.save_encoder_file(Path(config.out) / "encoder.pt", encoder, *identity, **about)
    ranks.say(engine.summary(Path(config.out) / "metrics.jsonl"))
    ranks.say(f"encoder     {Path(config.out) / 'encoder.pt'}")
    return 0


def count(module: torch.nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in module.parameters())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SiamDiffError as error:
        sys.exit(f"error: {error}")
