"""The output head's loss alone, forward and backward, against the usual ways and other packages'."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from isoloss_trainer.loss import chunk_tokens, summed_loss

Head = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Mean loss of hidden states [tokens, width] with a matrix [vocabulary, width] against targets."""


def ours(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The trainer's."""
    chunk = chunk_tokens(len(weight), hidden.device)
    return summed_loss(hidden, weight, targets, 1.0 / len(targets), chunk)[0]


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As transformers computes it: all logits, then in float32."""
    return cross_entropy((hidden @ weight.T).float(), targets)


def rivals(device: str) -> dict[str, Head]:
    """Those that can be imported here."""
    found: dict[str, Head] = {"ours": ours, "plain": plain}
    if device == "cuda":
        found["plain, compiled"] = torch.compile(plain, dynamic=False)
        found.update(_packages())
    return found


def _packages() -> dict[str, Head]:
    found: dict[str, Head] = {}
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import (
            LigerFusedLinearCrossEntropyFunction,
        )

        found["Liger"] = lambda h, w, t: LigerFusedLinearCrossEntropyFunction.apply(h, w, t)[0]
    except ImportError:
        pass
    try:
        from cut_cross_entropy import linear_cross_entropy

        found["Cut Cross Entropy"] = lambda h, w, t: linear_cross_entropy(h, w, t)
        found["Cut Cross Entropy, exact"] = lambda h, w, t: linear_cross_entropy(
            h, w, t, impl="cce_kahan_full_c"
        )
    except ImportError:
        pass
    return found


def compare_heads(device: str, *, toy: bool, rounds: int = 5) -> dict[str, Any]:
    """Milliseconds, peak memory and errors at offsets of 30, where bfloat16 logits are off by 0.06."""
    tokens, width, vocabulary = (256, 64, 1024) if toy else (16_384, 768, 131_072)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) / width**0.5
    hidden[:, 0], weight[:, 0] = 8.0, 3.75
    targets = torch.randint(vocabulary, (tokens,), generator=generator).to(device)
    hidden, weight = (t.to(device, torch.bfloat16).requires_grad_() for t in (hidden, weight))
    part = min(tokens, 1024)
    with torch.no_grad():
        logits = hidden[:part].double() @ weight.double().T
        wanted = float(cross_entropy(logits, targets[:part]))
        del logits
    found: dict[str, Any] = {}
    for name, head in rivals(device).items():
        try:
            found[name] = _measured(head, hidden, weight, targets, rounds)
            with torch.no_grad():
                loss = float(head(hidden[:part], weight, targets[:part]))
            found[name]["loss off by"] = abs(loss - wanted)
        except torch.OutOfMemoryError:
            found[name] = {"ms": "out of memory"}
        except (RuntimeError, TypeError, ValueError) as error:  # another package's own trouble
            if name in ("ours", "plain"):
                raise
            found[name] = {"ms": f"{type(error).__name__}: {error}"[:120].replace("\n", " ")}
    return found


def _measured(
    head: Head, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, rounds: int
) -> dict[str, Any]:
    cuda = hidden.is_cuda

    def once() -> float:
        hidden.grad = weight.grad = None
        if cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        head(hidden, weight, targets).backward()  # type: ignore[no-untyped-call]
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    once()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    times = [once() for _ in range(rounds)]
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30 if cuda else None
    return {"ms": 1e3 * statistics.median(times), "peak GiB": peak}
