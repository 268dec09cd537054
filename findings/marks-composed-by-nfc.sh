#!/bin/sh
# Expected: with an NFC normalizer, the token of a composed letter covers both characters that it was composed of.
# Seen: its offsets cover the letter alone. The mark behind it lies in no token, although nothing of the text is lost; so do
#   the vowels and endings of decomposed Hangul. Who counts text in no token as lost counts whole languages as lost.
# With: tokenizers 0.23.3, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PROGRAM'
import sys

from tokenizers import Tokenizer, models, normalizers

seen = []
for name, text in (("e and an acute accent", "e\u0301"), ("Hangul jamo", "\u1112\u1161\u11ab")):
    composed = normalizers.NFC().normalize_str(text)
    tokenizer = Tokenizer(models.BPE({composed: 0}, []))
    tokenizer.normalizer = normalizers.NFC()
    found = tokenizer.encode(text)
    covered = {at for start, end in found.offsets for at in range(start, end)}
    seen.append((len(found.ids), len(covered)))
    print(f"{name}: {len(text)} characters, {len(found.ids)} token, which covers {len(covered)}")
sys.exit(seen != [(1, 1), (1, 1)])
PROGRAM
