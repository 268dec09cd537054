#!/bin/sh
# Expected: rope_theta in an OLMo 3's config.json is the base of all its layers, as in the release that wrote it.
# Seen: 5.24 reads it for layers with full attention alone. The others, by default three of four, get the family's own 500,000 in
#   place of 10,000, without a word: another model with the same weights.
# With: transformers 5.24.0 and 4.57.6, torch 2.11.0, Python 3.11, on 2026-12-01.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, Olmo3Config

transformers.logging.set_verbosity_warning()
folder = Path(sys.argv[1], "olmo3")
if not folder.exists():
    config = Olmo3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2, rope_theta=10_000.0,
        pad_token_id=None, bos_token_id=1, eos_token_id=2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder).eval()
text = torch.arange(256)[None] * 7 % 61
with torch.no_grad():
    loss = model(text, labels=text).loss.item()
read = getattr(model.config, "rope_parameters", None) or {"all layers": {"rope_theta": model.config.rope_theta}}
bases = {kind: each["rope_theta"] for kind, each in read.items()}
print(f"transformers {transformers.__version__}: {bases}, loss {loss:.4f}", file=sys.stderr)
print(bases.get("sliding_attention", 0), bases.get("full_attention", 0), round(loss, 3))
PROGRAM
for version in 4.57.6 5.24.0; do
    python="$folder/$version/bin/python"
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$python" transformers=="$version" torch==2.11.0 numpy
    "$python" "$folder/program.py" "$folder" >"$folder/$version.txt"
done
read -r _ _ older <"$folder/4.57.6.txt"
read -r windows full newer <"$folder/5.24.0.txt"
[ "$windows" = 500000.0 ] && [ "$full" = 10000.0 ] && [ "$older" != "$newer" ]
