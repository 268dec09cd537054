#!/bin/sh
# Expected: a Llama config.json that a newer transformers saved is read by the release before as the same model, or refused.
# Seen: transformers 5.23 saves the base of the rotary embedding as rope_parameters alone. 4.57 does not know that field and
#   takes its own default, 10,000, without a warning: another model. A Qwen3-MoE loses the number of its experts the same way.
# With: transformers 5.23.0 and 4.57.6, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 5.23.0 4.57.6; do
    "${PYTHON:-python3}" -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check "transformers==$version"
done
TRANSFORMERS_VERBOSITY=warning "$folder/5.23.0/bin/python" - "$folder" <<'PROGRAM'
import sys

from transformers import LlamaConfig, Qwen3MoeConfig

rope = {"rope_type": "default", "rope_theta": 500000.0}
LlamaConfig(rope_parameters=rope).save_pretrained(sys.argv[1] + "/llama")
Qwen3MoeConfig(num_experts=16).save_pretrained(sys.argv[1] + "/qwen3-moe")
PROGRAM
TRANSFORMERS_VERBOSITY=warning "$folder/4.57.6/bin/python" - "$folder" <<'PROGRAM'
import json
import sys
from pathlib import Path

from transformers import AutoConfig

saved = json.loads(Path(sys.argv[1], "llama", "config.json").read_text())
base = AutoConfig.from_pretrained(sys.argv[1] + "/llama").rope_theta
experts = AutoConfig.from_pretrained(sys.argv[1] + "/qwen3-moe").num_experts
print(f"5.23.0 saved: rope_parameters {saved.get('rope_parameters')}, rope_theta {saved.get('rope_theta')}")
print(f"4.57.6 reads: rope_theta {base}; of 16 experts saved, num_experts {experts}")
sys.exit(not (saved["rope_parameters"]["rope_theta"] == 500000 and base == 10000))
PROGRAM
