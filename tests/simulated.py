"""A GPU that is not there: what a training step asks of one. Needs no GPU.

`Simulation` runs a step on a device that exists in name only (torch's backend for devices written in Python); the
numbers are computed on the CPU. It refuses what fails on a GPU, and counts what is slow there: waits of the host for
the device, tensors made on the CPU, results in float64.
"""

from collections import Counter

import torch
from torch.utils import backend_registration as backends
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

POSSIBLE = hasattr(backends, "_setup_privateuseone_for_python_backend")
WAITS = {  # their results have a size that only the device knows, or are numbers for the host
    "_local_scalar_dense",
    "nonzero",
    "_unique2",
    "unique_consecutive",
    "unique_dim_consecutive",
    "isin",
    "equal",
    "masked_select",
    "bincount",
}
FEW = 256  # numbers: the constants of schedules and bins


class Backend(getattr(backends, "_DummyBackendModule", object)):
    """What torch asks a device for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


if POSSIBLE:
    backends._setup_privateuseone_for_python_backend("simgpu", backend_module=Backend())
    DEVICE = torch.device("simgpu", 0)


class Far(torch.Tensor):
    """A tensor on the simulated device; `near` holds its numbers."""

    @staticmethod
    def __new__(cls, near: torch.Tensor):
        layout = {"strides": near.stride(), "dtype": near.dtype, "storage_offset": near.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, near.shape, device=DEVICE, **layout)

    def __init__(self, near: torch.Tensor):
        self.near = near

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __matmul__(self, other):  # of a vector: it is squeezed in place, which a wrapper does not notice
        return torch.Tensor.__matmul__(self[None], other)[0] if self.dim() == 1 else super().__matmul__(other)

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} outside of the simulation")


def near(x):
    """What the CPU computes with in place of an argument."""
    return x.near if isinstance(x, Far) else torch.device("cpu") if isinstance(x, torch.device) else x


class Generator(torch.Generator):
    """One whose numbers are drawn on the simulated device."""

    @property
    def device(self) -> torch.device:
        return DEVICE


class Simulation(TorchDispatchMode):
    """Within it tensors `Far` are on a device of their own.

    Raises AssertionError for an operation that mixes devices, and, with deterministic algorithms, for the sum that
    takes quadratic memory on a GPU.
    """

    def __init__(self):
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.on_cpu: Counter[str] = Counter()  # tensors made there
        self.float64: Counter[str] = Counter()  # results of more than a few numbers

    def __enter__(self):
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) passes by us
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(False)
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.__name__.split(".")[0]
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        far = [x for x in tensors if isinstance(x, Far)]
        to = torch.device(kwargs["device"]) if kwargs.get("device") else None
        if not far and (to is None or to.type != "simgpu"):
            result = func(*args, **kwargs)
            if any(isinstance(x, torch.Tensor) and x.dim() for x in tree_leaves(result)):
                self.on_cpu[name] += 1
            return result
        move = name in ("_to_copy", "copy_")
        assert move or all(isinstance(x, Far) or x.dim() == 0 for x in tensors), f"{func} mixes devices"
        sums = name == "cumsum" and tensors[0].is_floating_point() and torch.are_deterministic_algorithms_enabled()
        assert not sums, "cumsum of floats takes quadratic memory with deterministic algorithms"
        masks = name in ("index", "index_put_") and any(i is not None and i.dtype == torch.bool for i in args[1])
        crossing = move and len({isinstance(x, Far) for x in tensors} | ({to.type == "simgpu"} if to else set())) > 1
        repeats = func is torch.ops.aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        if name in WAITS or masks or repeats or (crossing and not kwargs.get("non_blocking")):
            self.waits[name] += 1
        own = {id(x.near): x for x in far}
        args, kwargs = tree_map(near, args), tree_map(near, kwargs)
        result = func(*args, **kwargs)
        self.count(func, name, result)
        if move and to is not None and to.type == "cpu":
            return result

        def wrap(x):  # what was written to in place stays the same tensor
            return own[id(x)] if id(x) in own else Far(x) if isinstance(x, torch.Tensor) else x

        return tree_map(wrap, result)

    def count(self, func, name: str, result) -> None:
        """Note results in float64, unless they are views."""
        returns = func._schema.returns
        if returns and returns[0].alias_info and not returns[0].alias_info.is_write:
            return
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.dtype == torch.float64 and x.numel() > FEW:
                self.float64[name] += 1


def to_simulation(module: torch.nn.Module) -> torch.nn.Module:
    """Move a module in place."""
    for part in module.modules():
        for name, x in part._parameters.items():
            part._parameters[name] = x if x is None else torch.nn.Parameter(Far(x.detach()), x.requires_grad)
        for name, x in part._buffers.items():
            part._buffers[name] = x if x is None else Far(x)
    return module


def simulate(objective: torch.nn.Module, batch) -> Simulation:
    """One step of an objective and a batch of the CPU: forward, backward, norm of the gradient, Adam.

    What is made once (tables, the state of Adam) is there before.
    """
    generator = Generator().manual_seed(1)
    with Simulation() as simulation:
        to_simulation(objective).train()
        batch = batch.to(DEVICE)
        adam = torch.optim.Adam(objective.parameters(), lr=1e-4, fused=True)
        for p in objective.parameters():
            p.grad = torch.zeros_like(p)
        adam.step()
        with torch.no_grad():
            objective(batch, generator)
        for found in (simulation.waits, simulation.on_cpu, simulation.float64):
            found.clear()
        adam.zero_grad()
        loss, logs = objective(batch, generator)
        assert all(isinstance(x, Far) for x in [loss, *(log.sums for log in logs.values())]), (
            "what is logged left the device"
        )
        loss.backward()
        grads = [p.grad for p in objective.parameters() if p.grad is not None]
        assert torch.stack(torch._foreach_norm(grads)).device == DEVICE
        adam.step()
    return simulation
