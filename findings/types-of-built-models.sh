#!/bin/sh
# Expected: a model that is built anew has float32 weights, whatever the configuration says of files: AutoModelForCausalLM.from_config
#   and the family's own class differ by nothing but the name.
# Seen: from_config takes the configuration's dtype, and the class does not. With a published configuration (bfloat16) one trains in
#   bfloat16 weights and the other in float32. Norms begin at 1.0, where bfloat16 has steps of 0.004 to 0.008: at a learning rate of
#   1e-3 none of them has moved after 50 steps of AdamW, and in float32 all have. Weights in float32 that are loaded into the former
#   are rounded without a word. from_config(config, dtype=torch.float32) is as the class.
# With: transformers 5.24.0 and 4.57.6, torch 2.15.0, Python 3.11, on 2026-11-30.
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

RATE, STEPS = 1e-3, 50
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
shape = {"model_type": "llama", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
shape |= {"num_attention_heads": 2, "num_key_value_heads": 2, "torch_dtype": "bfloat16"}
(folder / "config.json").write_text(json.dumps(shape))
config = transformers.AutoConfig.from_pretrained(folder)
tokens = torch.arange(256).view(8, 32) % 7


def moved(model):
    """The type of the weights, and the share of the norms' weights that training moves."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    norms = torch.cat([each for name, each in model.named_parameters() if "norm" in name])
    return model.dtype, (norms != 1).float().mean().item()


torch.manual_seed(0)
built = [
    moved(transformers.AutoModelForCausalLM.from_config(config)),
    moved(transformers.LlamaForCausalLM(config)),
    moved(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)),
]
print(f"transformers {transformers.__version__}: from_config, the class, from_config with a dtype:", *(f"{a} {b:.0%} moved;" for a, b in built))
sys.exit([each for each, _ in built] != [torch.bfloat16, torch.float32, torch.float32] or built[0][1] > 0 or min(b for _, b in built[1:]) < 0.99)
PROGRAM
status=0
for version in 5.24.0 4.57.6; do
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$folder/$version/bin/python" torch==2.15.0 numpy==2.4.6 "transformers==$version"
    "$folder/$version/bin/python" -W ignore "$folder/program.py" "$folder/model" 2>/dev/null || status=1
done
exit $status
