#!/bin/sh
# Expected: a step of 16 sequences is the same step whether the Trainer takes them at once or 4 at a time with
#   gradient_accumulation_steps=4: the loss that it logs, and all gradients.
# Seen: so it is for a mixture without output_router_logits. With it, the router's balancing loss is added once to each forward
#   pass and not divided by their number, as the cross entropy is: four passes balance about four times as strongly, and
#   the logged loss has the term four times. eval_loss has it once, whatever the size of its batches.
# With: transformers 5.24.0 and 4.57.6, torch 2.15.0, accelerate 1.15.0, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import logging
import sys
import tempfile
import warnings

import torch
import transformers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainerCallback, TrainingArguments

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)
COEFFICIENT, SEQUENCES = 0.01, 16
torch.manual_seed(0)
rows = torch.randint(0, 64, (SEQUENCES, 64)).tolist()
data = [{"input_ids": row, "labels": row} for row in rows]


class Gradients(TrainerCallback):
    """Those of the routers before the only step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.found = [p.grad.norm().item() for n, p in model.named_parameters() if n.endswith("mlp.gate.weight")]


def trained(balanced, passes):
    """Logged loss, held-out loss and norms of the routers' gradients of one step at a learning rate of 0."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2,
        output_router_logits=balanced, router_aux_loss_coef=COEFFICIENT,
    )
    gradients = Gradients()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, per_device_train_batch_size=SEQUENCES // passes, gradient_accumulation_steps=passes, max_steps=1,
            per_device_eval_batch_size=4, learning_rate=0.0, max_grad_norm=0, logging_steps=1, report_to=[],
            disable_tqdm=True, use_cpu=True, save_strategy="no",
        )
        trainer = Trainer(
            Qwen3MoeForCausalLM(config), settings, train_dataset=data, eval_dataset=data, callbacks=[gradients]
        )
        trainer.train()
        held_out = trainer.evaluate()["eval_loss"]
    return trainer.state.log_history[0]["loss"], held_out, gradients.found


plain, once, four = trained(False, 4), trained(True, 1), trained(True, 4)
ratios = [a / b for a, b in zip(four[2], once[2])]
term = once[0] - plain[0]
print(
    f"transformers {transformers.__version__}: the router's term is {term:.4f} nats in one pass, {four[0] - plain[0]:.4f} in four; "
    f"routers' gradients are {min(ratios):.2f} to {max(ratios):.2f} times as large; eval_loss has {four[1] - plain[1]:.4f} of it",
    file=sys.stderr,
)
sys.exit(
    not (
        3.9 < (four[0] - plain[0]) / term < 4.1
        and 3.0 < min(ratios) < max(ratios) < 6.0
        and 0.9 < (four[1] - plain[1]) / term < 1.1
    )
)
PROGRAM
for version in 5.24.0 4.57.6; do
    python="$folder/$version/bin/python"
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$python" torch==2.15.0 numpy==2.4.6 transformers=="$version" accelerate==1.15.0
    "$python" "$folder/program.py" >/dev/null
done
