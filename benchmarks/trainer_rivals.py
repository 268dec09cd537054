"""Who takes part in `make bench-trainer`, and what all of them train: one shape with the same tokens."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.packaged_rivals import Packaged, why_not
from isoloss_contract.footprint import Precision
from isoloss_contract.records import EvaluationConfig, OptimizerConfig, PointConfig
from isoloss_trainer.attention import preferred_kernels
from isoloss_trainer.learner import Learner
from isoloss_trainer.model import build_network
from isoloss_trainer.world import World
from tests.support.models import example_model

LEARNING_RATE, WEIGHT_DECAY, LARGEST_NORM = 1e-3, 0.01, 1.0
BYTES_PER_LOGIT = 14
"""Of a rival that has all logits at once: bfloat16, float32, and the gradients of both."""


@dataclass(frozen=True)
class Shape:
    """What is trained: `batch` sequences a step, for `steps` steps a round."""

    model: str
    sequence_length: int
    batch: int
    steps: int


SHAPES: Mapping[str, Shape] = {
    "toy": Shape("dense-tiny", 128, 4, 40),
    "toy-moe": Shape("moe-tiny", 128, 4, 40),
    "dense-100m": Shape("dense-100m", 8192, 16, 4),
    "dense-500m": Shape("dense-500m", 8192, 16, 3),
    "moe-100m": Shape("moe-100m", 8192, 16, 4),
    "moe-500m": Shape("moe-500m", 8192, 16, 2),
}
TOY_SHAPES = ("toy", "toy-moe")


@dataclass
class Setting:
    """The same for every rival."""

    shape: Shape
    config: dict[str, Any]
    point: PointConfig
    world: World
    tokens: torch.Tensor
    """[steps, batch, S + 1]."""

    @classmethod
    def of(cls, shape: Shape) -> Setting:
        """Random tokens for a shape, on the accelerator where there is one."""
        world = World.of_environment().joined()
        config = example_model(shape.model)
        generator = torch.Generator().manual_seed(0)
        size = (shape.steps, shape.batch, shape.sequence_length + 1)
        tokens = torch.randint(config["vocab_size"], size, generator=generator)
        precision: Precision = "float32" if world.on_cpu else "bf16"
        point = point_of(config, shape.batch, shape.sequence_length, precision)
        return cls(shape, config, point, world, tokens)

    @property
    def tokens_per_round(self) -> int:
        """Tokens that one round trains on."""
        return self.tokens[:, :, 1:].numel()

    @property
    def device(self) -> torch.device:
        """Where it is trained."""
        return torch.device(self.world.device)

    def now(self) -> float:
        """Seconds; on a CPU those of the process, which neighbours on the machine disturb least."""
        if self.world.on_cpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def point_of(config: dict[str, Any], batch: int, length: int, precision: Precision) -> PointConfig:
    """A point that trains `config` with default options on data that nobody reads."""
    return PointConfig(
        data_digest="0" * 32,
        mixture={"all": 1.0},
        model=config,
        optimizer=OptimizerConfig(),
        learning_rate=LEARNING_RATE,
        batch_size=batch,
        sequence_length=length,
        evaluation=EvaluationConfig(),
        precision=precision,
    )


@dataclass
class Entrant:
    """A rival that is ready to train."""

    round: Callable[[], float]
    """Trains one round and returns its seconds."""
    micro_batch: Callable[[], int]
    """Sequences at once; ours finds out in its first step."""


Rival = Callable[[Setting, int], Entrant]
"""Makes an entrant that computes with at most so many sequences at once."""


def ours(setting: Setting, most: int) -> Entrant:
    """The trainer's own step with its own choice of micro-batch."""
    network = build_network(setting.config, seed=0)
    learner = Learner(network, setting.point, setting.world)
    learner.limit_micro_batch(most)

    def run() -> float:
        start = setting.now()
        with preferred_kernels(setting.world, setting.point.precision):
            losses = [learner.step(batch, 10**6).loss for batch in setting.tokens]
        float(losses[-1])
        return setting.now() - start

    return Entrant(run, lambda: learner.micro_batch)


Loss = Callable[[torch.Tensor], torch.Tensor]
"""Mean loss in nats of tokens [batch, S + 1]."""


def plain_loop(
    setting: Setting,
    size: int,
    model: torch.nn.Module,
    loss_of: Loss,
    kernels: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Entrant:
    """Gradient accumulation, clipping and torch's fused AdamW."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )

    def run() -> float:
        start = setting.now()
        with kernels():
            for batch in setting.tokens:
                parts = batch.split(size)
                for part in parts:
                    loss = loss_of(part.to(setting.device, non_blocking=True))
                    (loss / len(parts)).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
                optimizer.step()
                optimizer.zero_grad()
        float(loss.detach())
        return setting.now() - start

    return Entrant(run, lambda: size)


def transformers_loop(*, compiled: bool) -> Rival:
    """A hand-written loop as in the transformers documentation, under autocast on an accelerator."""

    def make(setting: Setting, size: int) -> Entrant:
        with setting.device:
            model = build_network(setting.config, seed=0)
        model.set_attn_implementation("sdpa")
        forward = torch.compile(model) if compiled else model

        def loss_of(tokens: torch.Tensor) -> torch.Tensor:
            inputs = tokens[:, :-1]
            with _autocast(setting):
                loss: torch.Tensor = forward(input_ids=inputs, labels=inputs, use_cache=False).loss
            return loss

        return plain_loop(setting, size, model, loss_of)

    return make


def packaged(package: str) -> Rival:
    """A package's model in the loop above."""

    def make(setting: Setting, size: int) -> Entrant:
        length = setting.shape.sequence_length
        model = Packaged(package, setting.config, length, setting.device)
        if package == "torchtitan":
            model.shard(setting.world.mesh(setting.world.device_type))

        def loss_of(tokens: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = model(tokens[:, :-1], tokens[:, 1:])
            return loss

        return plain_loop(setting, size, model, loss_of, lambda: preferred_kernels(setting.world))

    return make


def _autocast(setting: Setting) -> AbstractContextManager[Any]:
    return torch.autocast(setting.device.type, torch.bfloat16, enabled=not setting.world.on_cpu)


def hugging_face_trainer(setting: Setting, size: int) -> Entrant:
    """transformers' Trainer as documented; set-up and tear-down are not counted."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    rows = setting.tokens[:, :, :-1].flatten(0, 1)
    dataset = [{"input_ids": row, "labels": row} for row in rows]
    cuda = not setting.world.on_cpu
    with setting.device:
        model = build_network(setting.config, seed=0)
    model.set_attn_implementation("sdpa")

    class Clock(TrainerCallback):
        """Times the steps after the first, scaled to the whole round."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.times.append(setting.now())

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            arguments = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=size,
                gradient_accumulation_steps=setting.shape.batch // size,
                max_steps=setting.shape.steps,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                weight_decay=WEIGHT_DECAY,
                bf16=cuda,
                optim="adamw_torch_fused",
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=not cuda,
            )
            trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[clock])
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        times = clock.times
        return (times[-1] - times[0]) * len(times) / (len(times) - 1)

    return Entrant(run, lambda: size)


OURS = "ours"
PACKAGES = ("torchtitan", "litgpt")


def absent(setting: Setting) -> dict[str, str]:
    """Packages that take no part, with the reason."""
    reasons = {
        package: why_not(package, setting.config, on_cpu=setting.world.on_cpu)
        for package in PACKAGES
    }
    return {package: why for package, why in reasons.items() if why}


def rivals(setting: Setting) -> dict[str, Rival]:
    """Who runs, by name. On a CPU nobody compiles: ours does not either."""
    found: dict[str, Rival] = {OURS: ours, "transformers loop": transformers_loop(compiled=False)}
    if not setting.world.on_cpu:
        found["transformers loop, compiled"] = transformers_loop(compiled=True)
    found["Hugging Face Trainer"] = hugging_face_trainer
    there = [package for package in PACKAGES if package not in absent(setting)]
    return found | {package: packaged(package) for package in there}


def first_micro_batch(setting: Setting) -> int:
    """For rivals: the largest divisor of the batch whose logits fit into six tenths of the free memory; all
    on a CPU."""
    batch = setting.shape.batch
    if setting.world.on_cpu:
        return batch
    free, _ = torch.cuda.mem_get_info()
    per_sequence = setting.shape.sequence_length * setting.config["vocab_size"] * BYTES_PER_LOGIT
    return largest_divisor(batch, int(0.6 * free / per_sequence))


def largest_divisor(number: int, most: int) -> int:
    """Of `number`, not above `most`; at least 1."""
    return next(part for part in range(max(1, min(number, most)), 0, -1) if number % part == 0)
