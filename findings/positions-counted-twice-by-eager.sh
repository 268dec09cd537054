#!/bin/sh
# Expected: a model computes the same logits by attn_implementation "eager" as by "sdpa".
# Seen: Falcon with alibi (falcon-rw) adds its position biases twice by "eager" since version 5: the mask has them already. Its logits
#   change by a thousandth, without a word; 4.57 computes both alike.
# With: transformers 5.24.0 and 4.57.6, torch 2.15.0, Python 3.11, on 2026-12-01.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import sys

import torch
import transformers
from transformers import FalconConfig, FalconForCausalLM

shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
text = torch.arange(1, 25)[None]
logits = []
for way in ("eager", "sdpa"):
    torch.manual_seed(0)
    config = FalconConfig(**shape, alibi=True, new_decoder_architecture=False, attn_implementation=way)
    model = FalconForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data.mul_(20.0)
    with torch.no_grad():
        logits.append(model(text).logits)
difference = ((logits[0] - logits[1]).abs().max() / logits[0].abs().max()).item()
print(f"transformers {transformers.__version__}: logits differ by {difference:.1e} of the largest")
sys.exit((difference > 1e-4) != transformers.__version__.startswith("5"))
PROGRAM
status=0
for version in 5.24.0 4.57.6; do
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$folder/$version/bin/python" torch==2.15.0 numpy==2.4.6 "transformers==$version"
    "$folder/$version/bin/python" -W ignore "$folder/program.py" 2>"$folder/errors" || { tail -3 "$folder/errors"; status=1; }
done
exit $status
