"""How fast the trainer steps, against the Hugging Face Trainer, a hand-written loop, torchtitan and litgpt.

    python -m benchmarks.bench_trainer [--shape toy|toy-moe|dense-100m|dense-500m|moe-100m|moe-500m]
                                       [--rounds 5]

Same tokens, shapes, precision and optimizer (AdamW), and the same FLOPs per token. Ours and a rival take turns,
and a ratio is that of their times in the same round, so that a busy machine slows down both; printed are
the median and the range. Ours also averages the weights at every step; the
rivals do not. Without --shape: `toy` and `toy-moe` on a CPU; on a GPU the four large ones, with
each rival in its fastest form that fits, and whoever has its turn alone on the device: the tensors of
the other wait on the host.
torchtitan and litgpt take part where they are installed (benchmarks/packaged_rivals.py), and the table says where they are
not. A rival that runs out of memory tries half as many sequences at once.

MFU is in the PaLM convention (6 x matrix parameters + 6 x layers x heads x (query + value size) x S per token,
no causal halving; sizes as the model has them, not as kernels widen them) against the dense bfloat16 peak of the
device's data sheet. Peak memory is what torch allocated, in GiB.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from isoloss_trainer.__main__ import ALLOCATOR

# As runs have it, and before torch is there.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR)

import torch

from benchmarks import trainer_rivals
from benchmarks.offloading import Copies, load, offload, resident
from isoloss_operator.planning.models import attention_shapes, parameter_counts
from isoloss_trainer.run_log import peak_of
from isoloss_trainer.termination import MemoryRefused, OutOfMemory, is_out_of_memory

REFUSED = (OutOfMemory, MemoryRefused)


@dataclass(frozen=True)
class Measured:
    """One rival's rounds."""

    micro_batch: int
    """Sequences at once."""
    tokens_per_second: float
    """Median over the rounds."""
    ratio: tuple[float, float, float] | None
    """Of its time to ours in the same round: lowest, median and highest; None for ours, and where ours
    does not fit."""
    rounds: int
    mfu: float | None
    """None on a CPU, and on a device whose peak is unknown."""
    peak_gib: float | None
    """None on a CPU."""


def progress(words: str) -> None:
    """To the standard error: the table alone goes to the standard output."""
    print(f"  … {words}", file=sys.stderr, flush=True)


def compare(
    shape: trainer_rivals.Shape, rounds: int, seconds_at_most: float = float("inf")
) -> dict[str, Measured | None]:
    """Measure ours against one rival after the other and print a table; None for one that runs out of memory.

    After a rival's share of `seconds_at_most` no further round with it begins; it has one at least.
    """
    started = time.monotonic()
    setting = trainer_rivals.Setting.of(shape)
    makers = trainer_rivals.rivals(setting)
    progress(f"{shape.model}: first round of {trainer_rivals.OURS}")
    own = _Turns(setting, makers.pop(trainer_rivals.OURS), shape.batch)
    found: dict[str, Measured | None] = {}
    for number, (name, rival) in enumerate(makers.items(), 1):
        end = started + seconds_at_most * number / len(makers)
        found[name] = _against(setting, own, name, rival, rounds, end)
        progress(f"{shape.model}: {name} {_line(found[name])}")
    found = {trainer_rivals.OURS: _measured(setting, own, []) if own.fits else None, **found}
    print_table(setting, found)
    return found


def _against(
    setting: trainer_rivals.Setting,
    own: _Turns,
    name: str,
    rival: trainer_rivals.Rival,
    rounds: int,
    end: float,
) -> Measured | None:
    """Rounds of both in turns until `end`. The rival is gone afterwards: not all would fit on the host."""
    gc.collect()  # the last rival's tensors wait on the host, in cycles
    model = setting.shape.model
    progress(f"{model}: first round of {name}")
    theirs = _Turns(setting, rival, trainer_rivals.first_micro_batch(setting))
    if not theirs.fits:
        return None
    before = len(own.seconds)
    for number in range(rounds):
        if number and time.monotonic() > end:
            progress(f"{model}: out of time after {number} rounds with {name}")
            break
        progress(f"{model}: round {number + 1} of {rounds} with {name}")
        if own.fits:
            own.take()
        theirs.take()
    return _measured(setting, theirs, own.seconds[before:])


class _Turns:
    """An entrant that has the device when it is its turn, and its times."""

    def __init__(
        self, setting: trainer_rivals.Setting, rival: trainer_rivals.Rival, size: int
    ) -> None:
        """`size`: sequences at once in the first attempt."""
        self._setting = setting
        self._waiting: Copies = []
        self.seconds: list[float] = []
        self.peak_gib = 0.0
        self._entrant = self._first_round(rival, size)

    def _first_round(
        self, rival: trainer_rivals.Rival, size: int
    ) -> trainer_rivals.Entrant | None:
        """Compiles and finds the micro-batch; not counted."""
        while True:
            entrant: trainer_rivals.Entrant | None = None
            try:
                entrant = rival(self._setting, size)
                entrant.round()
            except (RuntimeError, MemoryError, *REFUSED) as error:
                if not (is_out_of_memory(error) or isinstance(error, REFUSED)):
                    raise
            else:
                self._leave()
                return entrant
            # Not in the handler: until it ends, the error keeps the failed attempt's tensors alive.
            entrant = None
            self._empty()
            if size == 1:
                return None
            size = trainer_rivals.largest_divisor(self._setting.shape.batch, size // 2)

    @property
    def fits(self) -> bool:
        """Whether it could train at all."""
        return self._entrant is not None

    @property
    def micro_batch(self) -> int:
        """Sequences at once."""
        assert self._entrant is not None
        return self._entrant.micro_batch()

    def take(self) -> None:
        """One round."""
        assert self._entrant is not None
        load(self._waiting)
        if not self._setting.world.on_cpu:
            torch.cuda.reset_peak_memory_stats()
        self.seconds.append(self._entrant.round())
        if not self._setting.world.on_cpu:
            self.peak_gib = max(self.peak_gib, torch.cuda.max_memory_allocated() / 2**30)
        self._leave()

    def _leave(self) -> None:
        """On a CPU there is nowhere to go."""
        if not self._setting.world.on_cpu:
            self._waiting = offload(resident(self._setting.device))
        self._empty()

    def _empty(self) -> None:
        gc.collect()
        if not self._setting.world.on_cpu:
            torch.cuda.empty_cache()


def _measured(setting: trainer_rivals.Setting, turns: _Turns, own: list[float]) -> Measured:
    """`own`: the seconds of ours in the same rounds, if any."""
    rate = statistics.median(setting.tokens_per_round / t for t in turns.seconds)
    return Measured(
        micro_batch=turns.micro_batch,
        tokens_per_second=rate,
        ratio=_ratio(own, turns.seconds) if own else None,
        rounds=len(turns.seconds),
        mfu=mfu(setting.config, setting.shape.sequence_length, rate),
        peak_gib=None if setting.world.on_cpu else turns.peak_gib,
    )


def _ratio(own: list[float], others: list[float]) -> tuple[float, float, float]:
    ratios = [theirs / ours for ours, theirs in zip(own, others, strict=True)]
    return min(ratios), statistics.median(ratios), max(ratios)


def mfu(config: Mapping[str, Any], sequence_length: int, tokens_per_second: float) -> float | None:
    """Of training on this machine's device in bfloat16; None on a CPU, and on a device whose peak is unknown."""
    peak = peak_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    scores = sum(shape.pair_flops for shape in attention_shapes(config)) * sequence_length
    per_token = 6.0 * parameter_counts(config).active + scores
    return tokens_per_second * per_token / peak if peak else None


def machine() -> str:
    """What the figures are of."""
    words = f"torch {torch.__version__}, Python {platform.python_version()}"
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        size = properties.total_memory / 2**30
        return f"{properties.name} ({size:.0f} GiB), CUDA {torch.version.cuda}, {words}"
    return f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} used, {words}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def print_table(setting: trainer_rivals.Setting, found: Mapping[str, Measured | None]) -> None:
    """What was trained, on what, and a line per rival."""
    shape = setting.shape
    clock = "CPU seconds" if setting.world.on_cpu else "seconds"
    print(
        f"{shape.model}: {parameter_counts(setting.config).active:,} active matrix parameters, "
        f"S {shape.sequence_length}, B {shape.batch}, {setting.point.precision}, {clock}\n"
        f"  on {machine()}"
    )
    for name, measured in found.items():
        print(f"  {name:28} {_line(measured)}")
    for name, why in trainer_rivals.absent(setting).items():
        print(f"  {name:28} {why}")


def _line(measured: Measured | None) -> str:
    if measured is None:
        return "out of memory"
    words = f"{measured.tokens_per_second:>10,.0f} tokens/s, {measured.micro_batch} at once"
    if measured.mfu is not None:
        words += f", MFU {measured.mfu:.1%}"
    if measured.peak_gib is not None:
        words += f", peak {measured.peak_gib:.1f} GiB"
    if measured.ratio is not None:
        low, median, high = measured.ratio
        words += (
            f"; ours is {median:.2f} times as fast ({low:.2f} to {high:.2f}, "
            f"{measured.rounds} rounds)"
        )
    return words


def parse(arguments: list[str] | None, *, cuda: bool) -> argparse.Namespace:
    """The command line; exits with a message where options are wrong or need a GPU that is not there."""
    parser = argparse.ArgumentParser(prog="bench_trainer", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shape", choices=trainer_rivals.SHAPES, action="append", help="default: all that suit"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each rival")
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more: one round shows no spread")
    large = [name for name in options.shape or () if name not in trainer_rivals.TOY_SHAPES]
    if large and not cuda:
        parser.error(f"--shape {large[0]} needs a GPU")
    return options


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    cuda = torch.cuda.is_available()
    options = parse(arguments, cuda=cuda)
    large = [name for name in trainer_rivals.SHAPES if name not in trainer_rivals.TOY_SHAPES]
    for name in options.shape or (large if cuda else trainer_rivals.TOY_SHAPES):
        compare(trainer_rivals.SHAPES[name], options.rounds)


if __name__ == "__main__":
    main()
