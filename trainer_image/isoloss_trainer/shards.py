"""Reads the prepared data: sequences of tokens by number, each verified against a hash of its own.

A run reads a small part of a large corpus, in random order. So shards are not copied: on a shared
volume they are mapped, in object storage each sequence is a request for its bytes. Those of a small
corpus are, because a request takes as long for a kilobyte as for a megabyte. What every process of a
node needs whole (such shards, hashes, validation tokens) is fetched by one of them.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoloss_contract.records import DataManifest, DomainData, HashedShard, Shard
from isoloss_contract.store import BadRecord, NotFound, Patience, Store
from isoloss_trainer.termination import BadData

# -------------------------------------------------------------------------- a hash of every sequence


HASH_BYTES = 8
"""BLAKE2b cut to 64 bits: against damage and mistaken files; the manifest is not signed either."""


def windows_path(shard_path: str) -> str:
    """Path of a shard's hashes, next to it."""
    return f"{shard_path}.windows"


def sequence_count(tokens: int, length: int) -> int:
    """Sequences of `length` + 1 tokens that overlap by one."""
    return max(0, (tokens - 1) // length)


def sequence_hash(tokens: NDArray[np.uint32]) -> bytes:
    """Hash of one sequence of little-endian tokens."""
    content = np.ascontiguousarray(tokens, dtype="<u4").data
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


def sequence_hashes(tokens: NDArray[np.uint32], length: int) -> bytes:
    """Hashes of all sequences in a shard, concatenated."""
    return b"".join(
        sequence_hash(tokens[number * length : (number + 1) * length + 1])
        for number in range(sequence_count(len(tokens), length))
    )


# -------------------------------------------------------------------------------------------- shards


TOKEN_BYTES = 4
COPIED_BYTES = 256 * 2**20
"""A corpus of at most this size is copied from object storage: seconds, as a few thousand requests."""
LOCAL = "file://"
PATIENT = Patience(attempts=42)
"""Patience with reads that a task cannot go on without: some five minutes, as long as its writes are tried again."""
Bytes = NDArray[np.uint8]


class DomainTokens:
    """All training sequences of a domain, numbered across its shards: windows of `length` + 1 tokens that overlap by
    one."""

    def __init__(self, shards: Sequence[HashedShard], length: int, folder: PreparedFolder) -> None:
        self._shards, self._length, self._folder = shards, length, folder
        self._ends = np.cumsum([sequence_count(shard.tokens, length) for shard in shards])

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def window(self, number: int) -> NDArray[np.uint32]:
        """Sequence `number`: inputs are all but the last token, targets all but the first.

        Raises BadData(ShardCorrupt or ShardMissing).
        """
        index = int(np.searchsorted(self._ends, number, side="right"))
        shard, within = self._shards[index], number - (int(self._ends[index - 1]) if index else 0)
        start = within * self._length
        tokens = self._folder.tokens(shard, start, self._length + 1)
        if sequence_hash(tokens) != self._folder.hashes(shard, self._length)[within].tobytes():
            where = self._folder.store.location(shard.path)
            raise BadData(
                "ShardCorrupt", f"{where}: tokens from {start} on differ from their hash"
            )
        return tokens


@dataclass(frozen=True)
class PreparedFolder:
    """The files of a prepared corpus, and a folder that the processes of a node share."""

    store: Store
    scratch: Path
    copied: bool = False
    """Whether training shards in object storage are copied to the scratch folder."""
    _maps: dict[tuple[str, bool], Bytes] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether it is on a volume: its files are mapped, and the page cache is the node's."""
        return self.store.uri.startswith(LOCAL)

    @property
    def is_mapped(self) -> bool:
        """Whether training tokens are read from files, not by requests."""
        return self.is_local or self.copied

    def tokens(self, shard: Shard, start: int, count: int) -> NDArray[np.uint32]:
        """Some tokens of a shard, not verified."""
        first, size = start * TOKEN_BYTES, count * TOKEN_BYTES
        if self.is_mapped:
            size_of_shard = shard.tokens * TOKEN_BYTES  # each sequence is verified by itself
            whole = self._mapped(shard.path, size_of_shard, shard.sha256, verified=False)
            return whole[first : first + size].view("<u4")
        try:
            return np.frombuffer(self.store.read_range(shard.path, first, size), dtype="<u4")
        except (NotFound, BadRecord) as error:
            raise BadData("ShardMissing", str(error)) from error

    def hashes(self, shard: HashedShard, length: int) -> Bytes:
        """sequence_hashes of a shard [sequences, HASH_BYTES]."""
        size = sequence_count(shard.tokens, length) * HASH_BYTES
        found = self._mapped(windows_path(shard.path), size, shard.windows_sha256)
        return found.reshape(-1, HASH_BYTES)

    def whole(self, shard: Shard) -> NDArray[np.uint32]:
        """All numbers of a shard, verified."""
        return self._mapped(shard.path, shard.tokens * TOKEN_BYTES, shard.sha256).view("<u4")

    def _mapped(self, path: str, size: int, sha256: str, *, verified: bool = True) -> Bytes:
        """A whole file: the node's copy, which is verified when it is made, or that of the volume."""
        if size == 0:
            return np.empty(0, np.uint8)
        if (path, verified) not in self._maps:
            if self.is_local:
                file = Path(self.store.uri.removeprefix(LOCAL)) / path
                if not file.exists():
                    raise BadData("ShardMissing", f"{file}: not found")
                self._check_size(path, file.stat().st_size, size)
            else:
                file = self._once(sha256, lambda: self._fetched(path, size, sha256))
            content = np.memmap(file, np.uint8, mode="r")
            if self.is_local and verified:
                self._check_hash(path, content.data, sha256)
            self._maps[path, verified] = content
        return self._maps[path, verified]

    def _fetched(self, path: str, size: int, sha256: str) -> bytes:
        try:
            content = self.store.read(path, max_bytes=size)
        except (NotFound, BadRecord) as error:
            raise BadData("ShardMissing", str(error)) from error
        self._check_size(path, len(content), size)
        self._check_hash(path, content, sha256)
        return content

    def _check_size(self, path: str, size: int, expected: int) -> None:
        if size != expected:
            where = self.store.location(path)
            raise BadData("ShardCorrupt", f"{where}: {size} bytes, expected {expected}")

    def _check_hash(self, path: str, content: bytes | memoryview, sha256: str) -> None:
        if hashlib.sha256(content).hexdigest() != sha256:
            where = self.store.location(path)
            raise BadData("ShardCorrupt", f"{where}: SHA-256 differs from the manifest's")

    def _once(self, name: str, make: Callable[[], bytes]) -> Path:
        """A file in the scratch folder that one process of the node makes and the others wait for."""
        path = self.scratch / name
        if path.exists():
            return path
        self.scratch.mkdir(parents=True, exist_ok=True)
        with (self.scratch / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                partial = self.scratch / f"{name}.partial"
                partial.write_bytes(make())
                partial.rename(path)
        return path


class PreparedData:
    """The prepared corpus behind `uri`; `scratch` is shared by the processes of a node."""

    def __init__(self, uri: str, scratch: Path) -> None:
        self.store = Store(uri, PATIENT)
        try:
            self.manifest = self.store.read_record("manifest.json", DataManifest)
        except NotFound as error:
            raise BadData("DataNotPrepared", f"{uri}: no manifest.json") from error
        self._domains = {domain.name: domain for domain in self.manifest.domains}
        tokens = sum(
            shard.tokens for domain in self._domains.values() for shard in domain.training
        )
        copied = tokens * TOKEN_BYTES <= COPIED_BYTES
        self._folder = PreparedFolder(self.store, scratch / "data", copied)

    def check_digest(self, wanted: str) -> None:
        """Raises BadData if these are other data than a task was made for."""
        if self.manifest.digest != wanted:
            message = (
                f"{self.store.uri}: digest {self.manifest.digest} differs from the task's {wanted}"
            )
            raise BadData("DataChanged", message, "data")

    @property
    def is_mapped(self) -> bool:
        """Whether reading a sequence takes no request."""
        return self._folder.is_mapped

    def domain(self, name: str) -> DomainData:
        """Raises BadData if the data have no such domain."""
        try:
            return self._domains[name]
        except KeyError:
            there = ", ".join(sorted(self._domains))
            message = f"{self.store.uri}: no domain {name!r}; domains: {there}"
            raise BadData("DomainMissing", message, f"mixture.{name}") from None

    def training(self, name: str) -> DomainTokens:
        """The training sequences of a domain; nothing is read yet."""
        length = self.manifest.sequence_length
        return DomainTokens(self.domain(name).training, length, self._folder)

    def validation_stream(self, name: str) -> NDArray[np.uint32]:
        """All validation tokens of a domain."""
        return self._folder.whole(self.domain(name).validation)

    def validation_lengths(self, name: str) -> NDArray[np.uint32]:
        """Bytes of text that each validation token stands for (records.DomainData)."""
        return self._folder.whole(self.domain(name).validation_lengths)
