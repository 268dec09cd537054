#!/bin/sh
# Expected: who restores an optimizer and then sets another learning rate, as for a continued run, trains at that rate.
# Seen: torch keeps the rate of the first run beside the one that is used, in the optimizer's own state, and LambdaLR takes it for
#   its base: the new one is gone with the first step of the schedule, without a word. SequentialLR does the same, CosineAnnealingLR
#   does not. transformers' Trainer, told to resume with another learning_rate, trains at the old one; its args have the new.
#   After group["initial_lr"] = group["lr"] LambdaLR takes the new.
# With: torch 2.15.0, transformers 5.24.0, accelerate 1.15.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$uv" venv --quiet --python 3.11 "$folder/python"
"$uv" pip install --quiet --python "$folder/python/bin/python" torch==2.15.0 numpy==2.4.6 transformers==5.24.0 \
    accelerate==1.15.0
cat >"$folder/program.py" <<'PROGRAM'
import sys

import torch
import transformers
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

OLD, NEW = 3e-4, 1e-5


def optimizer(rate):
    return torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=rate)


first = optimizer(OLD)
LambdaLR(first, lambda step: 1.0)
state = first.state_dict()


def rate(schedule, mend=False):
    """After ten steps of a schedule on a restored optimizer that was given another rate."""
    restored = optimizer(NEW)
    restored.load_state_dict(state)
    for group in restored.param_groups:
        group["lr"] = NEW
        if mend:
            group["initial_lr"] = NEW
    scheduled = schedule(restored)
    for _ in range(10):
        restored.step()
        scheduled.step()
    return restored.param_groups[0]["lr"]


def constant(restored):
    return LambdaLR(restored, lambda step: 1.0)


def warmed(restored):
    return SequentialLR(restored, [LinearLR(restored, 0.1, total_iters=5), CosineAnnealingLR(restored, 10**6)], [5])


rates = [rate(constant), rate(warmed), rate(lambda restored: CosineAnnealingLR(restored, 10**6)), rate(constant, mend=True)]
print(f"trained at {OLD}, then set to {NEW}. LambdaLR, SequentialLR, cosine, LambdaLR mended:", *(f"{each:.3g}" for each in rates))


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8), "labels": torch.arange(8)}


def trainer(steps, rate):
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    )
    arguments = transformers.TrainingArguments(
        sys.argv[1], max_steps=steps, learning_rate=rate, lr_scheduler_type="constant", save_steps=2, logging_steps=1,
        report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    return transformers.Trainer(transformers.LlamaForCausalLM(config), arguments, train_dataset=Rows())


trainer(2, OLD).train()
resumed = trainer(4, NEW)
resumed.train(resume_from_checkpoint=True)
logged = [row["learning_rate"] for row in resumed.state.log_history if "learning_rate" in row][-1]
print(f"Trainer {transformers.__version__}: args.learning_rate {resumed.args.learning_rate}, logged {logged}")
near = [OLD, OLD, NEW, NEW]
sys.exit(not (all(abs(a / b - 1) < 1e-3 for a, b in zip(rates, near, strict=True)) and logged == OLD))
PROGRAM
status=0
"$folder/python/bin/python" "$folder/program.py" "$folder/run" >"$folder/log" 2>"$folder/errors" || status=1
grep -v "^{" "$folder/log" || tail -3 "$folder/errors"
exit $status
