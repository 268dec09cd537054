#!/bin/sh
# Expected: ids of one tokenizer.json give one text under either version of transformers, and the text that was encoded if no token
#   is lost.
# Seen: with clean_up_tokenization_spaces in tokenizer_config.json, as Llama 3 and GPT-2 have it, 4.57 leaves spaces out before
#   punctuation and apostrophes and 5.24 keeps them. A corpus that is decoded from its tokens by the former has other tokens when it
#   is encoded again. decode(ids, clean_up_tokenization_spaces=False) gives the text back in both.
# With: transformers 5.24.0 and 4.57.6, tokenizers 0.23.3 and 0.22.2, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import json
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = "if ( a , b ) : return ' x ' . join ( y ) ; the end ."
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
learns = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<end>"], show_progress=False)
tokenizer.train_from_iterator([TEXT] * 9, learns)
tokenizer.save(str(folder / "tokenizer.json"))
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "clean_up_tokenization_spaces": True}
(folder / "tokenizer_config.json").write_text(json.dumps(settings))
read = transformers.AutoTokenizer.from_pretrained(folder)
ids = read(TEXT)["input_ids"]
decoded, kept = read.decode(ids), read.decode(ids, clean_up_tokenization_spaces=False)
again = read(decoded)["input_ids"]
print(f"transformers {transformers.__version__}: {decoded!r}; encoded again: {'other' if again != ids else 'the same'} tokens")
was_cleaned = transformers.__version__.startswith("4.")
sys.exit(not (kept == TEXT and (decoded != TEXT) == was_cleaned == (again != ids)))
PROGRAM
status=0
for versions in "5.24.0 0.23.3" "4.57.6 0.22.2"; do
    set -- $versions
    "$uv" venv --quiet --python 3.11 "$folder/$1"
    "$uv" pip install --quiet --python "$folder/$1/bin/python" "transformers==$1" "tokenizers==$2"
    "$folder/$1/bin/python" -W ignore "$folder/program.py" "$folder/tokenizer" 2>/dev/null || status=1
done
exit $status
