#!/usr/bin/env bash
# `thresholds=100`, which the pages of torchmetrics offer to save memory, lays its thresholds evenly between 0 and 1.
# Scores of rare positives nearly all lie below the second one, .0101, so that their order is lost, and average
# precision and AUROC come near those of chance. Nothing is said.
#
# torchmetrics 1.9.0 (torch 2.14.1), 2026-11-28, 20,000 probabilities up to .019, 41 positives. Seen: without
# thresholds average precision .844 and AUROC .997, as scikit-learn has them; with thresholds=100 .051 and .524.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchmetrics==1.9.0 torch==2.14.1 numpy==2.4.6 scikit-learn==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

generator = torch.Generator().manual_seed(0)
labels = (torch.rand(20_000, generator=generator) < 0.002).long()
scores = (torch.randn(20_000, generator=generator) - 10 + 4 * labels).sigmoid()
seen = {"scikit-learn": (average_precision_score(labels, scores), roc_auc_score(labels, scores))}
for thresholds in (None, 100):
    metrics = BinaryAveragePrecision(thresholds=thresholds), BinaryAUROC(thresholds=thresholds)
    seen[f"thresholds={thresholds}"] = tuple(metric(scores, labels).item() for metric in metrics)
print(f"{int(labels.sum())} positives, largest score {scores.max():.3f}; average precision and AUROC:", seen)
exact, coarse = seen["thresholds=None"], seen["thresholds=100"]
assert max(abs(x - y) for x, y in zip(exact, seen["scikit-learn"])) < 1e-4
assert coarse[0] < exact[0] / 2 and coarse[1] < exact[1] - 0.2
PYTHON
