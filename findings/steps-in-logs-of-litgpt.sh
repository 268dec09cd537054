#!/bin/sh
# Expected: `step` in the metrics.csv of litgpt's pretraining is the optimizer step that litgpt logs under this name, and a row with a
#   val_loss says how far the training was.
# Seen: the CSV logger writes its own step over it: the number of forward passes less one, so that with four passes to a batch the
#   second optimizer step is step 7. Rows with a val_loss have nothing else that counts: iter, tokens and total_tokens are empty.
#   Who takes step for the optimizer's has four times the tokens, and by another factor for each batch size.
# With: litgpt 0.5.13, lightning 2.6.6, torch 2.15.0, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$uv" venv --quiet --python 3.11 "$folder/python"
"$uv" pip install --quiet --python "$folder/python/bin/python" litgpt==0.5.13 lightning==2.6.6 requests==2.34.2 torch==2.15.0 \
    numpy==2.4.6
cat >"$folder/program.py" <<'PROGRAM'
import csv
import sys
import warnings
from pathlib import Path

import torch
from litgpt import pretrain
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config
from litgpt.data import DataModule
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
LENGTH, BATCH, MICRO, STEPS = 32, 8, 2, 4


class Noise(DataModule):
    """Random tokens."""

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None):
        self.batch_size = batch_size

    def _loader(self, rows):
        return DataLoader(torch.randint(0, 64, (rows, LENGTH + 1)), batch_size=self.batch_size)

    def train_dataloader(self):
        return self._loader(64)

    def val_dataloader(self):
        return self._loader(4)


folder = Path(sys.argv[1])
pretrain.setup(
    model_name="tiny",
    model_config=Config(
        name="tiny", block_size=LENGTH, n_layer=1, n_head=2, n_embd=16, vocab_size=64, padded_vocab_size=64
    ),
    out_dir=folder,
    precision="32-true",
    data=Noise(),
    devices=1,
    logger_name="csv",
    train=TrainArgs(
        save_interval=None, log_interval=1, global_batch_size=BATCH, micro_batch_size=MICRO,
        max_tokens=STEPS * BATCH * LENGTH, max_seq_length=LENGTH, lr_warmup_steps=1, max_norm=1.0,
    ),
    eval=EvalArgs(interval=2, max_iters=2, initial_validation=False, final_validation=False),
)
(log,) = folder.glob("logs/csv/*/metrics.csv")
rows = list(csv.DictReader(log.open()))
trained = [row for row in rows if row["loss"]]
held_out = [row for row in rows if row["val_loss"]]
for name, found in (("loss", trained), ("val_loss", held_out)):
    for row in found:
        shown = {key: row[key] for key in ("step", "iter", "tokens", "total_tokens")}
        print(f"row with {name}: {shown}", file=sys.stderr)
passes = BATCH // MICRO
sys.exit(
    not (
        [int(row["step"]) for row in trained] == [passes * step - 1 for step in range(1, STEPS + 1)]
        and [int(row["tokens"]) for row in trained] == [BATCH * LENGTH * step for step in range(1, STEPS + 1)]
        and [int(row["step"]) for row in held_out] == [passes * 2 - 1, passes * 4 - 1]
        and not any(row[key] for row in held_out for key in ("iter", "tokens", "total_tokens"))
    )
)
PROGRAM
"$folder/python/bin/python" "$folder/program.py" "$folder/out" >/dev/null
