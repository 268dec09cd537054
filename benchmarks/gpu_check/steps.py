"""Checks of single training steps."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from isoloss_contract.records import EvaluationConfig, OptimizerConfig, PointConfig
from isoloss_operator.planning.presets import preset_config
from isoloss_trainer.attention import preferred_kernels
from isoloss_trainer.evaluation import run_losses
from isoloss_trainer.kernels import describe_kernels, deterministic_kernels
from isoloss_trainer.learner import Learner
from isoloss_trainer.model import build_network
from isoloss_trainer.world import World

if TYPE_CHECKING:
    from benchmarks.gpu_check.checks import Setting

Precision = Literal["bf16", "float32"]
TOY_LENGTH, LENGTH = 128, 8192
LARGEST_KERNELS = 8


def learner_of(
    preset: str, device: str, precision: Precision, *, batch: int = 4, length: int = TOY_LENGTH
) -> tuple[Learner, torch.Tensor]:
    """A learner with fresh weights, and a batch of random tokens [batch, length + 1]."""
    config = preset_config(preset)
    point = PointConfig(
        data_digest="0" * 32,
        mixture={"all": 1.0},
        model=config,
        optimizer=OptimizerConfig(),
        learning_rate=1e-3,
        batch_size=batch,
        sequence_length=length,
        evaluation=EvaluationConfig(),
        precision=precision,
    )
    name = "cuda:0" if device == "cuda" else "cpu"
    learner = Learner(build_network(config, seed=0), point, World(device=name))
    generator = torch.Generator().manual_seed(0)
    return learner, torch.randint(config["vocab_size"], (batch, length + 1), generator=generator)


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
            "loss off by": abs(self.loss - wanted.loss),
            "gradient norm off by": abs(self.norm / wanted.norm - 1),
            "worst gradient off by": errors[worst],
            "of": worst,
        }


def gradients_of(preset: str, device: str, precision: Precision) -> Gradients:
    """By the trainer's own step: its first moment after one step is a tenth of the clipped gradient."""
    learner, batch = learner_of(preset, device, precision)
    facts = learner.step(batch, batch[:, 1:].numel())
    parts = learner.copied()
    assert parts is not None
    norm = float(facts.gradient_norm)
    factor = 10 * max(1.0, norm)
    found = {name: moment.clone() * factor for name, moment in parts["first_moment"].items()}
    return Gradients(float(facts.loss), norm, found)


def equal_bits(preset: str, device: str, *, wanted: bool) -> str:
    """Whether two runs of five steps end with equal weights, in words."""
    world = World(device="cuda:0" if device == "cuda" else "cpu")
    ends = []
    for _ in range(2):
        with ExitStack() as kernels:
            try:
                kernels.enter_context(deterministic_kernels(wanted))
                kernels.enter_context(preferred_kernels(world, deterministic=wanted))
                learner, batch = learner_of(preset, device, "bf16")
                for number in range(1, 6):
                    learner.step(batch, number * batch[:, 1:].numel())
            except RuntimeError as error:
                if "deterministic" not in str(error):
                    raise
                return f"refused: {error}"[:300]
            ends.append(learner.tensors()["weights"].clone())
    return "equal" if torch.equal(*ends) else "different"


def compiled_steps(preset: str, setting: Setting) -> dict[str, Any]:
    """Steps at two batch sizes and an evaluation between them: one compilation should serve all."""
    from torch._dynamo.utils import counters

    length = TOY_LENGTH if setting.toy else LENGTH
    learner, batch = learner_of(preset, setting.device, "bf16", batch=8, length=length)
    learner.limit_micro_batch(2)
    if setting.device == "cpu":
        learner.model.body.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    counters.clear()
    started = time.monotonic()
    with preferred_kernels(learner.world):
        learner.step(batch, 10**6)
        first = time.monotonic() - started
        learner.model.eval()
        rows = batch[:2].numpy().astype(np.uint32)
        run_losses(learner.model.token_losses, rows, learner.world, learner.micro_batch)
        compiled = counters["stats"]["unique_graphs"]
        kernels = _largest_kernels(learner, batch[:4])
    return {
        "graph breaks": sum(counters["graph_break"].values()),
        "graphs after the first step and an evaluation": compiled,
        "graphs after another batch size": counters["stats"]["unique_graphs"],
        "seconds of the first step": first,
        "micro-batch": learner.micro_batch,
        **describe_kernels(learner.model.network, length, compiled=True),
        "kernels": kernels,
    }


def _largest_kernels(learner: Learner, batch: torch.Tensor) -> list[str]:
    """The names of those that take the most time in a step, longest first."""
    from torch.profiler import ProfilerActivity, profile

    cuda = batch.new_empty(0).is_cuda or not learner.world.on_cpu
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        learner.step(batch, 10**6)
        if cuda:
            torch.cuda.synchronize()
    averages = profiler.key_averages()
    by_time = sorted(
        averages, key=lambda e: -(e.self_device_time_total if cuda else e.self_cpu_time_total)
    )
    return [event.key[:60].replace("|", "/") for event in by_time[:LARGEST_KERNELS]]


def stalls_of(preset: str, device: str, *, toy: bool) -> dict[str, Any]:
    """Seconds: the first copy of the training state, which pins memory, later ones, a step, and an
    evaluation of raw weights per million tokens."""
    length = TOY_LENGTH if toy else LENGTH
    learner, batch = learner_of(preset, device, "bf16", batch=4 if toy else 8, length=length)

    def seconds(action: Any) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.monotonic()
        action()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - started

    def evaluate() -> None:
        learner.model.eval()
        rows = batch.numpy().astype(np.uint32)
        run_losses(learner.model.token_losses, rows, learner.world, learner.micro_batch)

    with preferred_kernels(learner.world):
        learner.step(batch, 10**6)
        evaluate()
        found: dict[str, Any] = {
            "step": seconds(lambda: learner.step(batch, 10**6)),
            "evaluation of a million tokens": seconds(evaluate) * 1e6 / batch[:, 1:].numel(),
            "first copy": seconds(learner.copied),
            "later copy": min(seconds(learner.copied) for _ in range(3)),
        }
    tensors = learner.tensors().values()
    found["state GiB"] = sum(t.numel() * t.element_size() for t in tensors) / 2**30
    return found
