#!/usr/bin/env bash
# BinaryAUROC and its relatives take a sigmoid of logits batch by batch, and only if a value of that batch lies outside
# 0 to 1. A batch of logits that happen to lie between 0 and 1 is taken for probabilities, so that scores of two
# batches are on two scales, and the value depends on the batches.
#
# torchmetrics 1.9.0 (torch 2.14.1), 2026-11-28, eight logits. Seen: AUROC 0.933 in one batch, which scikit-learn gives
# too, and 1.0 in two batches of four.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchmetrics==1.9.0 torch==2.14.1 numpy==2.4.6 scikit-learn==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from sklearn.metrics import roc_auc_score
from torchmetrics.classification import BinaryAUROC

logits = torch.tensor([0.2, 0.4, 0.6, 0.8, -1.0, 0.3, 2.0, 3.0])
labels = torch.tensor([0, 0, 1, 1, 0, 1, 1, 1])
seen = {"scikit-learn": round(roc_auc_score(labels, logits), 3)}
for size in (8, 4):
    metric = BinaryAUROC()
    for first in range(0, 8, size):
        metric.update(logits[first : first + size], labels[first : first + size])
    seen[f"batches of {size}"] = round(metric.compute().item(), 3)
print("AUROC:", seen)
assert seen == {"scikit-learn": 0.933, "batches of 8": 0.933, "batches of 4": 1.0}
PYTHON
