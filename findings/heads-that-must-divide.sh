#!/bin/sh
# Expected: a model that transformers has trained and saved is read by later versions; where head_dim is given, the number of heads
#   need not divide hidden_size, as in the models of one family so in those of its neighbours.
# Seen: of 4.57.6's models with 5 heads of 16 and a hidden_size of 72, 5.24.0 and 5.23.0 read Mistral's, Qwen3's and Olmo2's with the
#   same loss, and refuse the configuration of Llama's and Gemma3's, whose weights have the same shapes.
# With: transformers 5.24.0, 5.23.0 and 4.57.6, torch 2.15.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import sys
import warnings
from pathlib import Path

import torch
import transformers

warnings.simplefilter("ignore")
transformers.utils.logging.set_verbosity_error()
folder = Path(sys.argv[1])
tokens = torch.arange(40).reshape(2, 20)
refused = []
print(f"transformers {transformers.__version__}:", end=" ")
for name in ("Mistral", "Qwen3", "Olmo2", "Llama", "Gemma3Text"):
    if transformers.__version__.startswith("4"):
        config = getattr(transformers, f"{name}Config")(
            vocab_size=64, hidden_size=72, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=5, num_key_value_heads=5, head_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.save_pretrained(folder / name)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
    except Exception as error:
        refused.append(name)
        print(f"{name} refused,", end=" ")
        last = error
        continue
    with torch.no_grad():
        loss = model(tokens, labels=tokens).loss.item()
    said = folder / f"{name}.loss"
    if not said.exists():
        said.write_text(str(loss))
    print(f"{name} {loss:.4f},", end=" ")
    assert abs(loss - float(said.read_text())) < 1e-4
print(" ".join(str(last).split())[-80:] if refused else "all saved")
sys.exit(refused != ([] if transformers.__version__.startswith("4") else ["Llama", "Gemma3Text"]))
PROGRAM
mkdir "$folder/models"
status=0
for version in 4.57.6 5.24.0 5.23.0; do
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$folder/$version/bin/python" "transformers==$version" torch==2.15.0 numpy==2.4.6
    "$folder/$version/bin/python" "$folder/program.py" "$folder/models" 2>"$folder/log" || { status=1; tail -3 "$folder/log"; }
done
exit $status
