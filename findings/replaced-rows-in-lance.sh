#!/bin/sh
# Expected: a row of a Lance dataset that is replaced stays where it is, and a dataset whose rows were replaced by equal ones is as
#   before.
# Seen: merge_insert and update move the rows that they touch to the end, in all reads; compaction leaves them there. What counts
#   rows (held out: the first thousand; resumed at row 5,000) means other documents afterwards.
# With: pylance 14.0.2, pyarrow 26.0.1, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pylance==14.0.2 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder/corpus.lance" <<'PROGRAM'
import sys

import lance
import pyarrow

rows = pyarrow.table({"id": list(range(10)), "text": [f"document {i}" for i in range(10)]})
corpus = lance.write_dataset(rows, sys.argv[1])


def ids():
    return corpus.to_table()["id"].to_pylist()


seen = [ids()]
corpus.merge_insert("id").when_matched_update_all().execute(rows.slice(2, 3))
same = corpus.to_table().sort_by("id").equals(rows)
seen.append(ids())
corpus.update({"text": "'another'"}, where="id = 0")
seen.append(ids())
corpus.optimize.compact_files()
seen.append(ids())
names = ("written", "rows 2 to 4 replaced by equal ones", "row 0 updated", "compacted")
for name, order in zip(names, seen, strict=True):
    print(f"{name}: {order}")
print(f"after the first replacement the rows are {'the same' if same else 'others'}, sorted by id")
moved = [0, 1, 5, 6, 7, 8, 9, 2, 3, 4]
sys.exit(not (same and seen[0] == list(range(10)) and seen[1] == moved and seen[2] == seen[3] == [*moved[1:], 0]))
PROGRAM
