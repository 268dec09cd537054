#!/bin/sh
# Expected: tokenizer.json says how text is split: a model of Qwen2's architecture that was trained with a tokenizer of its own,
#   digits one by one, keeps it.
# Seen: 5.24 builds Qwen2's own pre-tokenizer and takes of tokenizer.json vocabulary and merges alone, even where
#   tokenizer_config.json names PreTrainedTokenizerFast: another number of tokens, without a word. 4.57 reads the file, and
#   so does 5.24 under a config.json of Qwen3, and of 14 more types that were tried.
# With: transformers 5.24.0 (tokenizers 0.23.3) and 4.57.6 (0.22.2), Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import json
import sys
from pathlib import Path

import tokenizers
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

transformers.logging.set_verbosity_error()
text = "In 2024 the budget of 1500 runs was 320000 dollars, in 2025 it was 410000." * 4
counts = {}
for kind in ("qwen2", "qwen3"):
    folder = Path(sys.argv[1], kind)
    if not folder.exists():
        folder.mkdir()
        built = Tokenizer(models.BPE())
        # A word and the digits of a number, each with no space of its own.
        built.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Digits(individual_digits=True),
             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        built.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"],
            show_progress=False,
        )
        built.train_from_iterator([text, "the budget of the runs was in dollars"] * 20, trainer)
        built.save(str(folder / "tokenizer.json"))
        named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(named))
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    own = len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    loaded = AutoTokenizer.from_pretrained(folder)
    counts[kind] = (own, len(loaded(text, add_special_tokens=False)["input_ids"]))
    print(
        f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}: {kind}, {own} tokens of the file, "
        f"{type(loaded).__name__} {counts[kind][1]}",
        file=sys.stderr,
    )
print(*counts["qwen2"], *counts["qwen3"])
PROGRAM
for version in 5.24.0 4.57.6; do
    python="$folder/$version/bin/python"
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$python" transformers=="$version"
    "$python" "$folder/program.py" "$folder" >"$folder/$version.txt"
done
read -r own newer own_3 newer_3 <"$folder/5.24.0.txt"
read -r _ older _ older_3 <"$folder/4.57.6.txt"
[ "$newer" != "$own" ] && [ "$older" = "$own" ] && [ "$newer_3" = "$own_3" ] && [ "$older_3" = "$own_3" ]
