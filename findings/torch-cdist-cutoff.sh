#!/usr/bin/env bash
# torch.cdist computes distances of more than 25 points by a matrix product, and then in float32 a point may lie .01
# away from itself, and pairs near a cutoff fall on its wrong side. The default `compute_mode` is the one that does so,
# up to 25 points it does not, and no message says which way was taken.
#
# torch 2.14.1, on a CPU, 2026-11-28. Seen: with 25 points between 0 and 50 the largest distance of a point to itself
# is 0, with 26 it is .022. Of 4,000 points in a cube of 70 with a corner at (200, 200, 200), as in files of large
# assemblies, 168,840 pairs are within 10 (by float64); 30 pairs were on the wrong side, and none with
# compute_mode="donot_use_mm_for_euclid_dist".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.14.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch

points = torch.rand(26, 3, generator=torch.Generator().manual_seed(0))
to_itself = {n: torch.cdist(50 * points[:n], 50 * points[:n]).diagonal().max().item() for n in (25, 26)}
print("largest distance of a point to itself, by the number of points:", to_itself)

points = 200 + 70 * torch.rand(4000, 3, generator=torch.Generator().manual_seed(0))
near = torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist") <= 10
wrong = {}
for mode in ("use_mm_for_euclid_dist_if_necessary", "donot_use_mm_for_euclid_dist"):
    wrong[mode] = int(((torch.cdist(points, points, compute_mode=mode) <= 10) != near).sum())
print(f"of {int(near.sum())} pairs within the cutoff, wrong:", wrong)

assert to_itself[25] == 0 and to_itself[26] > 1e-3
assert wrong["use_mm_for_euclid_dist_if_necessary"] > 0 and wrong["donot_use_mm_for_euclid_dist"] == 0
PYTHON
