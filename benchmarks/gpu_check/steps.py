"""Checks of single training steps."""

from __future__ import annotations

import io
import re
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.trainer_rivals import Precision, point_of
from isoloss_contract.store import Store
from isoloss_operator.planning.presets import preset_config
from isoloss_trainer.attention import ORDER, causal_attention, preferred_kernels
from isoloss_trainer.checkpoint import Checkpoints
from isoloss_trainer.checkpoint_files import Tensors
from isoloss_trainer.evaluation import run_losses
from isoloss_trainer.kernels import describe_kernels, deterministic_kernels
from isoloss_trainer.learner import Learner
from isoloss_trainer.log import Log
from isoloss_trainer.memory import footprint
from isoloss_trainer.model import build_network, model_config
from isoloss_trainer.sharding import local
from isoloss_trainer.training_state import TrainingState
from isoloss_trainer.world import World

TOY_LENGTH, LENGTH = 128, 8192
LARGEST_KERNELS = 8
ATTENTION = re.compile(r"scaled_dot_product_\w*attention\w*|_flash_attention\w*")
GROUPED = re.compile(r"grouped_mm\w*|\w*grouped_gemm\w*", re.IGNORECASE)


def small_models(*, toy: bool) -> dict[str, dict[str, Any]]:
    """Configs whose gradients a CPU computes in seconds; at full size also two layers of the proxies, with
    their own head sizes, which decide what kernels run."""
    names = ["dense-tiny", "moe-tiny"]
    found = {name: preset_config(name) for name in names}
    if not toy:
        for name in ("dense-100m", "moe-100m"):
            layers = {"num_hidden_layers": 2, "vocab_size": 4096}
            found[f"two layers of {name}"] = {**preset_config(name), **layers}
    return found


def learner_of(
    config: dict[str, Any],
    device: str,
    precision: Precision,
    *,
    batch: int = 4,
    length: int = TOY_LENGTH,
) -> tuple[Learner, torch.Tensor]:
    """A learner with fresh weights, and a batch of random tokens [batch, length + 1]."""
    point = point_of(config, batch, length, precision)
    name = "cuda:0" if device == "cuda" else "cpu"
    learner = Learner(build_network(config, seed=0), point, World(device=name))
    generator = torch.Generator().manual_seed(0)
    return learner, torch.randint(config["vocab_size"], (batch, length + 1), generator=generator)


def planned_gib(preset: str, length: int, sequences: int) -> float:
    """What isoloss_trainer.memory expects at the peak of a step in bfloat16 on one device."""
    with torch.device("meta"):
        network = build_network(preset_config(preset))
    needed = footprint(network, "bf16")
    activations = needed.of_sequences(sequences, length, recompute=False)
    return (needed.fixed + activations) / 2**30


@dataclass(frozen=True)
class Gradients:
    """Of one batch, by parameter, in float32 on the CPU."""

    loss: float
    norm: float
    by_name: dict[str, torch.Tensor]

    def compared_with(self, wanted: Gradients) -> dict[str, Any]:
        """Differences from `wanted`: of the loss in nats, of gradients relative to their norm."""
        errors = {
            name: float((gradient - wanted.by_name[name]).norm() / wanted.by_name[name].norm())
            for name, gradient in self.by_name.items()
            if wanted.by_name[name].norm() > 0
        }
        worst = max(errors, key=lambda name: errors[name])
        return {
            "loss off by, nats": abs(self.loss - wanted.loss),
            "gradient norm off by, relative": abs(self.norm / wanted.norm - 1),
            "worst gradient off by, relative": errors[worst],
            "of": worst,
        }


def gradients_of(config: dict[str, Any], device: str, precision: Precision) -> Gradients:
    """By the trainer's own step: its first moment after one step is a tenth of the clipped gradient."""
    learner, batch = learner_of(config, device, precision)
    with preferred_kernels(learner.world):
        facts = learner.step(batch, batch[:, 1:].numel())
    norm = float(facts.gradient_norm)
    factor = 10 * max(1.0, norm)
    moments = part_of(learner.copied(), "first_moment").items()
    return Gradients(float(facts.loss), norm, {name: moment * factor for name, moment in moments})


def part_of(tensors: Tensors, part: str) -> Tensors:
    """Of a learner's tensors, where one process has them all: those of a part of the state, by their names in the
    model, on the CPU."""
    return {
        name.removeprefix(f"{part}."): local(tensor).cpu().clone()
        for name, tensor in tensors.items()
        if name.startswith(f"{part}.")
    }


def equal_bits(preset: str, device: str, *, wanted: bool) -> str:
    """Whether two runs of five steps end with equal weights, in words."""
    world = World(device="cuda:0" if device == "cuda" else "cpu")
    ends = []
    for _ in range(2):
        with ExitStack() as kernels:
            try:
                kernels.enter_context(deterministic_kernels(wanted))
                kernels.enter_context(preferred_kernels(world, deterministic=wanted))
                learner, batch = learner_of(preset_config(preset), device, "bf16")
                for number in range(1, 6):
                    learner.step(batch, number * batch[:, 1:].numel())
            except RuntimeError as error:
                if "deterministic" not in str(error):
                    raise
                return f"refused: {error}"[:300]
            weights = part_of(learner.tensors(), "weights").values()
            ends.append(torch.cat([weight.flatten() for weight in weights]))
    return "equal" if torch.equal(*ends) else "different"


def compiled_steps(preset: str, device: str, *, toy: bool) -> dict[str, Any]:
    """Steps at two batch sizes and an evaluation between them: one compilation should serve all."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    length = TOY_LENGTH if toy else LENGTH
    learner, batch = learner_of(preset_config(preset), device, "bf16", batch=8, length=length)
    learner.limit_micro_batch(2)
    if device == "cpu":
        learner.model.prepare_layers(recompute=False, compiled=True, backend="aot_eager")
    started = time.monotonic()
    with preferred_kernels(learner.world):
        float(learner.step(batch, 10**6).loss)
        first = time.monotonic() - started
        learner.model.eval()
        rows = batch[:2].numpy().astype(np.uint32)
        run_losses(learner.model.token_losses, rows, learner.world, learner.micro_batch)
        compiled = counters["stats"]["unique_graphs"]
        float(learner.step(batch[:4], 10**6).loss)
        again = counters["stats"]["unique_graphs"] - compiled
        kernels = _kernels_of(lambda: learner.step(batch[:4], 10**6), learner.world)
    return {
        "graph breaks": sum(counters["graph_break"].values()),
        "graphs of a step and an evaluation": compiled,
        "graphs more for another batch size": again,
        "seconds of the first step": first,
        "sequences at once": learner.micro_batch,
        **describe_kernels(learner.model.network, length, compiled=True),
        **kernels,
    }


def _kernels_of(action: Callable[[], Any], world: World) -> dict[str, list[str]]:
    """What ran: torch's names of attention and of grouped matrix products, and the kernels that took the
    most time, longest first."""
    from torch.profiler import ProfilerActivity, profile

    cuda = not world.on_cpu
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        action()
        if cuda:
            torch.cuda.synchronize()
    events = profiler.key_averages()
    names = [event.key for event in events]
    by_time = sorted(
        events, key=lambda e: -(e.self_device_time_total if cuda else e.self_cpu_time_total)
    )
    return {
        "attention that ran": _matching(ATTENTION, names),
        "grouped products that ran": _matching(GROUPED, names),
        "slowest kernels": [e.key[:60].replace("|", "/") for e in by_time[:LARGEST_KERNELS]],
    }


def _matching(pattern: re.Pattern[str], names: list[str]) -> list[str]:
    found = {match.group() for name in names if (match := pattern.search(name))}
    return sorted(found) or ["none"]


def stalls_of(preset: str, device: str, folder: Path, *, toy: bool) -> dict[str, Any]:
    """Seconds of the first copy of the training state, which pins memory, of later ones, of a step, also while a
    checkpoint is written to `folder`, and of an evaluation of raw weights per million tokens."""
    length = TOY_LENGTH if toy else LENGTH
    config = preset_config(preset)
    learner, batch = learner_of(config, device, "bf16", batch=4 if toy else 8, length=length)

    def evaluate() -> None:
        learner.model.eval()
        rows = batch.numpy().astype(np.uint32)
        run_losses(learner.model.token_losses, rows, learner.world, learner.micro_batch)

    with preferred_kernels(learner.world):
        learner.step(batch, 10**6)
        evaluate()
        step = _seconds(device, lambda: learner.step(batch, 10**6))
        tokens = batch[:, 1:].numel()
        found: dict[str, Any] = {
            "sequences a step": len(batch),
            "step, s": step,
            "evaluation of a million tokens, s": _seconds(device, evaluate) * 1e6 / tokens,
            "first copy, s": _seconds(device, learner.copied),
            "later copy, s": min(_seconds(device, learner.copied) for _ in range(3)),
            **_under_training(
                learner, folder, lambda: _seconds(device, partial(learner.step, batch, 10**6))
            ),
        }
    tensors = learner.tensors().values()
    found["state, GiB"] = sum(t.numel() * t.element_size() for t in tensors) / 2**30
    return found


def _under_training(learner: Learner, folder: Path, step: Callable[[], float]) -> dict[str, float]:
    """Seconds of steps while a whole checkpoint is written, and of that."""
    store, log = Store(f"file://{folder}"), Log(io.StringIO())
    checkpoints = Checkpoints(store, "0" * 32, 1, lambda: None, log, learner.world)
    started = time.monotonic()
    checkpoints.save(TrainingState(step=1), 1, learner.copied(), {})
    steps = [step()]
    while checkpoints.is_writing:
        steps.append(step())
    checkpoints.wait()
    written = time.monotonic() - started
    checkpoints.remove_all()
    checkpoints.close()
    return {
        "step while a checkpoint is written, s": statistics.median(steps),
        "longest such step, s": max(steps),
        "checkpoint until it is written, s": written,
    }


def attention_times(preset: str, device: str, *, toy: bool) -> dict[str, Any]:
    """Milliseconds of one layer's attention, forward and backward, with each kernel, or why it cannot run."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    config = model_config(preset_config(preset))
    length, kind = TOY_LENGTH if toy else LENGTH, torch.bfloat16
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "qk_head_dim", None) or config.head_dim
    value = config.v_head_dim if config.model_type == "deepseek_v3" else size
    query, key, values = (
        torch.randn(1, count, length, width, dtype=kind, device=device, requires_grad=True)
        for count, width in ((heads, size), (groups, size), (groups, value))
    )
    layer: Any = SimpleNamespace(num_key_value_groups=heads // groups)

    def run() -> None:
        output, _ = causal_attention(layer, query, key, values, None)
        torch.autograd.grad(output.sum(), (query, key, values))

    found: dict[str, Any] = {}
    for name in ORDER[:-1]:  # the last keeps all scores
        with sdpa_kernel([getattr(SDPBackend, name)]), warnings.catch_warnings():
            # torch warns of each reason for which a kernel does not run.
            warnings.simplefilter("ignore")
            try:
                run()  # cuDNN plans
                found[f"{name}, ms"] = 1e3 * min(_seconds(device, run) for _ in range(10))
            except RuntimeError as error:
                found[f"{name}, ms"] = str(error).splitlines()[0][:200]
    return found


def _seconds(device: str, action: Callable[[], Any]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.monotonic()
    action()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - started
