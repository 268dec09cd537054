"""How fast the trainer steps, against the Hugging Face Trainer and a hand-written transformers loop.

    python -m benchmarks.bench_trainer [--shape toy|dense-100m|dense-500m|moe-100m] [--rounds 5]

Same weights, tokens, shapes, precision and optimizer; the rivals take turns, so that a busy machine slows
down all of them. Ours also averages the weights at every step; the rivals do not. Without --shape: `toy`
and `toy-moe` on a CPU; on a GPU the three large shapes, with each rival in its fastest form
(bfloat16 autocast, fused AdamW; the loop both eager and compiled). MFU is in the PaLM convention
(6 x matrix parameters + 6 x layers x heads x (query + value size) x S per token, no causal halving) against
989 TFLOP/s.

Start-up time and the shares of evaluation, checkpoints and data come from a real run of the toy shape.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from isoloss_contract.records import EvaluationConfig, OptimizerConfig, PointConfig
from isoloss_operator.planning.flops import Convention, token_flops
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.presets import preset_config
from isoloss_trainer.learner import Learner
from isoloss_trainer.micro_batch import is_out_of_memory
from isoloss_trainer.model import build_network
from isoloss_trainer.world import World
from tests.isoloss_trainer import builders

PEAK_FLOPS = 989e12


@dataclass(frozen=True)
class Shape:
    """What is trained: `batch` sequences a step, for `steps` steps a round."""

    preset: str
    sequence_length: int
    batch: int
    steps: int


SHAPES = {
    "toy": Shape("dense-tiny", 128, 4, 40),
    "toy-moe": Shape("moe-tiny", 128, 4, 40),
    "dense-100m": Shape("dense-100m", 8192, 16, 4),
    "dense-500m": Shape("dense-500m", 8192, 16, 3),
    "moe-100m": Shape("moe-100m", 8192, 16, 4),
    "moe-500m": Shape("moe-500m", 8192, 16, 2),
}


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
        """Random tokens and fresh weights of a shape."""
        world = World.of_environment().joined()
        config = preset_config(shape.preset)
        generator = torch.Generator().manual_seed(0)
        size = (shape.steps, shape.batch, shape.sequence_length + 1)
        tokens = torch.randint(config["vocab_size"], size, generator=generator)
        point = PointConfig(
            data_digest="0" * 32,
            mixture={"all": 1.0},
            model=config,
            optimizer=OptimizerConfig(),
            learning_rate=1e-3,
            batch_size=shape.batch,
            sequence_length=shape.sequence_length,
            evaluation=EvaluationConfig(),
            precision="float32" if world.on_cpu else "bf16",
        )
        return cls(shape, config, point, world, tokens)

    @property
    def tokens_per_round(self) -> int:
        """Tokens that one round trains on."""
        return self.tokens[:, :, 1:].numel()


Round = Callable[[], float]
"""Trains one round and returns its seconds."""


def ours(setting: Setting) -> Round:
    """The trainer's own step."""
    network = build_network(setting.config, seed=0)
    learner = Learner(network, setting.point, setting.world)

    def run() -> float:
        start = _now(setting)
        losses = [learner.step(batch, 10**6).loss for batch in setting.tokens]
        float(losses[-1])
        return _now(setting) - start

    return run


def hand_written(setting: Setting, *, compiled: bool) -> Round:
    """A plain loop as in the transformers documentation, with gradient accumulation."""
    device = setting.world.device
    kind = torch.device(device).type
    model = build_network(setting.config, seed=0).to(device)
    model.set_attn_implementation("sdpa")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if compiled else model
    size = _rival_micro_batch(setting)

    def run() -> float:
        start = _now(setting)
        for batch in setting.tokens:
            parts = batch[:, :-1].split(size)
            for part in parts:
                tokens = part.to(device)
                with torch.autocast(kind, torch.bfloat16, enabled=not setting.world.on_cpu):
                    loss = forward(input_ids=tokens, labels=tokens, use_cache=False).loss
                (loss / len(parts)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        float(loss)
        return _now(setting) - start

    return run


def hugging_face_trainer(setting: Setting) -> Round:
    """transformers' Trainer as documented; set-up and tear-down are not counted."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    size = _rival_micro_batch(setting)
    rows = setting.tokens[:, :, :-1].flatten(0, 1)
    dataset = [{"input_ids": row, "labels": row} for row in rows]
    cuda = not setting.world.on_cpu
    model = build_network(setting.config, seed=0)
    model.set_attn_implementation("sdpa")

    class Clock(TrainerCallback):
        """Times the steps after the first, scaled to the whole round."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.times.append(_now(setting))

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            arguments = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=size,
                gradient_accumulation_steps=setting.shape.batch // size,
                max_steps=setting.shape.steps,
                learning_rate=1e-3,
                lr_scheduler_type="constant",
                weight_decay=0.01,
                bf16=cuda,
                optim="adamw_torch_fused",
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=not cuda,
            )
            trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[clock])
            trainer.train()
        times = clock.times
        return (times[-1] - times[0]) * len(times) / (len(times) - 1)

    return run


def _rival_micro_batch(setting: Setting) -> int:
    """Largest that fits with full logits, about 1.3 MB a token at 131,072 entries; all on a CPU."""
    if setting.world.on_cpu:
        return setting.shape.batch
    free, _ = torch.cuda.mem_get_info()
    per_sequence = setting.shape.sequence_length * setting.config["vocab_size"] * 14
    size = max(1, min(setting.shape.batch, int(0.6 * free / per_sequence)))
    return next(part for part in range(size, 0, -1) if setting.shape.batch % part == 0)


def _now(setting: Setting) -> float:
    """Seconds; on a CPU those of the process, which neighbours on the machine disturb least."""
    if setting.world.on_cpu:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def rivals(setting: Setting) -> dict[str, Callable[[Setting], Round]]:
    """Who runs, by name."""
    found: dict[str, Callable[[Setting], Round]] = {
        "ours": ours,
        "hand-written loop": lambda s: hand_written(s, compiled=False),
    }
    if not setting.world.on_cpu:
        found["hand-written loop, compiled"] = lambda s: hand_written(s, compiled=True)
    found["Hugging Face Trainer"] = hugging_face_trainer
    return found


@dataclass(frozen=True)
class Measured:
    """One rival's rounds."""

    tokens_per_second: float
    """Median over the rounds."""
    ratio: tuple[float, float, float]
    """Of its time to ours in the same round: lowest, median and highest."""
    mfu: float | None
    """None on a CPU."""
    peak_gib: float | None


def compare(shape: Shape, rounds: int) -> dict[str, Measured | None]:
    """Measure every rival, in turns, and print a table; None for one that runs out of memory."""
    setting = Setting.of(shape)
    running: dict[str, Round] = {}
    found: dict[str, Measured | None] = {}
    seconds: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for name, make in rivals(setting).items():
        before = _memory(setting, reset=True)
        try:
            running[name] = make(setting)
            running[name]()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            found[name] = None
            running.pop(name, None)
            continue
        memory[name] = _memory(setting) - before
        seconds[name] = []
    for _ in range(rounds):
        for name, run in running.items():
            seconds[name].append(run())
    if "ours" in running:
        for name, times in seconds.items():
            found[name] = _measured(setting, seconds["ours"], times, memory[name])
    _print_table(setting, found)
    return found


def _memory(setting: Setting, *, reset: bool = False) -> float:
    """GiB: the peak since the last reset, or what is held when resetting."""
    if setting.world.on_cpu:
        return 0.0
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**30
    return torch.cuda.max_memory_allocated() / 2**30


def _measured(
    setting: Setting, ours_seconds: list[float], seconds: list[float], peak: float
) -> Measured:
    rate = statistics.median(setting.tokens_per_round / t for t in seconds)
    ratios = [theirs / own for own, theirs in zip(ours_seconds, seconds, strict=True)]
    per_token = token_flops(setting.config, setting.shape.sequence_length)
    on_cpu = setting.world.on_cpu
    return Measured(
        tokens_per_second=rate,
        ratio=(min(ratios), statistics.median(ratios), max(ratios)),
        mfu=None if on_cpu else rate * per_token.total(Convention.PALM) / PEAK_FLOPS,
        peak_gib=None if on_cpu else peak,
    )


def _print_table(setting: Setting, found: dict[str, Measured | None]) -> None:
    shape = setting.shape
    print(
        f"{shape.preset}: {parameter_counts(setting.config).active:,} active matrix parameters, "
        f"S {shape.sequence_length}, B {shape.batch}, {setting.point.precision}, "
        f"{setting.world.device}"
    )
    for name, measured in found.items():
        if measured is None:
            print(f"  {name:28} out of memory")
            continue
        words = f"  {name:28} {measured.tokens_per_second:>10,.0f} tokens/s"
        if measured.mfu is not None:
            words += f", MFU {measured.mfu:.1%}, peak {measured.peak_gib:.1f} GiB"
        if name != "ours":
            low, median, high = measured.ratio
            words += f"; ours is {median:.2f} times as fast ({low:.2f} to {high:.2f})"
        print(words)


def real_run(tokens: int) -> None:
    """Start-up, and where the time of a real run of the toy shape goes."""
    from isoloss_contract import layout
    from isoloss_contract.records import DataManifest
    from isoloss_contract.store import Store
    from isoloss_trainer.interruption import Interruption
    from isoloss_trainer.prepare import prepare

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus, store = builders.make_corpus(folder / "corpus"), f"file://{folder}/store"
        task = builders.prepare_task(f"file://{corpus}", store, sequence_length=128)
        prepare(task, folder, Interruption(), builders.quiet())
        path = layout.data_manifest(task.config.key)
        manifest = Store(store).read_record(path, DataManifest)
        config = preset_config("dense-tiny", builders.VOCABULARY)
        evaluation = EvaluationConfig(
            first_tokens=tokens // 10, per_decade=8, sequences_per_domain=32
        )
        options: dict[str, Any] = {
            "model": config,
            "sequence_length": 128,
            "evaluation": evaluation,
        }
        start = builders.train_task(manifest, store, tokens=512, seed=1, **options)
        print(f"  start to the end of a one-step run: {_run(start)[0]:.1f} s")
        _, events = _run(builders.train_task(manifest, store, tokens=tokens, **options))
        last = [event for event in events if event["event"] == "evaluation"][-1]
        shares = {k: f"{v:.1%}" for k, v in last.items() if k.endswith("_share")}
        print(f"  shares of the time of a run of {tokens:,} tokens: {shares}")


def _run(task: Any) -> tuple[float, list[dict[str, Any]]]:
    environment = {**os.environ, "ISOLOSS_TASK": task.model_dump_json()}
    command = [sys.executable, "-m", "isoloss_trainer", "train"]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    return seconds, [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    default = ["dense-100m", "dense-500m", "moe-100m"] if cuda else ["toy", "toy-moe"]
    for name in options.shape or default:
        compare(SHAPES[name], options.rounds)
    if not options.shape:
        real_run(200_000)


if __name__ == "__main__":
    main()
