#!/bin/sh
# Expected: who reads an optimizer's state leaves the optimizer as it is, so that training after the first checkpoint is training
#   without it.
# Seen: get_optimizer_state_dict of torch's distributed checkpoints takes a step with gradients of zero and a rate of zero where there
#   is no state yet, and leaves that step counted. The first update of Adam is then 0.74 of what it is without the call, since its
#   moments are corrected for two steps. Nothing is said. So a run that saves at step 0, or that restores its weights alone beside
#   such a call, trains otherwise at its start.
# With: torch 2.15.0, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$uv" venv --quiet --python 3.11 "$folder/python"
"$uv" pip install --quiet --python "$folder/python/bin/python" torch==2.15.0 numpy==2.4.6
"$folder/python/bin/python" -W ignore - <<'PROGRAM'
import sys

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def updates(is_read, steps=10):
    """Sizes of AdamW's updates of one weight whose gradient is always 1, in units of the learning rate; the steps that it counts."""
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    if is_read:
        get_optimizer_state_dict(model, optimizer)
    sizes = []
    for _ in range(steps):
        before = model.weight.item()
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        sizes.append((before - model.weight.item()) / 1e-3)
    return sizes, optimizer.state[model.weight]["step"].item()


plain, steps = updates(is_read=False)
read, counted = updates(is_read=True)
print(f"updates 1 and 10 of the learning rate: {plain[0]:.3f}, {plain[-1]:.3f}; after a look at the state: {read[0]:.3f}, {read[-1]:.3f}")
print(f"steps counted: {steps:g}; after a look at the state: {counted:g}")
sys.exit(not (abs(plain[0] - 1) < 1e-3 and abs(read[0] - 0.744) < 0.01 and counted == steps + 1 == 11))
PROGRAM
