"""What a device is good for: whether stacks learn there as they do on a CPU, and how fast, with random text.

python -m benchmarks.transfer --check --device cuda --sizes 3M 10M
"""

import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.transfer import design
from benchmarks.transfer.grids import Place
from benchmarks.transfer.stack import initial
from benchmarks.transfer.training import TOKENS_AT_ONCE, Precision, stack_of

PLACES = (Place(-9, 2), Place(-8, 2), Place(-9, 3), Place(-8, 4))
CALLS = 80
"""Of which the first ones compile and record."""


def check(device: str, sizes: Sequence[str], say: Callable[[str], None]) -> None:
    """Say losses after CALLS calls in each precision, then milliseconds and tokens/s of the whole grid and of one run."""
    generator = torch.Generator().manual_seed(0)
    shape = design.LINK.shape
    drawn = torch.randint(0, shape.vocabulary, (4 * CALLS, shape.length + 1), generator=generator)
    text = drawn**2 // shape.vocabulary
    float32: Precision = "float32"
    half: Precision = "bf16"
    for where, precision in (("cpu", float32), (device, float32), (device, half)):
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
        stack = stack_of(design.LINK, PLACES, initial(shape), where, precision)
        for start in range(0, len(text), 4):
            stack.learn(text[start : start + 4])
        for averaged in (False, True):
            found = stack.evaluate(text[:64].to(where), 16, averaged=averaged)
            losses = " ".join(f"{loss:.5f}" for loss in found.tolist())
            say(f"{where} {precision} {'averaged' if averaged else 'raw'}: {losses}")
    for size in (design.SIZES[name] for name in sizes):
        for places in (tuple(size.grid.places()), (size.pretraining,)):
            say(f"{size.name}, {len(places)} runs: {_speed(size, places, device)}")


def _speed(size: design.Size, places: Sequence[Place], device: str) -> str:
    stack = stack_of(size, places, initial(size.shape), device)
    sequences = stack.at_once(TOKENS_AT_ONCE[device])
    text = torch.randint(0, size.shape.vocabulary, (sequences, size.shape.length + 1))
    times = []
    for _ in range(2):
        began = time.monotonic()
        for _ in range(CALLS):
            stack.learn(text)
        stack.evaluate(text.to(device), sequences, averaged=True).cpu()
        times.append(time.monotonic() - began)
    speed = CALLS * sequences * size.shape.length * len(places) / times[1]
    return (
        f"{1e3 * times[1] / CALLS:.2f} ms for {sequences} sequences each, {speed / 1e6:.2f}M tokens/s, "
        f"{6 * size.shape.params * speed:.2g} FLOP/s, after {times[0] - times[1]:.0f} s of compiling"
    )
