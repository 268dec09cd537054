#!/bin/sh
# Expected: AutoTokenizer.from_pretrained of a folder with vocab.json and merges.txt, whose tokenizer_config.json says
#   LlamaTokenizer, reads the vocabulary, or raises.
# Seen: a LlamaTokenizer of three entries, without a warning. It turns any text into nothing, and save_pretrained writes
#   it as tokenizer.json.
# With: transformers 5.23.0, tokenizers 0.23.3, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
TRANSFORMERS_VERBOSITY=warning "$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import json
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXT = "the quick brown fox"
folder = Path(sys.argv[1]) / "model"
folder.mkdir()
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
tokenizer.train_from_iterator([TEXT] * 9, trainer)
tokenizer.model.save(str(folder))  # vocab.json and merges.txt


def entries(name):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    found = transformers.AutoTokenizer.from_pretrained(folder)
    return len(found), found.decode(found.encode(TEXT))


(folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
right, wrong = entries("GPT2Tokenizer"), entries("LlamaTokenizer")
print(f"vocab.json: {tokenizer.get_vocab_size()} entries")
print(f"as GPT2Tokenizer: {right[0]} entries, decodes to {right[1]!r}")
print(f"as LlamaTokenizer: {wrong[0]} entries, decodes to {wrong[1]!r}")
sys.exit(not (right[1] == TEXT and wrong == (3, "")))
PROGRAM
