"""The state of a training run: everything that goes into a checkpoint, with `save` and `restore` side by side."""

import math
from argparse import Namespace
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..files import ConfigError
from . import checkpoint
from .config import check_resumable
from .ranks import Ranks


class Run:
    """Weights, optimizer, schedule and place in the data of a run; made at step 0, or where its checkpoint left off.

    Args:
        config: the options; `epochs` are one number, or two for the stages of `objective.set_stage`.
        num_train: how many items there are to train on.
        checksum: of the data set; a run is not resumed on another one.
        plateau: (measure of the validation, or "loss" for the training loss; "max" or "min"): the learning rate falls
            to 0.6 of itself after six epochs in a row without a better one (differences.md, row 21).

    Raises CheckpointError, and ConfigError if the checkpoint does not fit the options or the data.
    """

    def __init__(
        self,
        config: Namespace,
        objective: nn.Module,
        num_train: int,
        checksum: str,
        ranks: Ranks,
        plateau: tuple[str, str] | None = None,
    ):
        self.config, self.ranks = config, ranks
        self.data = [num_train, checksum]
        self.per_epoch = max(1, num_train // config.global_batch_size)  # steps
        self.staged, self.switch = len(config.epochs) > 1, config.epochs[0] * self.per_epoch  # stage 2 begins there
        self.full = sum(config.epochs) * self.per_epoch
        self.total = min(self.full, config.max_steps or self.full)

        self.objective = objective.to(ranks.device).train()
        if ranks.world > 1 and ranks.device.type == "cuda":
            self.objective = nn.SyncBatchNorm.convert_sync_batchnorm(self.objective)
        trained = groups(self.objective, config.lr)
        self.optimizer = torch.optim.Adam(trained, weight_decay=config.weight_decay, fused=True)
        self.initial_lr = [group["lr"] for group in self.optimizer.param_groups]
        self.scheduler, self.measure = None, None
        if plateau and config.lr_decay == "none":
            self.measure, mode = plateau
            self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, mode, factor=0.6, patience=5)
        self.step = 0  # those that are done
        self.stage = self.epoch = None  # of the step that is being done or was done last
        self.epoch_loss = 0.0  # sum over the steps of this epoch
        self.restore()

        self.model = self.objective
        if ranks.world > 1:
            # Unless it looks for unused parameters, DDP sorts the gradients anew after its first step. Sums over three
            # processes depend on the place, so a resumed run would differ in the last bit.
            leaves_out = getattr(config, "ablation", "none") != "none"  # a loss: some have no gradient
            exact = ranks.device.type == "cpu" and ranks.world > 2
            self.model = DistributedDataParallel(self.objective, find_unused_parameters=leaves_out or exact)

    # ---- what is kept ------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; rank 0 does."""
        if self.ranks.rank == 0:
            state = {
                "config": vars(self.config),
                "data": self.data,
                "step": self.step,
                "epoch_loss": self.epoch_loss,
                "objective": self.objective.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler and self.scheduler.state_dict(),
            }
            checkpoint.save(Path(self.config.out), self.step, state, self.config.keep)

    def restore(self) -> None:
        """Go on from the checkpoint that --resume asks for, if there is one."""
        out, resume = Path(self.config.out), self.config.resume
        found = None
        if resume == "auto":
            found = checkpoint.latest(out, self.ranks.say)
        elif checkpoint.checkpoints(out) and Path(resume).parent != out:
            raise ConfigError(f"{out} holds checkpoints: choose another --out, remove them, or take --resume auto")
        elif resume != "never":
            found = Path(resume), checkpoint.load(Path(resume))
        if len(set(self.ranks.gather([found and found[1]["step"]]))) > 1:
            raise ConfigError(f"not all processes see the same checkpoints in {out}: it must lie on a shared disk")
        if found is None:
            return
        path, state = found
        check_resumable(self.config, state["config"], path)
        if state["data"] != self.data:
            was, now = (f"{num} samples of the data {digest[:12]}" for num, digest in (state["data"], self.data))
            raise ConfigError(
                f"{path} was trained on {was}, but now there are {now}. Choose another --out, or start from its "
                "weights with --init-from"
            )
        checkpoint.load_weights(self.objective, state["objective"], str(path))
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.step, self.epoch_loss = state["step"], state["epoch_loss"]
        self.ranks.say(f"resumed from {path} at step {self.step}")

    # ---- step by step ------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Set epoch, stage and learning rate of the next step."""
        self.epoch, stage = self.step // self.per_epoch, 1 if self.step < self.switch else 2
        if self.staged and stage != self.stage:
            self.objective.set_stage(stage)
        self.stage = stage
        if self.config.lr_decay == "cosine":
            factor = 0.5 + 0.5 * math.cos(math.pi * self.step / self.full)
            for group, initial in zip(self.optimizer.param_groups, self.initial_lr):
                group["lr"] = initial * factor

    def ends_epoch(self) -> bool:
        """Whether the last step was the last one of an epoch, or of the run."""
        return self.step % self.per_epoch == 0 or self.step == self.total

    def end_epoch(self, measured: dict[str, float]) -> None:
        """Let the learning rate follow what was measured. Nothing where --max-steps ended the run within an epoch."""
        if self.step % self.per_epoch == 0:
            values = measured | {"loss": self.epoch_loss}
            if self.scheduler and math.isfinite(values[self.measure]):  # undefined where all samples have one label
                self.scheduler.step(values[self.measure])
            self.epoch_loss = 0.0


def groups(objective: nn.Module, lr: float) -> list[dict]:
    """Parameters to train by learning rate: `lr`, or a part of it if the encoder says so (ESM-2)."""
    factors = objective.encoder.lr_factors()
    by_factor: dict[float, list] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            by_factor.setdefault(factors.get(name.removeprefix("encoder."), 1.0), []).append(parameter)
    return [{"params": parameters, "lr": lr * factor} for factor, parameters in by_factor.items()]
