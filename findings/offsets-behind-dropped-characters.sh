#!/bin/sh
# Expected: the offsets of a token say where in the text it is, whatever was dropped before it.
# Seen: a BPE without bytes and without an unknown token drops characters that it does not know, and the tokens of the same
#   word that follow are said to be one place further left for each. "d" of "abμd" claims the place of "μ".
# With: tokenizers 0.23.3, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PROGRAM'
import sys

from tokenizers import Tokenizer, models

TEXT = "abμd"
found = Tokenizer(models.BPE({"a": 0, "b": 1, "d": 2}, [])).encode(TEXT)
for token, (start, end) in zip(found.tokens, found.offsets, strict=True):
    print(f"{token!r} at {start}:{end}, where the text has {TEXT[start:end]!r}")
sys.exit(found.offsets != [(0, 1), (1, 2), (2, 3)])
PROGRAM
