"""The state of a training run: everything that goes into a checkpoint, with `save` and `restore` side by side."""

import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..files import ConfigError
from . import checkpoint
from .config import RunConfig
from .ranks import Ranks, gather


class Run:
    """Weights, optimizer, schedule and place in the data of a run; made at step 0, or where its checkpoint left off.

    Args:
        config: the resolved options; `epochs` is one number, or two for the stages of `objective.set_stage`.
        num_train: how many items there are to train on.
        checksum: of the data set; a run is not resumed on another one.
        plateau: (measure of the validation, or "loss" for the training loss; "max" or "min"): the learning rate falls
            to 0.6 of itself after six epochs in a row without a better one (differences.md, row 21).

    Raises CheckpointError, and ConfigError if the checkpoint does not fit the options or the data.
    """

    def __init__(
        self,
        config: RunConfig,
        objective: nn.Module,
        num_train: int,
        checksum: str,
        ranks: Ranks,
        plateau: tuple[str, str] | None = None,
    ):
        self.config, self.ranks, self.num_train, self.checksum = config, ranks, num_train, checksum
        epochs = config.epochs if isinstance(config.epochs, tuple) else (config.epochs,)
        self.per_epoch = max(1, num_train // config.global_batch_size)  # steps
        self.staged, self.switch = len(epochs) > 1, epochs[0] * self.per_epoch  # stage 2 begins after `switch` steps
        self.full = sum(epochs) * self.per_epoch
        self.total = min(self.full, config.max_steps or self.full)

        self.objective = objective.to(ranks.device).train()
        if ranks.world > 1 and ranks.device.type == "cuda" and not config.batch_nodes:  # else pieces differ in number
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
        self.metrics_size = 0  # bytes of metrics.jsonl when the checkpoint was written
        self.restore()

        self.model = self.objective
        if ranks.world > 1:
            # Unless it looks for unused parameters, DDP sorts the gradients anew after its first step. Sums over three
            # processes depend on the place, so a resumed run would differ in the last bit.
            leaves_out = config.plain().get("ablation", "none") != "none"  # a loss: some have no gradient
            exact = ranks.device.type == "cpu" and ranks.world > 2
            self.model = DistributedDataParallel(self.objective, find_unused_parameters=leaves_out or exact)

    # ---- what is kept ------------------------------------------------------------------------------------------------

    def save(self, metrics_size: int) -> None:
        """Write a checkpoint; rank 0 does."""
        if self.ranks.rank == 0:
            state = {
                "config": self.config.plain(),
                "step": self.step,
                "num_train": self.num_train,
                "data": self.checksum,
                "metrics_size": metrics_size,
                "objective": self.objective.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler and self.scheduler.state_dict(),
                "epoch_loss": self.epoch_loss,
            }
            checkpoint.save(Path(self.config.out), self.step, state, self.config.keep)

    def restore(self) -> None:
        """Go on from the checkpoint that --resume asks for, if there is one."""
        found = self._agree_on_checkpoint()
        if found is None:
            return
        path, state = found
        self.config.check_resumable(state["config"], path, begun=math.ceil(state["step"] / self.per_epoch))
        before = state["num_train"], state.get("data", self.checksum)  # version 0.2 did not note the data
        if before != (self.num_train, self.checksum):
            raise ConfigError(
                f"{path} was trained on {before[0]} samples of the data {before[1][:12]}, but now there are "
                f"{self.num_train} of {self.checksum[:12]}. Choose another --out, or start from its weights with "
                "--init-from"
            )
        checkpoint.load_weights(self.objective, state["objective"], str(path))
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.step, self.epoch_loss = state["step"], state["epoch_loss"]
        self.metrics_size = state["metrics_size"] if path.parent == Path(self.config.out) else 0
        self.ranks.say(f"resumed from {path} at step {self.step}")

    def _agree_on_checkpoint(self) -> tuple[Path, dict] | None:
        """Rank 0 looks for it and tells the others the path: the processes share a file system."""
        out, resume, found = Path(self.config.out), self.config.resume, None
        if self.ranks.rank == 0:
            if resume == "auto":
                found = checkpoint.latest(out, self.ranks.say)
            elif checkpoint.checkpoints(out) and Path(resume).parent != out:
                raise ConfigError(f"{out} holds checkpoints: choose another --out, remove them, or take --resume auto")
            elif resume != "never":
                found = Path(resume), checkpoint.load(Path(resume))
        path = gather([found and found[0]], self.ranks.world)[0]
        if self.ranks.rank and path:
            found = path, checkpoint.load(path)
        return found

    # ---- step by step ------------------------------------------------------------------------------------------------

    def begin_step(self) -> bool:
        """Set the stage and the learning rate of the next step. True if stage 2 follows upon stage 1."""
        self.epoch, stage = self.step // self.per_epoch, 1 if self.step < self.switch else 2
        if self.staged and stage != self.stage:
            self.objective.set_stage(stage)
        self.stage = stage
        if self.config.lr_decay == "cosine":
            factor = 0.5 + 0.5 * math.cos(math.pi * self.step / self.full)
            for group, initial in zip(self.optimizer.param_groups, self.initial_lr):
                group["lr"] = initial * factor
        return 0 < self.step == self.switch

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
