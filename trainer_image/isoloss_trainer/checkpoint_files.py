"""How torch's distributed checkpoints are kept in the store: safetensors files, and an index of them in JSON.

torch's planners say which parts of all tensors each process writes, and which it needs in whatever number of processes
they were written. Nothing that is read is a pickle, and no byte is used before its SHA-256 is that of the index.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, WriteItem
from torch.distributed.tensor import DTensor

from isoloss_contract.memory import FILE_BYTES
from isoloss_contract.records import Digest, Record
from isoloss_contract.store import Store
from isoloss_trainer.world import World

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
    write: Callable[[str, bytes], None], tensors: Tensors, world: World, group: ProcessGroup | None
) -> Index:
    """Write all processes' parts of `tensors` by `write`, which takes a file's name and content, one process's
    along with the others'. Raises in every process what `write` raised in one, and ValueError if the parts do not make up
    the tensors."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    # Tensors that are no DTensors are the same in every process.
    own = {n: t for n, t in tensors.items() if world.is_first or isinstance(t, DTensor)}
    planner.set_up_planner(own, is_coordinator=world.is_first)

    def write_own() -> dict[str, Part]:
        written: dict[str, Part] = {}
        for number, items in enumerate(_by_file(planner.create_local_plan().items)):
            file = f"rank-{world.rank:05d}-{number:05d}.safetensors"
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


def _metadata(index: Index) -> Metadata:
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
