#!/bin/sh
# Expected: an optimizer restored by load_state_dict owns its moments, as a model restored by it owns its weights.
# Seen: moments of the same dtype and device are the source's own tensors. A copy of a run that is restored from a living one,
#   to decay its learning rate for an evaluation, trains the living run's moments with its own gradients, without a word.
#   The model's weights beside them are copies.
# With: torch 2.15.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$uv" venv --quiet --python 3.11 "$folder/python"
"$uv" pip install --quiet --python "$folder/python/bin/python" torch==2.15.0 numpy==2.4.6
"$folder/python/bin/python" - <<'PROGRAM'
import torch


def run():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1, bias=False)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model, optimizer, target):
    optimizer.zero_grad()
    (model(torch.ones(1, 3)) - target).square().sum().backward()
    optimizer.step()


living, copied = run(), run()
step(*living, target=1.0)
for restored, source in zip(copied, living):
    restored.load_state_dict(source.state_dict())
weights = living[0].weight.detach().clone()
moment = living[1].state[living[0].weight]["exp_avg"].clone()
step(*copied, target=50.0)
moved = (living[1].state[living[0].weight]["exp_avg"] - moment).abs().max().item()
kept = torch.equal(living[0].weight, weights)
print(f"after a step of the copy the living run's weights are {'as they were' if kept else 'others'}, its first moment moved by {moved:.3g}")
raise SystemExit(not (kept and moved > 1.0))
PROGRAM
