#!/bin/sh
# Expected: the index of a sharded checkpoint says which file a weight is in, and from_pretrained takes it from there.
# Seen: the index says which files are read, and of a weight that two of them have the last file's is taken, whatever the index says
#   of it, without a word. Some weights of a later save that lie in a file of the former one are thus believed, or not, by the files'
#   order. safetensors' own reader, asked for the file that the index names, gives the other one.
# With: transformers 5.24.0 and 4.57.6, safetensors 0.8.0, torch 2.15.0, Python 3.11, on 2026-11-30.
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
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

NAME = "model.layers.0.mlp.up_proj.weight"
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def taken(folder, named):
    """Which file's weight is loaded if both have it and the index names one of them."""
    folder.mkdir()
    torch.manual_seed(0)
    shape = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder)
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = [{}, {}]
    for number, (name, weight) in enumerate(sorted(whole.items())):
        parts[number % 2][name] = weight
    for number, part in enumerate(parts):
        part[NAME] = torch.full_like(whole[NAME], number + 1.0)
        save_file(part, folder / FILES[number], metadata={"format": "pt"})
    places = {name: FILES[number] for number, part in enumerate(parts) for name in part} | {NAME: FILES[named]}
    size = sum(weight.numel() * 4 for weight in whole.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_file(folder / places[NAME])[NAME].mean() == named + 1
    model, report = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    return int(model.state_dict()[NAME].mean()) - 1, any(map(len, report.values()))


found = [taken(Path(sys.argv[1]) / str(named), named) for named in (0, 1)]
print(f"transformers {transformers.__version__}: the index names file 1: file {found[0][0] + 1} is taken; file 2: {found[1][0] + 1}")
print(f"  anything said of it: {any(said for _, said in found)}")
sys.exit(found != [(1, False), (1, False)])
PROGRAM
status=0
for version in 5.24.0 4.57.6; do
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$folder/$version/bin/python" torch==2.15.0 numpy==2.4.6 safetensors==0.8.0 "transformers==$version"
    mkdir "$folder/of-$version"
    "$folder/$version/bin/python" -W ignore "$folder/program.py" "$folder/of-$version" 2>"$folder/errors" || { tail -3 "$folder/errors"; status=1; }
done
exit $status
