"""How torch's distributed checkpoints are kept in the store: safetensors files, and an index of them in JSON.

Each process writes its own parts of all tensors and reads the parts that it needs, in whatever number of processes
they were written. Nothing that is read is a pickle, and no byte is used before its SHA-256 is that of the index.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from isoloss_contract.memory import FILE_BYTES
from isoloss_contract.records import Digest, Record
from isoloss_contract.store import Store
from isoloss_trainer.world import World

warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
"""That a process is alone is no reason to warn."""
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
    write: Callable[[str, bytes], None], tensors: Tensors, world: World, group: Any
) -> Index | None:
    """Write all processes' parts of `tensors` by `write`, which takes a file's name and content, one process's
    along with the others'; rank 0 gets the index. Raises in every process what `write` raised in one."""
    writer = _Writer(write, f"rank-{world.rank:05d}")
    with_others = {"process_group": group, "no_dist": world.size == 1}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with _own_errors():
        save(tensors, storage_writer=writer, planner=planner, **with_others)
    return writer.index


def read_tensors(store: Store, folder: str, index: Index, tensors: Tensors, world: World) -> None:
    """Fill `tensors`, this process's parts, from the files in `folder`; all processes call this. Raises in every
    process what was raised in one: StoreError, ValueError if bytes are not those of the index."""
    reader = _Reader(store, folder, index)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with _own_errors():
        load(tensors, storage_reader=reader, planner=planner, no_dist=world.size == 1)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raises the first error of a process in place of torch's summary, which is no Exception."""
    try:
        yield
    except CheckpointException as error:
        raise error.failures[min(error.failures)][0] from None


class _Writer(StorageWriter):
    def __init__(self, write: Callable[[str, bytes], None], prefix: str) -> None:
        self._write, self._prefix = write, prefix
        self.index: Index | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one checkpoint to the next."""

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Every process writes alike."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As torch plans."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """As torch plans."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """There are none."""
        return False

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """This process's parts, in files of FILE_BYTES and a little more."""
        results: list[WriteResult] = []
        for number, items in enumerate(_by_file(plan.items)):
            name = f"{self._prefix}-{number:05d}.safetensors"
            parts = {item.index: _tensor(planner, item) for item in items}
            content, placed = _content(parts, name)
            self._write(name, cast("bytes", content))  # stores take any buffer
            _give_back(content)
            results += [
                WriteResult(index, part.bytes, (NAMES[parts[index].dtype], part))
                for index, part in placed.items()
            ]
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Rank 0 puts the index together."""
        found: dict[str, IndexedTensor] = {}
        for result in (result for each in results for result in each):
            kind, part = result.storage_data
            name = result.index.fqn
            known = found.get(name)
            shape = tuple(metadata.state_dict_metadata[name].size)  # type: ignore[union-attr]
            parts = (*(known.parts if known else ()), part)
            found[name] = IndexedTensor(kind=kind, shape=shape, parts=parts)
        self.index = Index(tensors=found)


class _Reader(StorageReader):
    def __init__(self, store: Store, folder: str, index: Index) -> None:
        self._store, self._folder, self._index = store, folder, index

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A reader is of one checkpoint."""

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any
    ) -> None:
        """Every process reads alike."""

    def read_metadata(self) -> Metadata:
        """The index as torch knows it."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(KINDS[tensor.kind]),
                    torch.Size(tensor.shape),
                    [
                        ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
                        for part in tensor.parts
                    ],
                )
                for name, tensor in self._index.tensors.items()
            }
        )

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As torch plans."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As torch plans."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """There are none."""
        return False

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Each part that holds something of this process's, whole, some at a time."""
        wanted: dict[MetadataIndex, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(item.storage_index, []).append(item)
        with ThreadPoolExecutor(READERS, "checkpoint-parts") as pool:
            for _ in pool.map(lambda one: self._read(one[0], one[1], planner), wanted.items()):
                pass  # raises what was raised there
        return _done(None)

    def _read(self, index: MetadataIndex, items: list[ReadItem], planner: LoadPlanner) -> None:
        tensor = self._index.tensors[index.fqn]
        part = next(part for part in tensor.parts if part.offsets == tuple(index.offset or ()))
        found = self._tensor(index.fqn, KINDS[tensor.kind], part)
        for item in items:
            box = zip(item.storage_offsets, item.lengths, strict=True)
            target = planner.resolve_tensor(item).detach()
            target.copy_(found[tuple(slice(start, start + size) for start, size in box)])
            planner.commit_tensor(item, target)

    def _tensor(self, name: str, dtype: torch.dtype, part: Part) -> torch.Tensor:
        content = self._store.read_range(f"{self._folder}/{part.file}", part.start, part.bytes)
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise ValueError(f"{name} in {part.file}: SHA-256 differs from the index's")
        if not content:
            return torch.empty(part.sizes, dtype=dtype)
        return torch.frombuffer(bytearray(content), dtype=dtype).view(part.sizes)


def _tensor(planner: SavePlanner, item: WriteItem) -> torch.Tensor:
    found = planner.resolve_data(item)
    assert isinstance(found, torch.Tensor)
    return found.detach().cpu().contiguous()


def _by_file(items: list[WriteItem]) -> Iterator[list[WriteItem]]:
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
    parts: dict[MetadataIndex, torch.Tensor], file: str
) -> tuple[bytearray | mmap.mmap, dict[MetadataIndex, Part]]:
    """A safetensors file. Put together here: the library holds the interpreter while it copies, in which no step is
    started; torch's copies let others run, into pages that nobody has filled with zeros before."""
    header: dict[str, Any] = {}
    end = 0
    for index, tensor in parts.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[index.fqn] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    first = 8 + len(text)
    content = _room(first + end)
    content[:first] = len(text).to_bytes(8, "little") + text
    data, placed = torch.frombuffer(content, dtype=torch.uint8), {}
    view = memoryview(content)
    for index, tensor in parts.items():
        begin, end = (first + offset for offset in header[index.fqn]["data_offsets"])
        if end > begin:
            data[begin:end].copy_(tensor.flatten().view(torch.uint8))
        placed[index] = Part(
            offsets=tuple(index.offset or [0] * tensor.dim()),
            sizes=tuple(tensor.shape),
            file=file,
            start=begin,
            bytes=end - begin,
            sha256=hashlib.sha256(view[begin:end]).hexdigest(),
        )
    return content, placed


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


def _done(value: Any) -> Future[Any]:
    found: Future[Any] = Future()
    found.set_result(value)
    return found
