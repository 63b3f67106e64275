#!/usr/bin/env bash
# In bfloat16 torch has sums that stop at 256, beside sums that do not: index_add_ and segment_reduce add in bfloat16,
# in which 256 + 1 is 256; sum, scatter_add_ and embedding_bag add in float32. So the mean that segment_reduce takes of
# a thousand ones is .256, and a count of atoms by index_add_ of ones makes means too large.
#
# torch 2.14.1, on a CPU, 2026-11-28. Seen, of 1,000 ones: sum 1000, scatter_add_ 1000, embedding_bag 1000, index_add_
# 256, segment_reduce 256 and, as mean, .2559.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.14.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch

ones, zero = torch.ones(1000, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
to_first, all_of_them = torch.zeros(1000, dtype=torch.long), torch.tensor([1000])
seen = {
    "sum": ones.sum(),
    "scatter_add": zero.scatter_add(0, to_first, ones),
    "embedding_bag": torch.nn.functional.embedding_bag(torch.arange(1000)[None], ones[:, None], mode="sum"),
    "index_add": zero.index_add(0, to_first, ones),
    "segment_reduce": torch.segment_reduce(ones, "sum", lengths=all_of_them),
    "segment_reduce, mean": torch.segment_reduce(ones, "mean", lengths=all_of_them),
}
seen = {name: value.item() for name, value in seen.items()}
print(seen)
assert list(seen.values()) == [1000, 1000, 1000, 256, 256, 0.255859375]
PYTHON
