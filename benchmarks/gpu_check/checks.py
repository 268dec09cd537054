"""The checks: each a function from the setting to what it found, in JSON's types."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Found = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Where a check runs and at which size."""

    folder: Path
    toy: bool

    @property
    def device(self) -> str:
        """As torch names it."""
        return "cuda" if torch.cuda.is_available() else "cpu"


def has_gpu() -> bool:
    """Whether torch can use one."""
    return torch.cuda.is_available()


def environment(setting: Setting) -> Found:
    """Versions, device, and which rivals of the cross entropy can be imported."""
    from isoloss_trainer.result import versions

    found: Found = {**versions(), "machine": platform.machine(), "cuda": torch.version.cuda}
    for name in ("triton", "liger_kernel", "cut_cross_entropy"):
        found[name] = importlib.util.find_spec(name) is not None
    if setting.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["device"] = properties.name
        found["memory_gib"] = properties.total_memory / 2**30
        found["capability"] = f"{properties.major}.{properties.minor}"
    return found


def agreement(setting: Setting) -> Found:
    """Losses and gradients on the device against those of the CPU in float32."""
    from benchmarks.gpu_check.steps import gradients_of

    found: Found = {}
    for preset in ("dense-tiny", "moe-tiny"):
        wanted = gradients_of(preset, "cpu", "float32")
        for precision in ("float32", "bf16"):
            ours = gradients_of(preset, setting.device, precision)
            found[f"{preset}, {precision}"] = ours.compared_with(wanted)
    return found


def deterministic(setting: Setting) -> Found:
    """Whether two runs of five steps end with equal bits, with the switch and without."""
    from benchmarks.gpu_check.steps import equal_bits

    return {
        f"{preset}, {'deterministic' if wanted else 'fastest'} kernels": equal_bits(
            preset, setting.device, wanted=wanted
        )
        for preset in ("dense-tiny", "moe-tiny")
        for wanted in (True, False)
    }


def compilation(setting: Setting) -> Found:
    """Graph breaks and compilations of a step, an evaluation and another batch size, for every shape; the
    kernels that took the most time."""
    from benchmarks.gpu_check.steps import compiled_steps

    presets = ["dense-tiny", "moe-tiny"]
    if not setting.toy:
        presets = ["dense-100m", "moe-100m", "dense-500m"]
    return {preset: compiled_steps(preset, setting) for preset in presets}


def _speed(shape: str) -> Callable[[Setting], Found]:
    def speed(setting: Setting) -> Found:
        """Tokens per second, MFU and peak memory against the rivals."""
        from benchmarks.bench_trainer import SHAPES, compare

        name = shape
        if setting.toy:
            name = "toy-moe" if shape.startswith("moe") else "toy"
        rounds = 1 if setting.toy else 3
        found = compare(SHAPES[name], rounds)
        return {
            rival: {"tokens/s": "out of memory"}
            if measured is None
            else {
                "tokens/s": measured.tokens_per_second,
                "ours is faster by": list(measured.ratio),
                "MFU": measured.mfu,
                "peak GiB": measured.peak_gib,
            }
            for rival, measured in found.items()
        }

    return speed


def cross_entropy(setting: Setting) -> Found:
    """The head's loss alone: time forward and backward, peak memory and error."""
    from benchmarks.gpu_check.heads import compare_heads

    return compare_heads(setting.device, toy=setting.toy)


def stalls(setting: Setting) -> Found:
    """How long training stands still for a checkpoint, and what an evaluation takes."""
    from benchmarks.gpu_check.steps import stalls_of

    presets = ["dense-tiny"] if setting.toy else ["dense-500m", "moe-100m"]
    return {preset: stalls_of(preset, setting.device, toy=setting.toy) for preset in presets}


def interruption(setting: Setting) -> Found:
    """SIGTERM in the middle of a run, and whether the resumed run ends where an uninterrupted one does."""
    from benchmarks.gpu_check.whole_runs import interrupted_run

    return interrupted_run(setting.folder / "interruption")


def initial_loss(setting: Setting) -> Found:
    """The initial loss of a checkpoint of a 1B model's shape with random weights."""
    from benchmarks.gpu_check.whole_runs import random_checkpoint_loss

    return random_checkpoint_loss(setting.folder / "initial-loss", toy=setting.toy)


CHECKS: dict[str, Callable[[Setting], Found]] = {
    "environment": environment,
    "agreement": agreement,
    "deterministic": deterministic,
    "compilation": compilation,
    "cross-entropy": cross_entropy,
    "interruption": interruption,
    "speed-dense-100m": _speed("dense-100m"),
    "speed-moe-100m": _speed("moe-100m"),
    "speed-dense-500m": _speed("dense-500m"),
    "speed-moe-500m": _speed("moe-500m"),
    "stalls": stalls,
    "initial-loss": initial_loss,
}


def run_check(name: str, folder: Path, *, toy: bool) -> Found:
    """What one check finds."""
    return CHECKS[name](Setting(folder.absolute(), toy))
