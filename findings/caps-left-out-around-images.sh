#!/bin/sh
# Expected: a model that reads images around a text model computes the logits of that text model for text alone: it has its
#   configuration and its weights.
# Seen: Gemma3ForCausalLM caps its logits at final_logit_softcapping, and Gemma3ForConditionalGeneration does not, though its
#   text_config says so: with a cap of 3 the same weights give logits up to 3 in one and more than twice that in the other, without a
#   word. Without a cap, as Gemma 3 is published, both agree.
# With: transformers 5.24.0 and 4.57.6, torch 2.15.0, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import sys

import torch
import transformers
from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextConfig

CAP = 3.0
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
words = {**shape, "vocab_size": 64, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 16, "pad_token_id": 0}
images = {**shape, "image_size": 28, "patch_size": 14}
tokens = torch.arange(1, 25)[None]


def largest(cap):
    """The largest logit of the text's model, and of the one around it with the same weights."""
    torch.manual_seed(0)
    text = Gemma3ForCausalLM(Gemma3TextConfig(**words, final_logit_softcapping=cap)).eval()
    for weight in text.parameters():
        weight.data.mul_(30.0)
    around = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config={**words, "final_logit_softcapping": cap}, vision_config=images)
    ).eval()
    around.model.language_model.load_state_dict(text.model.state_dict())
    around.tie_weights()
    with torch.no_grad():
        return [model(tokens).logits.abs().max().item() for model in (text, around)]


capped, free = largest(CAP), largest(None)
print(f"transformers {transformers.__version__}: largest logits of the text's model and of the one around it")
print(f"  with a cap of {CAP:g}: {capped[0]:.2f} and {capped[1]:.2f}; without: {free[0]:.2f} and {free[1]:.2f}")
sys.exit(capped[0] > CAP or capped[1] < 2 * CAP or capped[1] != free[1] or abs(free[0] - free[1]) > 1e-3)
PROGRAM
status=0
for version in 5.24.0 4.57.6; do
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$folder/$version/bin/python" torch==2.15.0 numpy==2.4.6 "transformers==$version"
    "$folder/$version/bin/python" -W ignore "$folder/program.py" 2>"$folder/errors" || { tail -3 "$folder/errors"; status=1; }
done
exit $status
