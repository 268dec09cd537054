"""Training state in the store: safetensors files, manifest last, written in the background.

A checkpoint exists when its manifest does. A broken one is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from pydantic import Field
from safetensors.torch import load, save

from isoloss_contract import layout
from isoloss_contract.records import Digest, Finite, Record, Tokens, TrajectoryRow
from isoloss_contract.store import NotFound, Store, StoreError, StoreUnavailable
from isoloss_trainer.log import Log

PATIENCE_SECONDS = 300.0
"""How long a write is tried again while the store is away …"""
RETRY_SECONDS = 2.0
"""… and how long between two tries."""


class StateFile(Record):
    """One tensor of the state."""

    bytes: int = Field(ge=0)
    sha256: Digest


class CheckpointManifest(Record):
    """Written last. Everything of the training state that is not a tensor."""

    key: Digest
    step: int = Field(ge=0)
    tokens: Tokens
    files: dict[str, StateFile]
    trajectory: tuple[TrajectoryRow, ...]
    """Scheduled evaluations only: without the one at the end of a run."""
    training_loss_sum: Finite
    training_loss_steps: int = Field(ge=0)
    first_loss: Finite | None
    high_steps: int = Field(ge=0)
    accelerator_seconds: float = Field(ge=0)
    attempts: int = Field(ge=1)


State = dict[str, torch.Tensor]


class Checkpoints:
    """The checkpoints of one point; at most one is being written at a time."""

    def __init__(self, store: Store, key: str, keep: int, check: Callable[[], None], log: Log):
        self._store, self._key, self._keep, self._log = store, key, keep, log
        self._folder = layout.point_checkpoints(key)
        self._check = check
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def newest(self) -> tuple[CheckpointManifest, State] | None:
        """The newest checkpoint that is whole; None where there is none."""
        for name in reversed(self._store.names(self._folder)):
            try:
                return self._read(name)
            except StoreUnavailable:
                raise
            except (StoreError, ValueError, KeyError) as error:
                self._log.event("checkpoint-unusable", checkpoint=name, reason=str(error)[:300])
        return None

    def save(self, manifest: CheckpointManifest, state: State) -> float:
        """Copy the state and write it in the background; returns the seconds training stood still.

        `manifest.files` is filled in here. An error of the write before surfaces here.
        """
        started = time.monotonic()
        self.wait()
        copied = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in state.items()
        }
        self._pending = self._writer.submit(self._write, manifest, copied)
        return time.monotonic() - started

    @property
    def is_writing(self) -> bool:
        """Whether the last checkpoint is still on its way."""
        return self._pending is not None and not self._pending.done()

    def wait(self) -> None:
        """Wait for the checkpoint on its way; raises what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait without raising: for an ending that has its own reason."""
        self._writer.shutdown(wait=True)

    def remove_all(self) -> None:
        """Drop the training state."""
        self.wait()
        self._store.remove(self._folder)

    def _write(self, manifest: CheckpointManifest, state: State) -> None:
        folder = f"{self._folder}/step-{manifest.step:010d}"
        files = {}
        for name, tensor in state.items():
            content = save({name: tensor})
            files[name] = StateFile(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
            persist(lambda n=name, c=content: self._store.write(f"{folder}/{n}.safetensors", c))  # type: ignore[misc]
        complete = manifest.model_copy(update={"files": files})
        self._check()
        persist(lambda: self._store.write_record(f"{folder}/manifest.json", complete))
        for name in self._store.names(self._folder)[: -self._keep]:
            self._store.remove(f"{self._folder}/{name}")

    def _read(self, name: str) -> tuple[CheckpointManifest, State]:
        folder = f"{self._folder}/{name}"
        manifest = self._store.read_record(f"{folder}/manifest.json", CheckpointManifest)
        if manifest.key != self._key:
            raise ValueError("belongs to another point")
        state: State = {}
        for tensor, file in manifest.files.items():
            content = self._store.read(f"{folder}/{tensor}.safetensors", max_bytes=file.bytes)
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise ValueError(f"{tensor}: its hash is not the manifest's")
            state[tensor] = load(content)[tensor]
        return manifest, state


def persist(write: Callable[[], None]) -> None:
    """Try a write again while the store is away, for PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return write()
        except StoreUnavailable as error:
            if isinstance(error.__cause__, PermissionError) or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        except NotFound as error:
            raise StoreUnavailable(str(error)) from error
