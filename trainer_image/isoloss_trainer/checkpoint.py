"""Training state in the store: safetensors files, manifest last, written in the background.

A checkpoint exists when its manifest does. A broken one is skipped for the one before it. A whole one
whose tensors have other names or shapes is refused: another version of a package built the model, and
starting over would lose the run.

torch's planners say which parts of all tensors each process writes, and which it needs in whatever number of processes
they were written. Their index is a pickle: ours is JSON. Nothing that is read is a pickle, and no byte is used before its
SHA-256 is that of the index.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import time
import uuid
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

import torch
from pydantic import Field
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import ReadItem, WriteItem
from torch.distributed.tensor import DTensor

from isoloss_contract import layout
from isoloss_contract.memory import FILE_BYTES
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
from isoloss_trainer.log import Log
from isoloss_trainer.shards import PATIENT
from isoloss_trainer.termination import BadConfiguration
from isoloss_trainer.world import World

# -------------------------------------------------------------------------------------- checkpoints


PATIENCE_SECONDS = 300.0
"""How long a write is retried while the store is unavailable …"""
RETRY_SECONDS = 2.0
"""… and how long to wait between two tries."""
Found = TypeVar("Found")
INDEX_BYTES = 2**26
"""An index takes 200 bytes for each tensor and process: of 70 billion parameters in 32 processes 20 MB."""
STEP = "step-"
"""What folders are called; digits follow. A step that is saved again has the same folder: no two files have one name, but
for the manifest."""
VERSION: Literal[4] = 4
"""Version of a checkpoint's layout. Any other, newer or older, is refused."""


class OtherLayout(BadConfiguration):
    """A checkpoint is not made of the tensors of the model that this image builds, or in another way."""


class CheckpointManifest(Record):
    """Written last. Everything of the training state that is not a tensor."""

    checkpoint_version: Literal[4] = VERSION
    key: Digest
    tokens: Tokens
    state: TrainingState
    versions: dict[str, str]
    """Versions of the packages that wrote it."""
    index_bytes: int = Field(ge=0, le=INDEX_BYTES)
    index_sha256: Digest
    """Digest of the index, which has the SHA-256 of everything else."""

    @property
    def index(self) -> str:
        """Name of the index's file: no other content has it, whoever writes when."""
        return f"index-{self.index_sha256}.json"


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.write_seconds: float | None = None
        """What the last one took that is complete; None: none is yet."""
        self._store, self._key, self._keep, self._log = store, key, keep, log
        self._folder = layout.point_checkpoints(key)
        self._check, self._world = check, world or World()
        self._group = self._world.host_group()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._gave_up = False

    def restore(self, tensors: Tensors) -> CheckpointManifest | None:
        """Fill `tensors` from the newest intact checkpoint; None if there is none: they mean nothing then.

        A part of the state that none of them belongs to is not read. Raises OtherLayout.
        """
        patient = Store(self._store.uri, PATIENT)
        names = self._world.of_first(lambda: patient.names(self._folder)[::-1])
        for name in (name for name in names if name.startswith(STEP)):
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
        path = f"{self._folder}/{name}/{manifest.index}"
        content = store.read(path, max_bytes=manifest.index_bytes)
        if hashlib.sha256(content).hexdigest() != manifest.index_sha256:
            raise ValueError("index: SHA-256 differs from the manifest's")
        index = Index.model_validate_json(content)
        check_parts(index)
        return manifest, index

    def save(
        self, state: TrainingState, tokens: int, tensors: Tensors, versions: dict[str, str]
    ) -> None:
        """Write the state in the background; `tensors` must not change until then (`wait`).

        Raises the error of the write before, if it failed: see `wait`.
        """
        self.wait(replacing=True)
        name = f"{STEP}{state.step:010d}"
        state = state.model_copy(deep=True)
        self._pending = self._writer.submit(self._write, state, name, tokens, tensors, versions)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._pending is not None and not self._pending.done()

    @property
    def has_failed(self) -> bool:
        """Whether the last one could not be written, which nobody has waited for yet."""
        pending = self._pending
        return pending is not None and pending.done() and pending.exception() is not None

    def wait(self, *, replacing: bool = False) -> None:
        """Wait for the checkpoint being written; raises the error of that write, if it failed.

        One that the store was away for is only logged when a newer one is `replacing` it: the store may be back.
        Not twice in a row.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except StoreUnavailable as error:
            if self._gave_up or not replacing or not _may_pass(error):
                raise
            self._log.event("checkpoint-not-written", reason=str(error)[:300])
            self._gave_up = True
        else:
            self._gave_up = False

    def close(self) -> None:
        """Wait without raising: for an ending that has its own reason."""
        self._writer.shutdown(wait=True)

    def remove_all(self) -> None:
        """Delete the training state. What cannot be removed stays, with an event that says why."""
        self.wait()
        with self._log.survived("checkpoints-kept"):
            self._store.remove(self._folder)

    def _write(
        self,
        state: TrainingState,
        name: str,
        tokens: int,
        tensors: Tensors,
        versions: dict[str, str],
    ) -> None:
        began = self._clock()
        folder = f"{self._folder}/{name}"

        def write(file: str, content: bytes) -> None:
            persist(lambda: self._store.write(f"{folder}/{file}", content))

        index = write_tensors(write, tensors, self._world, self._group)
        if not self._world.is_first:
            return
        text = index.model_dump_json().encode()
        manifest = CheckpointManifest(
            key=self._key,
            tokens=tokens,
            state=state,
            versions=versions,
            index_bytes=len(text),
            index_sha256=hashlib.sha256(text).hexdigest(),
        )
        write(manifest.index, text)

        def complete() -> None:
            # Each time it is tried: another may have taken over while the store was away.
            self._check()
            self._store.write_record(self._manifest(name), manifest)

        persist(complete)
        self.write_seconds = self._clock() - began
        # The new one is written: that an old one stays, as where nothing may be deleted, ends no run.
        with self._log.survived("checkpoints-kept"):
            self._remove_others(name, {"manifest.json", manifest.index, *files_of(index)})

    def _remove_others(self, newest: str, files: Set[str]) -> None:
        """Keep the complete checkpoints of the run up to `newest`, at most `keep` of them, and of that one its `files`.

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
        for name in names:
            if name not in complete[-self._keep :]:
                # The manifest first: what is left of an interrupted removal is incomplete.
                self._store.remove(self._manifest(name))
                self._store.remove(f"{self._folder}/{name}")
        for file in self._store.names(f"{self._folder}/{newest}"):
            if file not in files:  # the step was saved before
                self._store.remove(f"{self._folder}/{newest}/{file}")

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


# -------------------------------------------------------------------------------------- their files


Tensors = dict[str, torch.Tensor]
Kind = Literal["F32", "BF16"]
KINDS: dict[Kind, torch.dtype] = {"F32": torch.float32, "BF16": torch.bfloat16}
NAMES = {dtype: kind for kind, dtype in KINDS.items()}
MAPPED_BYTES = 2**24
"""A file's content from this size on is in memory of its own, and given back in pieces of this size."""
READERS = 8
"""Parts that a process reads at once."""


Count = Annotated[int, Field(ge=0)]


class Part(Record):
    """A box of a tensor, and where its bytes are."""

    offsets: tuple[Count, ...]
    sizes: tuple[Count, ...]
    file: str = Field(pattern=r"^[a-z0-9-]+\.safetensors$")
    start: int = Field(ge=0)
    """Offset of its first byte in the file."""
    bytes: int = Field(ge=0)
    sha256: Digest


class IndexedTensor(Record):
    """A tensor of the state, in parts."""

    kind: Kind
    shape: tuple[Count, ...]
    parts: tuple[Part, ...]


class Index(Record):
    """All tensors of a checkpoint by name."""

    tensors: dict[str, IndexedTensor]


def files_of(index: Index) -> set[str]:
    """What its parts are in."""
    return {part.file for tensor in index.tensors.values() for part in tensor.parts}


def check_parts(index: Index) -> None:
    """Raises ValueError, which names a tensor, if parts are not as large as they say, leave the tensor, or do
    not make it up."""
    for name, tensor in index.tensors.items():
        width, covered = KINDS[tensor.kind].itemsize, 0
        for part in tensor.parts:
            box = zip(part.offsets, part.sizes, tensor.shape, strict=True)
            inside = all(offset + size <= whole for offset, size, whole in box)
            if not inside or part.bytes != width * math.prod(part.sizes):
                raise ValueError(f"{name}: a part is not one of a tensor in shape {tensor.shape}")
            covered += math.prod(part.sizes)
        if covered != math.prod(tensor.shape):
            raise ValueError(f"{name}: the parts are not a tensor in shape {tensor.shape}")


def write_tensors(
    write: Callable[[str, bytes], None], tensors: Tensors, world: World, group: ProcessGroup | None
) -> Index:
    """Write all processes' parts of `tensors` by `write`, which takes a file's name and content, one process's
    along with the others'. No file has a name that an attempt before or after this one gives: one that hung while it
    wrote changes nothing of its successor's checkpoint. Raises in every process what `write` raised in one, and
    ValueError if the parts do not make up the tensors."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    # Tensors that are no DTensors are the same in every process.
    own = {n: t for n, t in tensors.items() if world.is_first or isinstance(t, DTensor)}
    planner.set_up_planner(own, is_coordinator=world.is_first)

    def write_own() -> dict[str, Part]:
        written: dict[str, Part] = {}
        for number, items in enumerate(_by_file(planner.create_local_plan().items)):
            file = f"rank-{world.rank:05d}-{number:05d}-{uuid.uuid4().hex}.safetensors"
            content, parts = _content(planner, items, file)
            write(file, cast("bytes", content))  # stores take any buffer
            _give_back(content)
            written |= parts
        return written

    found = world.of_all(write_own, group)
    index = Index(
        tensors={
            name: IndexedTensor(
                kind=NAMES[tensor.dtype],
                shape=tuple(tensor.shape),
                parts=tuple(parts[name] for parts in found if name in parts),
            )
            for name, tensor in tensors.items()
        }
    )
    check_parts(index)
    return index


def read_tensors(store: Store, folder: str, index: Index, tensors: Tensors, world: World) -> None:
    """Fill `tensors`, this process's parts, from the files in `folder`; all processes call this. Raises in every
    process what was raised in one: StoreError, ValueError if bytes are not those of the index."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(tensors, _metadata(index), is_coordinator=world.is_first)

    def read(item: ReadItem) -> None:
        name, offsets = item.storage_index.fqn, tuple(item.storage_index.offset or ())
        tensor = index.tensors[name]
        part = next(part for part in tensor.parts if part.offsets == offsets)
        content = store.read_range(f"{folder}/{part.file}", part.start, part.bytes)
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise ValueError(f"{name} in {part.file}: SHA-256 differs from the index's")
        found = torch.frombuffer(bytearray(content), dtype=KINDS[tensor.kind]).view(part.sizes)
        box = zip(item.storage_offsets, item.lengths, strict=True)
        wanted = found[tuple(slice(start, start + size) for start, size in box)]
        planner.resolve_tensor(item).detach().copy_(wanted)

    def read_own() -> None:
        with ThreadPoolExecutor(READERS, "checkpoint-parts") as pool:
            for _ in pool.map(read, planner.create_local_plan().items):
                pass  # raises what was raised there

    world.of_all(read_own)


def _metadata(index: Index) -> metadata.Metadata:
    """The index as torch knows it."""
    return metadata.Metadata(
        {
            name: metadata.TensorStorageMetadata(
                metadata.TensorProperties(KINDS[tensor.kind]),
                torch.Size(tensor.shape),
                [
                    metadata.ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
                    for part in tensor.parts
                ],
            )
            for name, tensor in index.tensors.items()
        }
    )


def _by_file(items: list[WriteItem]) -> Iterator[list[WriteItem]]:
    """For one file after the other, of FILE_BYTES and a little more."""
    found, size = [], 0
    for item in items:
        assert item.tensor_data is not None
        found.append(item)
        size += item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
        if size >= FILE_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def _content(
    planner: DefaultSavePlanner, items: list[WriteItem], file: str
) -> tuple[bytearray | mmap.mmap, dict[str, Part]]:
    """A safetensors file. Put together here: the library holds the interpreter while it copies, in which no step is
    started; torch's copies let others run, into pages that nobody has filled with zeros before."""
    found = (cast("torch.Tensor", planner.resolve_data(item)) for item in items)
    tensors = [tensor.detach().cpu().contiguous() for tensor in found]
    header: dict[str, Any] = {}
    end = 0
    for item, tensor in zip(items, tensors, strict=True):
        begin, end = end, end + tensor.nbytes
        header[item.index.fqn] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    first = 8 + len(text)
    content = _room(first + end)
    content[:first] = len(text).to_bytes(8, "little") + text
    data, parts = torch.frombuffer(content, dtype=torch.uint8), {}
    view = memoryview(content)
    for item, tensor in zip(items, tensors, strict=True):
        begin, end = (first + offset for offset in header[item.index.fqn]["data_offsets"])
        if end > begin:
            data[begin:end].copy_(tensor.flatten().view(torch.uint8))
        parts[item.index.fqn] = Part(
            offsets=tuple(item.index.offset or ()),
            sizes=tuple(tensor.shape),
            file=file,
            start=begin,
            bytes=end - begin,
            sha256=hashlib.sha256(view[begin:end]).hexdigest(),
        )
    return content, parts


def _room(size: int) -> bytearray | mmap.mmap:
    """A buffer whose slices are bytes, as object stores want them."""
    if size < MAPPED_BYTES:
        return bytearray(size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _give_back(content: bytearray | mmap.mmap) -> None:
    """In pieces: the interpreter is held while the system takes pages back."""
    if isinstance(content, mmap.mmap):
        for start in range(0, len(content), MAPPED_BYTES):
            content.madvise(mmap.MADV_DONTNEED, start, min(MAPPED_BYTES, len(content) - start))
