"""How a model trains on the device, from the first step to a checkpoint: one learner for all of it."""

import io
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bench_trainer import mfu
from benchmarks.gpu_check.steps import TOY_LENGTH, learner_of, seconds
from benchmarks.trainer_rivals import SHAPES, Shape
from isoloss_contract.store import Store
from isoloss_trainer.attempt import TrainingState
from isoloss_trainer.attention import describe_kernels, preferred_kernels
from isoloss_trainer.checkpoint import Checkpoints
from isoloss_trainer.evaluation import run_losses
from isoloss_trainer.learner import Learner, footprint
from isoloss_trainer.log import Log
from isoloss_trainer.model import build_network
from tests.support.models import example_model

STEPS = 5
TOKENS_AT_ONCE = 65_536
LARGEST_KERNELS = 8
LARGEST_CHECKPOINT = 20 * 2**30
"""Bytes of a training state that is written in a check's time."""
ATTENTION = re.compile(r"scaled_dot_product_\w*attention\w*|_flash_attention\w*")
GROUPED = re.compile(r"grouped_mm\w*|\w*grouped_gemm\w*", re.IGNORECASE)
Found = dict[str, Any]


class Training:
    """A learner with random tokens on the device, and what is found about it."""

    def __init__(self, model: str, device: str, *, toy: bool) -> None:
        self.shape = Shape(model, TOY_LENGTH, 8, STEPS) if toy else SHAPES[model]
        self.config = example_model(model)
        self.learner, self.batch = learner_of(
            self.config, device, "bf16", batch=self.shape.batch, length=self.shape.sequence_length
        )
        # Half of the batch at most: a batch of half the size has the same shape then.
        most = TOKENS_AT_ONCE // self.shape.sequence_length
        self.learner.limit_micro_batch(min(most, self.shape.batch // 2))
        self._device = device
        if device == "cpu":
            self.learner.model.prepare_layers(recompute=False, compiled=True, backend="aot_eager")

    def seconds(self, action: Callable[[], Any]) -> float:
        """Until the device is done with it."""
        return seconds(self._device, action)

    def step(self, sequences: int | None = None) -> None:
        """Over the first `sequences` of the batch."""
        self.learner.step(self.batch[:sequences], 10**6)

    def evaluate(self) -> None:
        """The raw weights, on the batch."""
        rows = self.batch.numpy().astype(np.uint32)
        learner = self.learner
        run_losses(learner.token_losses, rows, learner.world, learner.micro_batch)

    @property
    def tokens(self) -> int:
        """Of a step and of an evaluation."""
        return self.batch[:, 1:].numel()


def train(model: str, device: str, folder: Path, *, toy: bool) -> Found:
    """Speed, memory and graphs of steps and evaluations, and what a checkpoint written to `folder` costs them."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    training = Training(model, device, toy=toy)
    with preferred_kernels(training.learner.world, "bf16"):
        return {
            **_steps(training),
            **_compilations(training),
            **describe_kernels(
                training.learner.model.network,
                training.shape.sequence_length,
                torch.bfloat16,
            ),
            **_kernels_of(training),
            **_checkpoint(training, folder),
        }


def _steps(training: Training) -> Found:
    first = training.seconds(training.step)
    step = statistics.median(training.seconds(training.step) for _ in range(STEPS))
    rate, shape = training.tokens / step, training.shape
    found: Found = {
        "first step, s": first,
        "step, s": step,
        "tokens/s": rate,
        "MFU": mfu(training.config, shape.sequence_length, rate),
        "sequences at once": training.learner.micro_batch,
        "peak, GiB": None,
        "planned peak, GiB": planned_gib(
            shape.model, shape.sequence_length, training.learner.micro_batch
        ),
    }
    if not training.learner.world.on_cpu:
        found["peak, GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def planned_gib(model: str, length: int, sequences: int) -> float:
    """What isoloss_contract.footprint expects at the peak of a step in bfloat16 on one device."""
    with torch.device("meta"):
        network = build_network(example_model(model))
    needed = footprint(network, "bf16")
    activations = needed.of_sequences(sequences, length, recompute=False)
    return (needed.fixed + activations) / 2**30


def _compilations(training: Training) -> Found:
    """One compilation should serve all batch sizes, also with evaluations between them."""
    from torch._dynamo.utils import counters

    evaluation = training.seconds(training.evaluate)
    again = training.seconds(training.evaluate)
    graphs = counters["stats"]["unique_graphs"]
    training.step(training.shape.batch // 2)
    return {
        "first evaluation, s": evaluation,
        "evaluation, tokens/s": training.tokens / again,
        "graph breaks": sum(counters["graph_break"].values()),
        "graphs of a step and an evaluation": graphs,
        "graphs more for another batch size": counters["stats"]["unique_graphs"] - graphs,
    }


def _kernels_of(training: Training) -> dict[str, list[str]]:
    """Of a step: torch's names of attention and of grouped matrix products, and the kernels that took the
    most time, longest first."""
    from torch.profiler import ProfilerActivity, profile

    cuda = not training.learner.world.on_cpu
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        training.seconds(training.step)
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


def _checkpoint(training: Training, folder: Path) -> Found:
    """The first copy of the training state pins memory, as the start of a run does."""
    learner = training.learner
    size = sum(t.numel() * t.element_size() for t in learner.tensors().values())
    found: Found = {"state, GiB": size / 2**30}
    if size > LARGEST_CHECKPOINT:
        return found
    return {
        **found,
        "first copy, s": training.seconds(learner.copied),
        "later copy, s": min(training.seconds(learner.copied) for _ in range(3)),
        **_while_writing(learner, folder, lambda: training.seconds(training.step)),
    }


def _while_writing(learner: Learner, folder: Path, step: Callable[[], float]) -> Found:
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
