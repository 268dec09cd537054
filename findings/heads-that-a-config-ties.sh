#!/bin/sh
# Expected: a checkpoint whose config.json ties the head to the embeddings, and whose file has a head of its own, is one model to
#   both releases, or refused.
# Seen: 4.57 takes the embeddings and drops the head, 5.24 keeps the head that was trained; both go on, with losses
#   that differ. Such a folder comes from a fine-tuned head that was saved beside the configuration of the base model.
# With: transformers 5.24.0 and 4.57.6, torch 2.15.0, safetensors 0.8.0, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
folder = Path(sys.argv[1], "model")
torch.manual_seed(1)
rows = torch.randint(0, 64, (8, 32))
if not folder.exists():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**saved, "rope_theta": 10000.0, "tie_word_embeddings": True}))
model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
with torch.no_grad():
    loss = model(input_ids=rows, labels=rows).loss.item()
    tied = torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)
print(f"transformers {transformers.__version__}: {'the embeddings' if tied else 'the head of the file'}, {loss:.4f} nats", file=sys.stderr)
print(loss, tied)
PROGRAM
for version in 5.24.0 4.57.6; do
    python="$folder/$version/bin/python"
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$python" torch==2.15.0 numpy==2.4.6 safetensors==0.8.0 transformers=="$version"
    "$python" "$folder/program.py" "$folder" >"$folder/$version.txt"
done
read -r newer newer_tied <"$folder/5.24.0.txt"
read -r older older_tied <"$folder/4.57.6.txt"
[ "$newer_tied" = False ] && [ "$older_tied" = True ] && [ "$newer" != "$older" ]
