#!/usr/bin/env bash
# `accelerate launch --cpu --num_processes 2 script.py` starts one process, without a word. Every option that it warns
# about is given. So each of two intended processes is missing half: a batch is half as large as planned.
#
# accelerate 1.15.0, torch 2.14.1, 2026-11-28. Seen: num_processes 1, nothing on stderr. torchrun starts two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q accelerate==1.15.0 torch==2.14.1 numpy==2.4.6
cat > "$folder/script.py" <<'PYTHON'
from accelerate import Accelerator

print("processes", Accelerator(cpu=True).num_processes, flush=True)
PYTHON
export OMP_NUM_THREADS=1
launch="$folder/venv/bin/accelerate launch --num_machines 1 --mixed_precision no --dynamo_backend no"
$launch --cpu --num_processes 2 "$folder/script.py" > "$folder/out" 2> "$folder/err"
cat "$folder/out" "$folder/err"
"$folder/venv/bin/torchrun" --nproc_per_node 2 --master_port 29787 "$folder/script.py" > "$folder/both" 2> /dev/null
[ "$(cat "$folder/out")" = "processes 1" ]
[ ! -s "$folder/err" ]
[ "$(sort "$folder/both")" = "$(printf 'processes 2\nprocesses 2')" ]
