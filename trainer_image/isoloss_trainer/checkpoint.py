"""Training state in the store: safetensors files, manifest last, written in the background.

A checkpoint exists when its manifest does. A broken one is skipped for the one before it. A whole one
whose tensors have other names or shapes is refused: another version of a package built the model, and
starting over would lose the run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import Field
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from isoloss_contract import layout
from isoloss_contract.records import Digest, Record, Tokens
from isoloss_contract.store import (
    NotFound,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    parse_record,
)
from isoloss_trainer.attempt import TrainingState
from isoloss_trainer.checkpoint_files import (
    Index,
    Tensors,
    check_parts,
    read_tensors,
    write_tensors,
)
from isoloss_trainer.log import Log
from isoloss_trainer.shards import PATIENT
from isoloss_trainer.termination import BadConfiguration
from isoloss_trainer.world import World

PATIENCE_SECONDS = 300.0
"""How long a write is retried while the store is unavailable …"""
RETRY_SECONDS = 2.0
"""… and how long to wait between two tries."""


Found = TypeVar("Found")
INDEX = "index.json"
INDEX_BYTES = 2**26
"""An index takes 200 bytes for each tensor and process: of 70 billion parameters in 32 processes 20 MB."""


STEP, COOLING = "step-", "cooling-"
"""What folders are called: of the run, and of a copy that was stopped while it cooled down. Digits follow, and a number
if the state of a step is saved again."""
VERSION: Literal[3] = 3
"""Version of a checkpoint's layout. Any other, newer or older, is refused."""


class OtherLayout(BadConfiguration):
    """A checkpoint is not made of the tensors of the model that this image builds, or in another way."""


class CheckpointManifest(Record):
    """Written last. Everything of the training state that is not a tensor."""

    checkpoint_version: Literal[3] = VERSION
    key: Digest
    tokens: Tokens
    state: TrainingState
    versions: dict[str, str]
    """Versions of the packages that wrote it."""
    index_bytes: int = Field(ge=0, le=INDEX_BYTES)
    index_sha256: Digest
    """Digest of index.json, which has the SHA-256 of everything else."""


class Checkpoints:
    """The checkpoints of one point; at most one is being written at a time.

    All processes have one and call it alike. Each writes its own parts; rank 0 writes the rest.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        keep: int,
        check: Callable[[], None],
        log: Log,
        world: World | None = None,
    ) -> None:
        self._store, self._key, self._keep, self._log = store, key, keep, log
        self._folder = layout.point_checkpoints(key)
        self._check, self._world = check, world or World()
        self._group = self._world.host_group()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def restore(
        self, tensors: Tensors, cooling_from: int | None = None
    ) -> CheckpointManifest | None:
        """Fill `tensors` from the newest intact checkpoint, or from that of a copy that cools down from the step
        `cooling_from`; None if there is none: they mean nothing then.

        A part of the state that none of them belongs to is not read. Raises OtherLayout.
        """
        patient = Store(self._store.uri, PATIENT)
        prefix = STEP if cooling_from is None else f"{COOLING}{cooling_from:010d}-"
        names = self._world.of_first(lambda: patient.names(self._folder)[::-1])
        for name in (name for name in names if name.startswith(prefix)):
            try:
                manifest, index = self._world.of_first(partial(self._described, name, patient))
                check_layout(tensors, index)
                folder = f"{self._folder}/{name}"
                read_tensors(patient, folder, index, tensors, self._world)
            except StoreUnavailable:
                raise
            except (StoreError, ValueError, KeyError) as error:
                self._log.event("checkpoint-unusable", checkpoint=name, reason=str(error)[:300])
            else:
                return manifest
        return None

    def _described(self, name: str, store: Store) -> tuple[CheckpointManifest, Index]:
        path = self._manifest(name)
        text = store.read(path)
        _check_version(json.loads(text), path)
        manifest = parse_record(text, CheckpointManifest, path)
        if manifest.key != self._key:
            raise ValueError("belongs to another point")
        path = f"{self._folder}/{name}/{INDEX}"
        content = store.read(path, max_bytes=manifest.index_bytes)
        if hashlib.sha256(content).hexdigest() != manifest.index_sha256:
            raise ValueError("index: SHA-256 differs from the manifest's")
        index = Index.model_validate_json(content)
        check_parts(index)
        return manifest, index

    def save(
        self,
        state: TrainingState,
        tokens: int,
        tensors: Tensors,
        versions: dict[str, str],
        *,
        cooling: bool = False,
    ) -> None:
        """Write the state in the background; `tensors` must not change until then (`wait`). If they are `cooling`
        down, they are of a copy of the run at `state` that has seen `tokens`; they are kept until the next
        checkpoint of the run.

        Raises the error of the write before, if it failed.
        """
        self.wait()
        name = (
            f"{COOLING}{state.step:010d}-{tokens:016d}" if cooling else f"{STEP}{state.step:010d}"
        )
        state = state.model_copy(deep=True)
        self._pending = self._writer.submit(self._write, state, name, tokens, tensors, versions)

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
        self,
        state: TrainingState,
        wanted: str,
        tokens: int,
        tensors: Tensors,
        versions: dict[str, str],
    ) -> None:
        name = self._world.of_first(lambda: persist(lambda: self._unused(wanted)), self._group)
        folder = f"{self._folder}/{name}"

        def write(file: str, content: bytes) -> None:
            persist(lambda: self._store.write(f"{folder}/{file}", content))

        index = write_tensors(write, tensors, self._world, self._group)
        if not self._world.is_first:
            return
        text = index.model_dump_json().encode()
        write(INDEX, text)
        manifest = CheckpointManifest(
            key=self._key,
            tokens=tokens,
            state=state,
            versions=versions,
            index_bytes=len(text),
            index_sha256=hashlib.sha256(text).hexdigest(),
        )
        self._check()
        persist(lambda: self._store.write_record(self._manifest(name), manifest))
        if name.startswith(STEP):
            self._remove_others(name)

    def _unused(self, name: str) -> str:
        """`name`, with the next number behind it if a complete checkpoint has that name. Written over by another number
        of processes, that would be neither until the new manifest is there, and a kill would leave none."""
        form = re.compile(rf"{name}(?:-(\d{{5}}))?")
        used = [
            int(found[1] or 0)
            for found in map(form.fullmatch, self._store.names(self._folder))
            if found and self._is_complete(found[0])
        ]
        return f"{name}-{max(used) + 1:05d}" if used else name

    def _remove_others(self, newest: str) -> None:
        """Keep the complete checkpoints of the run up to `newest`, at most `keep` of them, and of each step the last.

        What is incomplete was left by an attempt that was killed: the claim, checked a moment ago,
        rules out that it is still being written. What is of a later step was found unusable, or
        the run would have continued from it.
        """
        names = self._store.names(self._folder)
        complete = [
            name
            for name in names
            if name.startswith(STEP) and name <= newest and self._is_complete(name)
        ]
        last_of_steps = {name.split("-")[1]: name for name in complete}
        kept = [*last_of_steps.values()][-self._keep :]
        for name in names:
            if name not in kept:
                # The manifest first: what is left of an interrupted removal is incomplete.
                self._store.remove(self._manifest(name))
                self._store.remove(f"{self._folder}/{name}")

    def _is_complete(self, name: str) -> bool:
        return self._store.exists(self._manifest(name))

    def _manifest(self, name: str) -> str:
        return f"{self._folder}/{name}/manifest.json"


def _check_version(manifest: Any, path: str) -> None:
    """Raises ValueError if it is not a manifest, OtherLayout if it is of another VERSION."""
    if not isinstance(manifest, dict):
        raise ValueError("no manifest")
    found = manifest.get("checkpoint_version")
    if found != VERSION:
        raise OtherLayout(
            "OtherLayout",
            f"{path} is of version {found}, this image reads version {VERSION}: train the point with the image "
            "that wrote the checkpoint, or delete the point's checkpoints to start over",
            "podTemplate",
        )


def check_layout(wanted: Tensors, index: Index) -> None:
    """Raises OtherLayout, which names a tensor, if the index lacks one of `wanted`, has one more of the same
    part of the state, or has one in another shape."""
    ours = {name: list(tensor.shape) for name, tensor in wanted.items()}
    parts = {_part(name) for name in ours}
    theirs = {
        name: list(tensor.shape) for name, tensor in index.tensors.items() if _part(name) in parts
    }
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise OtherLayout(
                "OtherLayout",
                f"the checkpoint has {name} {_words(theirs.get(name))}, the model that this image "
                f"builds {_words(ours.get(name))}: train the point with the image that wrote the "
                "checkpoint, or delete the point's checkpoints to start over",
                "podTemplate",
            )


def _part(name: str) -> str:
    return name.partition(".")[0]


def _words(shape: list[int] | None) -> str:
    return "not at all" if shape is None else f"in shape {shape}"


def persist(call: Callable[[], Found]) -> Found:
    """Retry `call` while the store is unavailable, for PATIENCE_SECONDS; returns what it returns. Raises
    StoreUnavailable."""
    retrying = Retrying(
        stop=stop_after_delay(PATIENCE_SECONDS),
        wait=wait_fixed(RETRY_SECONDS),
        retry=retry_if_exception(_may_pass),
        reraise=True,
    )
    try:
        return retrying(call)
    except NotFound as error:  # a missing bucket
        raise StoreUnavailable(str(error)) from error


def _may_pass(error: BaseException) -> bool:
    """Whether waiting may help: not for what is refused."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused)
