"""Compiled code shared between pods through the store: the first one compiles, the others load.

What is loaded is code, which the process runs. So it is asked for by a variable, and only if whoever
writes to the store may run code in the pods. It saves time and decides nothing: what fails here is named in
the log, and the model is compiled as without it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from isoloss_contract import layout
from isoloss_contract.records import PointConfig, content_key
from isoloss_contract.store import NotFound, Store
from isoloss_trainer.attempt import Attempt, version_of
from isoloss_trainer.log import Log

CACHE_VARIABLE = "ISOLOSS_COMPILE_CACHE"
"""Set to 1: load compiled code from the store, and leave it there."""
MAX_BYTES = 2**28
"""More is neither written nor read."""
UNUSED = "compile-cache-unused"
"""The event of what cannot be read or written: it costs the speed-up alone."""
PACKAGES = ("torch", "triton", "transformers", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


class CompileCache:
    """Loads compiled code before the first step, and leaves it in the store after the first evaluation."""

    def __init__(self, attempt: Attempt, facts: Callable[[], dict[str, Any]]) -> None:
        """`facts`: what the code depends on now (`facts_of_run`)."""
        self._store, self._log, self._facts = attempt.store, attempt.log, facts
        asked = os.environ.get(CACHE_VARIABLE, "0") not in ("", "0")
        self._wanted = asked and not attempt.world.on_cpu
        self._writes = self._wanted and attempt.world.is_first
        self._loaded: str | None = None

    def load(self) -> None:
        """In every process, before anything is compiled."""
        if self._wanted:
            key = content_key(self._facts())
            if load_artifacts(self._store, key, self._log):
                self._loaded = key

    def save(self) -> None:
        """Once everything has been compiled; writes in a thread, the first time only."""
        if not self._writes:
            return
        self._writes = False
        key = content_key(self._facts())
        if key != self._loaded:
            threading.Thread(
                target=save_artifacts,
                args=(self._store, key, self._log),
                name="compile-cache",
                daemon=True,
            ).start()


def facts_of_run(
    point: PointConfig,
    *,
    micro_batch: int,
    recompute: bool,
    processes: int,
    deterministic: bool,
) -> dict[str, Any]:
    """All that compiled code may depend on, of the model, packages, the device and this trainer's own code: elsewhere it
    has another key and is never loaded."""
    device: dict[str, Any] = {"device": "cpu", "machine": platform.machine()}
    if torch.cuda.is_available():
        device = {
            "device": torch.cuda.get_device_name(),
            "capability": list(torch.cuda.get_device_capability()),
            "bytes": torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory,
        }
    return {
        "model": point.model,
        "sequence_length": point.sequence_length,
        "precision": point.precision,
        "z_loss": bool(point.optimizer.z_loss),
        "micro_batch": micro_batch,
        "recompute": recompute,
        "processes": processes,
        "deterministic": deterministic,
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "torch": torch.__version__,
        "torch_revision": torch.version.git_version,
        "cuda": torch.version.cuda,
        "code": _code_digest(Path(__file__).parent),
        **device,
    }


def load_artifacts(store: Store, key: str, log: Log) -> bool:
    """Load what the store has under `key`; whether there was something sound."""
    path, size = layout.compile_cache(key), hashlib.sha256().digest_size
    with log.survived(UNUSED, doing="load", path=path), suppress(NotFound):
        content = store.read(path, max_bytes=MAX_BYTES + size)
        digest, artifacts = content[:size], content[size:]
        if hashlib.sha256(artifacts).digest() != digest:
            raise ValueError("differs from its SHA-256")
        if torch.compiler.load_cache_artifacts(artifacts) is None:
            raise ValueError("torch cannot read it")
        log.event("compile-cache", loaded=path, bytes=len(artifacts))
        return True
    return False


def save_artifacts(store: Store, key: str, log: Log) -> None:
    """Leave in the store under `key` what this process has compiled."""
    path = layout.compile_cache(key)
    with log.survived(UNUSED, doing="save", path=path):
        found = torch.compiler.save_cache_artifacts()
        if found is None:
            return
        artifacts = found[0]
        if len(artifacts) > MAX_BYTES:
            raise ValueError(f"{len(artifacts):,} bytes, more than {MAX_BYTES:,}")
        store.write(path, hashlib.sha256(artifacts).digest() + artifacts)
        log.event("compile-cache", saved=path, bytes=len(artifacts))


def _code_digest(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        found.update(f"{file.name}\n".encode() + file.read_bytes())
    return found.hexdigest()
