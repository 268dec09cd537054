"""The checks: each a function from the setting to what it found, in JSON's types with units in the names."""

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_trainer import compare
from benchmarks.gpu_check.steps import (
    attention_times,
    compiled_steps,
    equal_bits,
    gradients_of,
    small_models,
)
from benchmarks.gpu_check.training import train
from benchmarks.gpu_check.whole_runs import (
    interrupted_run,
    quantized_loss,
    random_checkpoint_loss,
    run_on_several,
)
from benchmarks.trainer_rivals import SHAPES, Shape
from isoloss_operator.commands.derived_proxies import derive_proxy
from isoloss_trainer.attempt import versions
from tests.support.published_configs import PUBLISHED

Found = dict[str, Any]
GPU_MODELS = ("dense-100m", "moe-100m", "dense-500m", "moe-500m")
FAMILY_PARAMETERS, TOY_PARAMETERS = 400_000_000, 10_000_000
SPEED_SECONDS = 400
"""After which no further round of a comparison begins."""


@dataclass(frozen=True)
class Setting:
    """Where a check runs and at which size."""

    folder: Path
    toy: bool

    @property
    def device(self) -> str:
        """As torch names it."""
        return "cuda" if torch.cuda.is_available() else "cpu"


Check = Callable[[Setting], Found]


def environment(setting: Setting) -> Found:
    """Versions and device."""
    found: Found = {**versions(), "machine": platform.machine(), "CUDA": torch.version.cuda}
    found["triton"] = "there" if importlib.util.find_spec("triton") else "not installed"
    if setting.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["device"] = properties.name
        found["memory, GiB"] = properties.total_memory / 2**30
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["cuDNN"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found


def agreement(setting: Setting) -> Found:
    """Losses and gradients on the device against those of the CPU in float32."""
    found: Found = {}
    for name, config in small_models(toy=setting.toy).items():
        wanted = gradients_of(config, "cpu", "float32")
        for precision in ("float32", "bf16"):
            ours = gradients_of(config, setting.device, precision)
            found[f"{name}, {precision}"] = ours.compared_with(wanted)
    return found


def attention(setting: Setting) -> Found:
    """What attention takes with each kernel: runs take the first of attention.ORDER that can run."""
    models = ["dense-tiny", "moe-tiny"] if setting.toy else GPU_MODELS
    return {name: attention_times(name, setting.device, toy=setting.toy) for name in models}


def deterministic(setting: Setting) -> Found:
    """Whether two runs of five steps end with equal bits, with the switch and without."""
    return {
        f"{model}, {'deterministic' if wanted else 'fastest'} kernels": equal_bits(
            model, setting.device, wanted=wanted
        )
        for model in ("dense-tiny", "moe-tiny")
        for wanted in (True, False)
    }


def families(setting: Setting) -> Found:
    """Two compiled steps of a proxy of each family that `isoloss init` scales, as small as its rules make it."""
    names = ("Llama-3-8B", "Qwen3-30B-A3B") if setting.toy else PUBLISHED
    found: Found = {}
    for name in names:
        published, vocabulary = PUBLISHED[name], {"vocab_size": 4096}
        proxy = (
            derive_proxy({**published, **vocabulary}, TOY_PARAMETERS)
            if setting.toy
            else {**derive_proxy(published, FAMILY_PARAMETERS), **vocabulary}
        )
        found[name] = compiled_steps(proxy, setting.device)
    return found


def eight_bits(setting: Setting) -> Found:
    """The initial loss of a checkpoint in FP8 with a scale for each block."""
    return quantized_loss(setting.folder / "eight-bits", toy=setting.toy)


def _training(model: str) -> Check:
    def training(setting: Setting) -> Found:
        """Ours alone, from the first step to a checkpoint."""
        name = _toy_model(model) if setting.toy else model
        folder = setting.folder / f"training-{model}"
        return {name: train(name, setting.device, folder, toy=setting.toy)}

    return training


def _speed(model: str) -> Check:
    def speed(setting: Setting) -> Found:
        """Tokens per second, MFU and peak memory of a step against the rivals'."""
        shape = Shape(_toy_model(model), 64, 2, 3) if setting.toy else SHAPES[model]
        found: Found = {}
        for rival, measured in compare(shape, 2 if setting.toy else 5, SPEED_SECONDS).items():
            if measured is None:
                found[rival] = {"tokens/s": "out of memory"}
                continue
            found[rival] = {
                "tokens/s": measured.tokens_per_second,
                "ours is faster by (lowest, median, highest)": measured.ratio,
                "rounds": measured.rounds,
                "sequences at once": measured.micro_batch,
                "MFU": measured.mfu,
                "peak, GiB": measured.peak_gib,
            }
        return found

    return speed


def _toy_model(model: str) -> str:
    return "moe-tiny" if model.startswith("moe") else "dense-tiny"


def interruption(setting: Setting) -> Found:
    """SIGTERM in the middle of a run, and whether the resumed run ends where an uninterrupted one does."""
    return interrupted_run(setting.folder / "interruption", toy=setting.toy)


def initial_loss(setting: Setting) -> Found:
    """The initial loss of a checkpoint of a 1B model's shape with random weights."""
    return random_checkpoint_loss(setting.folder / "initial-loss", toy=setting.toy)


def several_gpus(setting: Setting) -> Found:
    """How far the losses of a run on all GPUs are from those of one GPU."""
    return run_on_several(setting.folder / "several-gpus", toy=setting.toy)


CHECKS: dict[str, Check] = {
    "environment": environment,
    "agreement": agreement,
    "deterministic": deterministic,
    "attention": attention,
    "families": families,
    "eight-bits": eight_bits,
    **{f"training-{model}": _training(model) for model in GPU_MODELS},
    "interruption": interruption,
    "several-gpus": several_gpus,
    **{f"speed-{model}": _speed(model) for model in GPU_MODELS},
    "initial-loss": initial_loss,
}
"""In the order in which they are worth having."""


def run_check(name: str, folder: Path, *, toy: bool) -> Found:
    """What one check finds."""
    return CHECKS[name](Setting(folder.absolute(), toy))
