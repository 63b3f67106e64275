"""Time of the encoders beside GearNet, against the same numbers computed the plain way.

    python -m benchmarks.encoders gvp [--repeats 5]
    python -m benchmarks.encoders esm [--repeats 5] [--size 35M] [--lengths 80 118 150 198 258 298 408 538]

gvp: forward and backward of the paper's network on the real batch of `benchmarks/batches/atom.npz`, with all products
of a message taken per edge, and with those of the nodes taken per node. esm: forward of ESM-2 with random weights on
sequences of the given lengths, in fair-esm (padded; it must be installed) and here (packed). Both are interleaved, so
that a shared machine slows them alike. Prints medians in seconds, their ratio, and the largest relative difference.
"""

import argparse
import statistics

import torch
from torch import Tensor

from siamdiff_min.encoders import ENCODERS, kernels
from siamdiff_min.encoders.esm import CLS, EOS, ESM2, ESM_SIZES, RESIDUE_TOKEN, VOCABULARY, Tokens

from .step import load_batch
from .timing import timed


def compare(runs: dict, repeats: int) -> None:
    """Run both functions in turn; the first is the plain one. The first round warms up."""
    seconds, results = {name: [] for name in runs}, {}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            results[name], spent = timed(run)
            seconds[name].append(spent)
    median = {name: statistics.median(s[1:]) for name, s in seconds.items()}
    (plain, reference), (here, result) = results.items()
    error = (result - reference).abs().max() / reference.abs().max()
    for name, s in seconds.items():
        print(f"{name}: {median[name]:.3f} s ({min(s[1:]):.3f} .. {max(s[1:]):.3f})")
    print(f"{here} is {median[plain] / median[here]:.2f} x as fast as {plain}, results differ by {error:.1e}")


def gvp(repeats: int) -> None:
    """Both forms of the kernel, forward and backward, without dropout so that both compute the same."""
    torch.manual_seed(0)
    net, batch = ENCODERS["gvp"]("atom").eval(), load_batch("atom")
    graph = net.builder(batch)
    print(f"{batch.num_proteins} proteins, {graph.num_nodes} atoms, {graph.num_edges} edges")

    def run(form: str) -> Tensor:
        net.zero_grad()
        with kernels.use(form):
            node = net(batch, graph).node
            node.square().sum().backward()
        return node.detach()

    compare({"per edge": lambda: run("plain"), "per node": lambda: run("fast")}, repeats)


def esm(repeats: int, size: str, lengths: list[int]) -> None:
    """Padded and packed, forward without gradients."""
    import esm as fair

    torch.manual_seed(0)
    theirs, ours = fair.ESM2(*ESM_SIZES[size]).eval(), ESM2(*ESM_SIZES[size]).eval()
    ours.load_state_dict({name: theirs.state_dict()[name] for name in ours.state_dict()})
    lengths = sorted(lengths)
    rows = torch.full((len(lengths), lengths[-1] + 2), VOCABULARY.index("<pad>"))
    inside = torch.arange(lengths[-1] + 2) < torch.tensor(lengths)[:, None] + 2
    rows[inside] = torch.tensor(RESIDUE_TOKEN)[torch.randint(0, 20, (int(inside.sum()),))]
    rows[:, 0] = CLS
    rows[torch.arange(len(lengths)), torch.tensor(lengths) + 1] = EOS
    position = torch.arange(rows.shape[1]).expand_as(rows)[inside]
    counts = [(lengths.count(n), n + 2) for n in sorted(set(lengths))]
    scale = torch.full((len(position), 1), 0.88)  # nothing is masked
    tokens = Tokens(rows[inside], position, scale, torch.arange(len(position)), counts)
    print(f"{len(lengths)} sequences, {len(position)} tokens, {1 - len(position) / rows.numel():.0%} padding, {size}")

    def run_padded() -> Tensor:
        return theirs(rows, repr_layers=[theirs.num_layers])["representations"][theirs.num_layers][inside]

    with torch.no_grad():
        compare({"fair-esm": run_padded, "packed": lambda: ours.encode(tokens)}, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", choices=["gvp", "esm"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", default="35M", choices=list(ESM_SIZES))
    parser.add_argument("--lengths", type=int, nargs="+", default=[80, 118, 150, 198, 258, 298, 408, 538])
    args = parser.parse_args()
    print(f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads")
    gvp(args.repeats) if args.encoder == "gvp" else esm(args.repeats, args.size, args.lengths)


if __name__ == "__main__":
    main()
