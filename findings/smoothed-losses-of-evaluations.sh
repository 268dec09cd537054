#!/bin/sh
# Expected: label_smoothing_factor changes what a run trains for; eval_loss stays the cross-entropy of the held-out text, so that
#   runs with and without it can be compared.
# Seen: the Trainer's eval_loss is smoothed, too. The same model on the same rows has another eval_loss with 0.1, and neither the
#   metric nor its name says so. `loss` of the model itself is what it was. And 4.57's eval_loss of 64 sequences of 32
#   tokens is 31/32 of the model's, without smoothing: it counts the first token of each, which nothing predicts.
# With: transformers 5.24.0 and 4.57.6, torch 2.15.0, accelerate 1.15.0, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import logging
import sys
import tempfile
import warnings

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
)
rows = torch.randint(3, 64, (64, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(60):  # until it is sure of what comes next, as a trained model is
    optimizer.zero_grad()
    model(input_ids=rows, labels=rows).loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    own = model(input_ids=rows, labels=rows).loss.item()
data = [{"input_ids": row, "labels": row} for row in rows.tolist()]
found = {}
for factor in (0.0, 0.1):
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, label_smoothing_factor=factor, per_device_eval_batch_size=64, report_to=[], disable_tqdm=True,
            use_cpu=True,
        )
        found[factor] = Trainer(model, settings, eval_dataset=data).evaluate()["eval_loss"]
print(
    f"transformers {transformers.__version__}: the model's loss is {own:.4f} nats; eval_loss is {found[0.0]:.4f} without "
    f"label_smoothing_factor and {found[0.1]:.4f} with 0.1",
    file=sys.stderr,
)
# 4.57 divides by the first token of each sequence of 32, too.
sys.exit(not (0.95 * own < found[0.0] < 1.01 * own and found[0.1] > own + 1.0))
PROGRAM
for version in 5.24.0 4.57.6; do
    python="$folder/$version/bin/python"
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$python" torch==2.15.0 numpy==2.4.6 transformers=="$version" accelerate==1.15.0
    "$python" "$folder/program.py" >/dev/null
done
