#!/bin/sh
# Expected: a GGUF file of 32-bit numbers, read by transformers into an ordinary model, is saved by save_pretrained as any model is.
# Seen: 4.57.6 saves it. 5.24.0 and 5.23.0 compute the same loss with it, and refuse to save it, because it were quantized and not
#   serializable. Without the quantizer and its section of the configuration it is saved, and is the same model when read again.
# With: transformers 5.24.0, 5.23.0 and 4.57.6, gguf 0.19.0, torch 2.15.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import sys
import warnings
from pathlib import Path

import gguf
import torch
import transformers
from transformers import AutoModelForCausalLM

warnings.simplefilter("ignore")
transformers.utils.logging.set_verbosity_error()
folder = Path(sys.argv[1])
folder.mkdir()
width, vocabulary = 32, 64
torch.manual_seed(0)
shapes = {"token_embd": (vocabulary, width), "output": (vocabulary, width), "output_norm": (width,)}
parts = {"attn_q": 1, "attn_k": 1, "attn_v": 1, "attn_output": 1, "ffn_gate": 1, "ffn_up": 1, "ffn_down": 1, "attn_norm": 0, "ffn_norm": 0}
shapes |= {f"blk.0.{name}": (width,) * (1 + square) for name, square in parts.items()}
writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
writer.add_context_length(64)
writer.add_embedding_length(width)
writer.add_block_count(1)
writer.add_feed_forward_length(width)
writer.add_head_count(2)
writer.add_head_count_kv(2)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_vocab_size(vocabulary)
for name, shape in shapes.items():
    writer.add_tensor(f"{name}.weight", torch.randn(shape).numpy())
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

tokens = torch.arange(40).reshape(2, 20)


def loss(model):
    with torch.no_grad():
        return model(tokens, labels=tokens).loss.item()


model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
read = loss(model)
print(f"transformers {transformers.__version__}: loss {read:.6f}, weights {model.lm_head.weight.dtype}")
try:
    model.save_pretrained(folder / "saved")
    refused = False
except ValueError as error:
    refused = True
    print(f"  {str(error)[:90]}")
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder / "saved")
again = loss(AutoModelForCausalLM.from_pretrained(folder / "saved", dtype=torch.float32))
print(f"  saved{' without the quantizer' * refused}, and read again: {again:.6f}")
sys.exit(abs(again - read) > 1e-5 or refused != transformers.__version__.startswith("5"))
PROGRAM
status=0
for version in 5.24.0 5.23.0 4.57.6; do
    "$uv" venv --quiet --python "$(command -v "${PYTHON:-python3}")" "$folder/$version"
    "$uv" pip install --quiet --python "$folder/$version/bin/python" "transformers==$version" \
        torch==2.15.0 numpy==2.4.6 gguf==0.19.0 accelerate==1.15.0
    "$folder/$version/bin/python" "$folder/program.py" "$folder/of$version" 2>"$folder/log" || { status=1; tail -3 "$folder/log"; }
done
exit $status
