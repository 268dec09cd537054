"""Checks of single training steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.trainer_rivals import point_of
from isoloss_contract.footprint import Precision
from isoloss_trainer.attention import (
    ORDER,
    causal_attention,
    deterministic_kernels,
    head_sizes,
    preferred_kernels,
)
from isoloss_trainer.checkpoint import Tensors
from isoloss_trainer.learner import Learner, local
from isoloss_trainer.model import build_network, model_config
from isoloss_trainer.world import World
from tests.support.models import example_model

TOY_LENGTH, LENGTH = 128, 8192


def small_models(*, toy: bool) -> dict[str, dict[str, Any]]:
    """Configs whose gradients a CPU computes in seconds; at full size also two layers of the proxies, with
    their own head sizes, which decide what kernels run."""
    names = ["dense-tiny", "moe-tiny"]
    found = {name: example_model(name) for name in names}
    if not toy:
        for name in ("dense-100m", "moe-100m"):
            layers = {"num_hidden_layers": 2, "vocab_size": 4096}
            found[f"two layers of {name}"] = {**example_model(name), **layers}
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
    with preferred_kernels(learner.world, precision):
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


def equal_bits(model: str, device: str, *, wanted: bool) -> str:
    """Whether two runs of five steps end with equal weights, in words."""
    world = World(device="cuda:0" if device == "cuda" else "cpu")
    ends = []
    for _ in range(2):
        with ExitStack() as kernels:
            try:
                kernels.enter_context(deterministic_kernels(wanted))
                kernels.enter_context(preferred_kernels(world, "bf16", deterministic=wanted))
                learner, batch = learner_of(example_model(model), device, "bf16")
                for number in range(1, 6):
                    learner.step(batch, number * batch[:, 1:].numel())
            except RuntimeError as error:
                if "deterministic" not in str(error):
                    raise
                return f"refused: {error}"[:300]
            weights = part_of(learner.tensors(), "weights").values()
            ends.append(torch.cat([weight.flatten() for weight in weights]))
    return "equal" if torch.equal(*ends) else "different"


def compiled_steps(config: dict[str, Any], device: str) -> dict[str, Any]:
    """Two steps with compiled layers in bfloat16: their losses, graphs and time, or why there are none."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    try:
        learner, batch = learner_of(config, device, "bf16")
        if device == "cpu":
            learner.model.prepare_layers(recompute=False, compiled=True, backend="aot_eager")
        losses = []

        def two() -> None:
            with preferred_kernels(learner.world, "bf16"):
                for number in (1, 2):
                    facts = learner.step(batch, number * batch[:, 1:].numel())
                    losses.append(float(facts.loss))

        took = seconds(device, two)
    except RuntimeError as error:
        return {"failed": str(error).splitlines()[0][:200]}
    return {
        "first loss, nats": losses[0],
        "second loss, nats": losses[1],
        "graphs": counters["stats"]["unique_graphs"],
        "graph breaks": sum(counters["graph_break"].values()),
        "s": took,
    }


def attention_times(model: str, device: str, *, toy: bool) -> dict[str, Any]:
    """Milliseconds of one layer's attention, forward and backward, with each kernel, or why it cannot run; where values
    are narrower than queries, also with padded ones."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    config = model_config(example_model(model))
    length, kind = TOY_LENGTH if toy else LENGTH, torch.bfloat16
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    size, value = head_sizes(config)
    query, key, values = (
        torch.randn(1, count, length, width, dtype=kind, device=device, requires_grad=True)
        for count, width in ((heads, size), (groups, size), (groups, value))
    )
    layer: Any = SimpleNamespace(num_key_value_groups=heads // groups)

    def as_runs_have_it() -> torch.Tensor:
        return causal_attention(layer, query, key, values, None)[0]

    def padded() -> torch.Tensor:
        wide = torch.nn.functional.pad(values, (0, size - value))
        return causal_attention(layer, query, key, wide, None)[0][..., :value]

    forms = {"ms": as_runs_have_it}
    if value != size:
        forms["values padded, ms"] = padded
    found: dict[str, Any] = {}
    for name in ORDER[:-1]:  # the last keeps all scores
        for form, attend in forms.items():

            def run(attend: Callable[[], torch.Tensor] = attend) -> None:
                torch.autograd.grad(attend().sum(), (query, key, values))

            with sdpa_kernel([getattr(SDPBackend, name)]), warnings.catch_warnings():
                # torch warns of each reason for which a kernel does not run.
                warnings.simplefilter("ignore")
                try:
                    run()  # cuDNN plans
                    took: Any = 1e3 * min(seconds(device, run) for _ in range(10))
                except RuntimeError as error:
                    took = str(error).splitlines()[0][:200]
            found[f"{name}, {form}"] = took
    return found


def seconds(device: str, action: Callable[[], Any]) -> float:
    """Of an action, until the device is done with it."""
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.monotonic()
    action()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - started
