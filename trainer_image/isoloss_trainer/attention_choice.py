"""Finds the fastest attention kernel on a run's accelerator, and keeps to it.

Which one that is differs by device, by the sizes of heads and by the version of cuDNN, so it is measured: once for a
shape, after which the store tells other runs. A checkpoint tells the run's next attempt, which must round as the
one before did. Rank 0 decides for all processes.
"""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch

from isoloss_contract import layout
from isoloss_contract.records import content_key
from isoloss_contract.store import NotFound
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.attention import causal_attention, narrow_causal_attention
from isoloss_trainer.attention_kernels import (
    AttentionChoice,
    AttentionKernel,
    HeadShape,
    candidates,
    fastest,
)

MEASURED_TOKENS = 16_384
"""At once: enough that a short sequence does not leave most of the device idle."""
WARM_UP, ROUNDS = 3, 10

Seconds = Callable[[AttentionKernel], float]
"""Of a forward and backward pass. Raises RuntimeError where the kernel cannot run."""
Timer = Callable[[Callable[[], None]], float]
"""Seconds of one call of what it is given; it calls it as often as it needs to."""
Measured = dict[AttentionKernel, float | str]
"""Seconds, or why a kernel cannot run."""


def choose_attention(
    attempt: Attempt,
    shape: HeadShape | None,
    recorded: AttentionChoice | None,
    seconds: Seconds | None = None,
) -> AttentionChoice | None:
    """What the attempt's processes compute attention of `shape` with; all of them call this.

    None, on a CPU and wherever there is nothing to choose: then torch takes the first of
    attention_kernels.ORDER that can run. What is `recorded` in a checkpoint is kept on an equal device with equal
    packages. `seconds` is the measurement.
    """
    world = attempt.world
    if shape is None or world.on_cpu:
        return None
    kernels = candidates(shape, deterministic=attempt.task.deterministic)
    if len(kernels) == 1:
        return None
    return world.of_first(
        lambda: _found(
            attempt, shape, kernels, recorded, seconds or measurement(shape, world.device)
        )
    )


def _found(
    attempt: Attempt,
    shape: HeadShape,
    kernels: tuple[AttentionKernel, ...],
    recorded: AttentionChoice | None,
    seconds: Seconds,
) -> AttentionChoice | None:
    """Recorded by an earlier attempt, known to the store, or measured."""
    place = place_of_measurement()

    def holds(choice: AttentionChoice) -> bool:
        return choice.kernel in kernels and choice.place == place

    if recorded is not None and holds(recorded):
        attempt.log.event("attention", chosen=str(recorded.kernel), known_from="checkpoint")
        return recorded
    path = layout.attention_choice(content_key({**shape.model_dump(), **place}))
    known = _read(attempt, path)
    if known is not None and holds(known):
        attempt.log.event("attention", chosen=str(known.kernel), known_from=path)
        return known
    measured = measure(kernels, seconds)
    kernel = fastest(measured)
    facts = {str(kernel): _words(found) for kernel, found in measured.items()}
    attempt.log.event("attention", chosen=kernel and str(kernel), measured=facts)
    if kernel is None:
        return None
    choice = AttentionChoice(kernel=kernel, **place)
    _write(attempt, path, choice)
    return choice


def place_of_measurement() -> dict[str, Any]:
    """Device and versions as an AttentionChoice names them: elsewhere another kernel may be the fastest."""
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": cudnn,
    }


def measure(kernels: Iterable[AttentionKernel], seconds: Seconds) -> Measured:
    """What each of `kernels` takes, or why it cannot run."""
    found: Measured = {}
    for kernel in kernels:
        try:
            found[kernel] = seconds(kernel)
        except RuntimeError as error:
            found[kernel] = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return found


def _words(found: float | str) -> str:
    return found if isinstance(found, str) else f"{1e3 * found:.3g} ms"


def measurement(shape: HeadShape, device: str, timer: Timer | None = None) -> Seconds:
    """The measurement of `shape` on `device` with random operands of MEASURED_TOKENS."""
    timer = timer or (wall_clock if device == "cpu" else cuda_clock)

    def seconds(kernel: AttentionKernel) -> float:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        run = functools.partial(_forward_and_backward, kernel, shape, _operands(shape, device))
        with sdpa_kernel([getattr(SDPBackend, kernel.backend)]), warnings.catch_warnings():
            # torch warns of each reason for which a kernel does not run.
            warnings.simplefilter("ignore")
            return timer(run)

    return seconds


def _operands(shape: HeadShape, device: str) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values [batch, heads, S, size], in memory [batch, S, heads, size] as layers make them."""
    batch = max(1, MEASURED_TOKENS // shape.sequence_length)
    kind = torch.bfloat16 if shape.precision == "bf16" else torch.float32
    sizes = (
        (shape.heads, shape.query_size),
        (shape.key_value_heads, shape.query_size),
        (shape.key_value_heads, shape.value_size),
    )
    return tuple(
        torch.randn(batch, shape.sequence_length, *size, dtype=kind, device=device)
        .transpose(1, 2)
        .requires_grad_()
        for size in sizes
    )


def _forward_and_backward(
    kernel: AttentionKernel, shape: HeadShape, operands: tuple[torch.Tensor, ...]
) -> None:
    attend = narrow_causal_attention if kernel.narrow else causal_attention
    layer: Any = SimpleNamespace(num_key_value_groups=shape.heads // shape.key_value_heads)
    query, key, value = operands
    output, _ = attend(layer, query, key, value, None)
    torch.autograd.grad(output, operands, torch.ones_like(output))


def cuda_clock(run: Callable[[], None]) -> float:
    """The device's own: median of ROUNDS, after WARM_UP in which cuDNN plans."""
    for _ in range(WARM_UP):
        run()
    marks = [
        [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        for _ in range(ROUNDS)
    ]
    for start, end in marks:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(end)) for start, end in marks) / 1e3


def wall_clock(run: Callable[[], None]) -> float:
    """Of one run: for a CPU, where nothing is chosen by it."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _read(attempt: Attempt, path: str) -> AttentionChoice | None:
    try:
        return attempt.store.read_record(path, AttentionChoice)
    except NotFound:
        return None
    except Exception as error:  # noqa: BLE001 (it costs a measurement alone)
        _unused(attempt, path, error)
        return None


def _write(attempt: Attempt, path: str, choice: AttentionChoice) -> None:
    try:
        attempt.store.write_record(path, choice)
    except Exception as error:  # noqa: BLE001 (it costs other runs a measurement)
        _unused(attempt, path, error)


def _unused(attempt: Attempt, path: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"[:300]
    attempt.log.event("attention-choice-unused", path=path, reason=reason)
