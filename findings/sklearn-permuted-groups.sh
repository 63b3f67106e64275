#!/usr/bin/env bash
# permutation_test_score takes `groups` for its folds and, without being asked, for the permutation: labels are then
# permuted within each group alone. If all members of a group have one label, as relatives in a family often have, no
# permutation changes anything, and a perfect model has p = 1. Without `groups` no GroupKFold works.
#
# scikit-learn 1.8.0, 2026-11-28, 20 groups of 5 equal labels, which one feature tells exactly. Seen: score 1, p 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q scikit-learn==1.8.0
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, permutation_test_score

random = np.random.default_rng(0)
groups = np.repeat(np.arange(20), 5)
label = groups % 2
feature = (label + random.normal(0, 0.01, 100))[:, None]
model, folds = LogisticRegression(), GroupKFold(5)
score, _, p = permutation_test_score(model, feature, label, groups=groups, cv=folds, n_permutations=200, random_state=0)
split = [*folds.split(feature, label, groups)]  # the same folds, made beforehand: now labels go anywhere
_, _, free = permutation_test_score(model, feature, label, cv=split, n_permutations=200, random_state=0)
print(f"score {score}, p with groups {p}, without {free:.3f}")
assert score == 1 and p == 1 and free < 0.01
PYTHON
