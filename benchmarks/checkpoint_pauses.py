"""How long the writing of a checkpoint holds up other threads, against safetensors' own writer in a thread."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from isoloss_contract.store import Store
from isoloss_trainer.checkpoint import Tensors, write_tensors
from isoloss_trainer.world import World

TENSORS, TENSOR_BYTES = 4, 512 * 2**20
ROUNDS = 3
LOOK_SECONDS = 0.001


def longest_pause(work: Callable[[], object]) -> float:
    """Seconds for which this thread could not go on, at most, while another one does `work`."""
    thread = threading.Thread(target=work)
    longest, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        time.sleep(LOOK_SECONDS)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


def ours(tensors: Tensors, folder: Path) -> None:
    """As a run writes its checkpoints to a volume."""
    store = Store(f"file://{folder}")
    write_tensors(store.write, tensors, World(), None)


def theirs(tensors: Tensors, folder: Path) -> None:
    """A file of each, as a run would give it to an object store."""
    from safetensors.torch import save

    store = Store(f"file://{folder}")
    for name, tensor in tensors.items():
        store.write(f"{name}.safetensors", save({name: tensor}))


def print_pauses() -> None:
    """Print the row: the longest pauses of all rounds, ours and theirs."""
    numbers = torch.arange(TENSOR_BYTES // 4, dtype=torch.float32)
    tensors = {f"weights.{number}": numbers.clone() for number in range(TENSORS)}
    found: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as name:
            found.append(
                (
                    longest_pause(lambda: ours(tensors, Path(name) / "ours")),
                    longest_pause(lambda: theirs(tensors, Path(name) / "theirs")),
                )
            )
    ratios = [after / before for before, after in found]
    print(
        f"  longest pause of another thread while {TENSORS} x {TENSOR_BYTES >> 20} MiB are written: "
        f"ours {max(mine for mine, _ in found):.3f} s, safetensors.torch.save "
        f"{max(other for _, other in found):.3f} s, {statistics.median(ratios):.0f} times as long "
        f"({min(ratios):.0f} to {max(ratios):.0f}, {ROUNDS} rounds)"
    )
