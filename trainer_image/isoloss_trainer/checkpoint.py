"""Training state in the store: safetensors files, manifest last, written in the background.

A checkpoint exists when its manifest does. A broken one is skipped for the one before it. A whole one
whose tensors have other names or shapes is refused: another version of a package built the model, and
starting over would lose the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from pydantic import Field
from safetensors.torch import load, save
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from isoloss_contract import layout
from isoloss_contract.records import Digest, Record, Tokens
from isoloss_contract.store import NotFound, Store, StoreError, StoreRefused, StoreUnavailable
from isoloss_trainer.log import Log
from isoloss_trainer.named_tensors import Parts, Tensors, layout_digest
from isoloss_trainer.training_state import TrainingState

PATIENCE_SECONDS = 300.0
"""How long a write is retried while the store is unavailable …"""
RETRY_SECONDS = 2.0
"""… and how long to wait between two tries."""


class StateFile(Record):
    """One part of the state (named_tensors.Parts)."""

    bytes: int = Field(ge=0)
    sha256: Digest


class CheckpointManifest(Record):
    """Written last. Everything of the training state that is not a tensor."""

    key: Digest
    tokens: Tokens
    state: TrainingState
    layout: Digest
    """Of the names and shapes of all tensors; their order means nothing."""
    versions: dict[str, str]
    """Of the packages that wrote it."""
    files: dict[str, StateFile]


class Checkpoint(NamedTuple):
    """A checkpoint as it was read."""

    manifest: CheckpointManifest
    parts: Parts


class Checkpoints:
    """The checkpoints of one point; at most one is being written at a time."""

    def __init__(self, store: Store, key: str, keep: int, check: Callable[[], None], log: Log):
        self._store, self._key, self._keep, self._log = store, key, keep, log
        self._folder = layout.point_checkpoints(key)
        self._check = check
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def newest(self) -> Checkpoint | None:
        """The newest intact checkpoint; None where there is none."""
        for name in reversed(self._store.names(self._folder)):
            try:
                return self._read(name)
            except StoreUnavailable:
                raise
            except (StoreError, ValueError, KeyError) as error:
                self._log.event("checkpoint-unusable", checkpoint=name, reason=str(error)[:300])
        return None

    def save(
        self, state: TrainingState, tokens: int, parts: Parts, versions: dict[str, str]
    ) -> None:
        """Write the state in the background; `parts` must not change until then (`wait`).

        Raises the error of the write before, if it failed.
        """
        self.wait()
        state = state.model_copy(deep=True)
        self._pending = self._writer.submit(self._write, state, tokens, parts, versions)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._pending is not None and not self._pending.done()

    def wait(self) -> None:
        """Wait for the checkpoint being written; raises the error of that write, if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait without raising: for an ending that has its own reason."""
        self._writer.shutdown(wait=True)

    def remove_all(self) -> None:
        """Delete the training state."""
        self.wait()
        self._store.remove(self._folder)

    def _write(
        self, state: TrainingState, tokens: int, parts: Parts, versions: dict[str, str]
    ) -> None:
        name = f"step-{state.step:010d}"
        folder = f"{self._folder}/{name}"
        files = {
            part: self._write_part(f"{folder}/{part}.safetensors", tensors)
            for part, tensors in parts.items()
        }
        manifest = CheckpointManifest(
            key=self._key,
            tokens=tokens,
            state=state,
            layout=layout_digest(parts),
            versions=versions,
            files=files,
        )
        self._check()
        persist(lambda: self._store.write_record(self._manifest(name), manifest))
        self._remove_others(name)

    def _remove_others(self, newest: str) -> None:
        """Keep the complete checkpoints up to `newest`, at most `keep` of them.

        What is incomplete was left by an attempt that was killed: the claim, checked a moment ago,
        rules out that it is still being written. What is of a later step was found unusable, or
        the run would have continued from it.
        """
        names = self._store.names(self._folder)
        complete = [
            name for name in names if name <= newest and self._store.exists(self._manifest(name))
        ]
        for name in names:
            if name not in complete[-self._keep :]:
                # The manifest first: what is left of an interrupted removal is incomplete.
                self._store.remove(self._manifest(name))
                self._store.remove(f"{self._folder}/{name}")

    def _manifest(self, name: str) -> str:
        return f"{self._folder}/{name}/manifest.json"

    def _write_part(self, path: str, tensors: Tensors) -> StateFile:
        content = save(tensors)
        persist(lambda: self._store.write(path, content))
        return StateFile(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    def _read(self, name: str) -> Checkpoint:
        folder = f"{self._folder}/{name}"
        manifest = self._store.read_record(self._manifest(name), CheckpointManifest)
        if manifest.key != self._key:
            raise ValueError("belongs to another point")
        parts: Parts = {}
        for part, file in manifest.files.items():
            content = self._store.read(f"{folder}/{part}.safetensors", max_bytes=file.bytes)
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise ValueError(f"{part}: SHA-256 differs from the manifest's")
            parts[part] = load(content)
        if layout_digest(parts) != manifest.layout:
            raise ValueError("tensors differ from the manifest's layout")
        return Checkpoint(manifest, parts)


def persist(write: Callable[[], None]) -> None:
    """Retry a write while the store is unavailable, for PATIENCE_SECONDS. Raises StoreUnavailable."""
    retrying = Retrying(
        stop=stop_after_delay(PATIENCE_SECONDS),
        wait=wait_fixed(RETRY_SECONDS),
        retry=retry_if_exception(_may_pass),
        reraise=True,
    )
    try:
        retrying(write)
    except NotFound as error:  # a missing bucket
        raise StoreUnavailable(str(error)) from error


def _may_pass(error: BaseException) -> bool:
    """Whether waiting may help: not for what is refused."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused)
