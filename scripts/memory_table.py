"""Which model fits which GPU: writes the table of docs/reference/memory.md.

    python -m scripts.memory_table

Computed from the models' configs by isoloss_contract.footprint, as the trainer plans; no GPU is needed.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from isoloss_contract.footprint import Footprint, sequences_beside_state
from isoloss_contract.memory import DEVICES, USABLE_SHARE
from isoloss_trainer.learner import footprint, host_footprint
from isoloss_trainer.model import build_network
from tests.support.models import SHAPES, example_model
from tests.support.published_configs import LLAMA_3_8B

PAGE = Path(__file__).parents[1] / "docs/reference/memory.md"
TABLE = re.compile(r"^\|model\|GPUs\|(?:.*\n)+?(?=\n)", re.MULTILINE)
LENGTH = 8192
GPUS = (1, 8)
LIKES: dict[str, dict[str, Any]] = {
    "8B": LLAMA_3_8B,
    "70B": {
        **LLAMA_3_8B,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}
"""In the shapes of Llama 3."""
GPUS_OF_LIKES = (8, 32, 64)


def write_page() -> None:
    """Put the table into the page."""
    PAGE.write_text(TABLE.sub(lambda _: fits_table() + "\n", PAGE.read_text()))


def fits_table() -> str:
    """Which model trains on which device, on how many of them, with how many sequences at once."""
    columns = [f"{name}{words}" for name in DEVICES for words in ("", ", recomputed")]
    heads = [
        "model",
        "GPUs",
        "state",
        "whole",
        "logits",
        *columns,
        "host, building",
        "host, training",
    ]
    lines = [f"|{'|'.join(heads)}|", "|---|" + "---:|" * (len(heads) - 1)]
    for model in SHAPES:
        network = _network(example_model(model))
        lines += [_fit_of(f"`{model}`", network, count, "random") for count in GPUS]
    for name, config in LIKES.items():
        network = _network(config)
        lines += [_fit_of(name, network, count, "bf16") for count in GPUS_OF_LIKES]
    return "\n".join(lines)


def _network(config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        return build_network(config)


def _fit_of(name: str, network: Any, count: int, given: Literal["random", "bf16"]) -> str:
    needed, host = footprint(network, "bf16", count), host_footprint(network, count, given)
    parts = [_gib(size) for size in (needed.state, needed.whole, needed.head)]
    hosts = [_gib(host.build), _gib(host.train)]
    return f"|{'|'.join([name, str(count), *parts, *_fits(needed), *hosts])}|"


def _fits(needed: Footprint) -> Iterator[str]:
    for memory in DEVICES.values():
        for recompute in (False, True):
            size = sequences_on(needed, memory, recompute=recompute)
            activations = needed.of_sequences(size, LENGTH, recompute=recompute)
            total = needed.fixed + activations
            yield f"{size} ({_gib(total)})" if size else "does not fit"


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def sequences_on(needed: Footprint, memory: int, *, recompute: bool) -> int:
    """At once on a device of `memory` bytes; 0 where not even one fits."""
    free = int(USABLE_SHARE * memory) - needed.state
    return sequences_beside_state(needed, LENGTH, free, recompute=recompute)


if __name__ == "__main__":
    write_page()
