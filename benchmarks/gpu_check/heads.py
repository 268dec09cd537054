"""The output head's loss alone, forward and backward, against the usual ways and other packages'."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from isoloss_trainer.loss import chunk_tokens, summed_loss

Head = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Mean loss of hidden states [tokens, width] with a matrix [vocabulary, width] against targets."""
Found = dict[str, Any]
OURS, PLAIN = "ours", "plain"
REFERENCE_TOKENS = 1024
ROUNDS = 5


def ours(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The trainer's."""
    chunk = chunk_tokens(len(weight), hidden.device)
    return summed_loss(hidden, weight, targets, 1.0 / len(targets), chunk)[0]


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As transformers computes it: all logits, then in float32."""
    return cross_entropy((hidden @ weight.T).float(), targets)


def liger() -> Head:
    """Liger's fused linear cross entropy."""
    from liger_kernel.ops.fused_linear_cross_entropy import (  # type: ignore[import-not-found]
        LigerFusedLinearCrossEntropyFunction,
    )

    function = LigerFusedLinearCrossEntropyFunction
    return lambda hidden, weight, targets: function.apply(hidden, weight, targets)[0]


def cut(implementation: str) -> Head:
    """Cut Cross Entropy: "cce" leaves out small gradients, "cce_kahan_full_c" does not."""
    from cut_cross_entropy import linear_cross_entropy  # type: ignore[import-not-found]

    return lambda hidden, weight, targets: linear_cross_entropy(
        hidden, weight, targets, impl=implementation
    )


OTHER_PACKAGES: dict[str, tuple[str, Callable[[], Head]]] = {
    "Liger": ("liger_kernel", liger),
    "Cut Cross Entropy": ("cut_cross_entropy", lambda: cut("cce")),
    "Cut Cross Entropy, all gradients": ("cut_cross_entropy", lambda: cut("cce_kahan_full_c")),
}
"""By name: the module that must be there, and how to make it. Their kernels need a GPU."""


@dataclass(frozen=True)
class Problem:
    """What all heads compute, in bfloat16, with logits around 30: there bfloat16 is off by 0.06."""

    hidden: torch.Tensor
    weight: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, device: str, *, toy: bool) -> Problem:
        """Of random numbers."""
        tokens, width, vocabulary = (256, 64, 1024) if toy else (16_384, 768, 131_072)
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(tokens, width, generator=generator)
        weight = torch.randn(vocabulary, width, generator=generator) / width**0.5
        hidden[:, 0], weight[:, 0] = 8.0, 3.75
        targets = torch.randint(vocabulary, (tokens,), generator=generator)
        kind = torch.bfloat16
        return cls(
            hidden.to(device, kind).requires_grad_(),
            weight.to(device, kind).requires_grad_(),
            targets.to(device),
        )

    def answer(self, head: Head) -> tuple[float, torch.Tensor]:
        """Loss and gradient of the first hidden states by a head."""
        hidden = self.hidden[:REFERENCE_TOKENS].detach().requires_grad_()
        loss = head(hidden, self.weight, self.targets[: len(hidden)])
        (gradient,) = torch.autograd.grad(loss, hidden)
        return float(loss.detach()), gradient.double()

    def reference(self) -> tuple[float, torch.Tensor]:
        """The same in float64."""
        hidden = self.hidden[:REFERENCE_TOKENS].detach().double().requires_grad_()
        logits = hidden @ self.weight.detach().double().T
        loss = cross_entropy(logits, self.targets[: len(hidden)])
        (gradient,) = torch.autograd.grad(loss, hidden)
        return float(loss.detach()), gradient

    def seconds(self, head: Head) -> float:
        """Of all hidden states, forward and backward."""
        self.hidden.grad = self.weight.grad = None
        self._wait()
        started = time.perf_counter()
        head(self.hidden, self.weight, self.targets).backward()  # type: ignore[no-untyped-call]
        self._wait()
        return time.perf_counter() - started

    def peak_gib(self, head: Head) -> float | None:
        """Beyond the operands; None on a CPU."""
        if not self.hidden.is_cuda:
            return None
        self.hidden.grad = self.weight.grad = None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.seconds(head)
        return (torch.cuda.max_memory_allocated() - before) / 2**30

    def _wait(self) -> None:
        if self.hidden.is_cuda:
            torch.cuda.synchronize()


def compare_heads(device: str, *, toy: bool) -> dict[str, Found]:
    """Milliseconds in turns, peak memory and errors; in words where a head cannot run."""
    problem = Problem.of(device, toy=toy)
    wanted = problem.reference()
    found: dict[str, Found] = {}
    running: dict[str, Head] = {}
    for name, make in _heads(device).items():
        if isinstance(make, str):
            found[name] = {"ms": make}
            continue
        try:
            running[name], found[name] = _first(problem, make(), wanted)
        except torch.OutOfMemoryError:
            found[name] = {"ms": "out of memory"}
        except Exception as error:
            # Another package may fail in any way, and the others' figures stay worth having.
            if name in (OURS, PLAIN):
                raise
            found[name] = {"ms": f"{type(error).__name__}: {error}"[:120].replace("\n", " ")}
    times = {name: [0.0] * ROUNDS for name in running}
    for number in range(ROUNDS):
        for name, head in running.items():
            times[name][number] = problem.seconds(head)
    for name, seconds in times.items():
        found[name] = {**_times(seconds, times[OURS]), **found[name]}
    return found


def _heads(device: str) -> dict[str, Callable[[], Head] | str]:
    found: dict[str, Callable[[], Head] | str] = {OURS: lambda: ours, PLAIN: lambda: plain}
    if device == "cuda":
        found["plain, compiled"] = lambda: torch.compile(plain, dynamic=False)
    for name, (module, make) in OTHER_PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            found[name] = "not installed"
        else:
            found[name] = make if device == "cuda" else "needs a GPU"
    return found


def _first(problem: Problem, head: Head, wanted: tuple[float, torch.Tensor]) -> tuple[Head, Found]:
    """Compiles, and judges what comes out."""
    loss, gradient = problem.answer(head)
    problem.seconds(head)
    error = float((gradient - wanted[1]).norm() / wanted[1].norm())
    return head, {
        "peak, GiB": problem.peak_gib(head),
        "loss off by, nats": abs(loss - wanted[0]),
        "gradient off by, relative": error,
    }


def _times(seconds: list[float], own: list[float]) -> Found:
    ratios = [theirs / ours for ours, theirs in zip(own, seconds, strict=True)]
    return {
        "ms": 1e3 * statistics.median(seconds),
        "ours is faster by (lowest, median, highest)": [
            min(ratios),
            statistics.median(ratios),
            max(ratios),
        ],
    }
