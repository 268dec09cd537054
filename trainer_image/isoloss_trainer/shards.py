"""Reads the prepared data: sequences of tokens by number, from files that are verified against the
manifest before use."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoloss_contract.records import DataManifest, DomainData, Shard
from isoloss_contract.store import BadRecord, NotFound, Store
from isoloss_trainer.termination import BadData

HASH_BELOW_BYTES = 2 * 2**30
"""Shards on a shared volume are mapped, not copied; of larger ones only the size is verified."""


@dataclass(frozen=True)
class TokenFile:
    """A shard as an array; `sequences` windows of `length` + 1 tokens that overlap by one."""

    tokens: NDArray[np.uint32]
    length: int

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return max(0, (len(self.tokens) - 1) // self.length)

    def window(self, number: int) -> NDArray[np.uint32]:
        """Sequence `number`: inputs are all but the last token, targets all but the first."""
        start = number * self.length
        return self.tokens[start : start + self.length + 1]


class DomainTokens:
    """All training sequences of a domain, numbered across its shards."""

    def __init__(self, files: list[TokenFile]) -> None:
        self._files = files
        self._ends = np.cumsum([file.sequences for file in files])

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def window(self, number: int) -> NDArray[np.uint32]:
        """`length` + 1 tokens."""
        file = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[file - 1]) if file else 0
        return self._files[file].window(number - before)


class PreparedData:
    """The prepared corpus behind `uri`, fetched file by file into `scratch` on first use."""

    def __init__(self, uri: str, scratch: Path) -> None:
        self.store = Store(uri)
        try:
            self.manifest = self.store.read_record("manifest.json", DataManifest)
        except NotFound as error:
            raise BadData("DataNotPrepared", f"{uri}: no manifest.json") from error
        self._scratch = scratch / "data"
        self._domains = {domain.name: domain for domain in self.manifest.domains}

    def domain(self, name: str) -> DomainData:
        """Raises BadData where the data have no such domain."""
        try:
            return self._domains[name]
        except KeyError:
            there = ", ".join(sorted(self._domains))
            message = f"{self.store.uri}: no domain {name!r}; domains: {there}"
            raise BadData("DomainMissing", message, f"mixture.{name}") from None

    def training(self, name: str) -> DomainTokens:
        """The training sequences of a domain."""
        length = self.manifest.sequence_length
        files = [TokenFile(self._tokens(shard), length) for shard in self.domain(name).training]
        return DomainTokens(files)

    def validation_stream(self, name: str) -> NDArray[np.uint32]:
        """All validation tokens of a domain."""
        return self._tokens(self.domain(name).validation)

    def _tokens(self, shard: Shard) -> NDArray[np.uint32]:
        if self.store.uri.startswith("file://"):
            return self._map(shard)
        return self._fetch(shard)

    def _map(self, shard: Shard) -> NDArray[np.uint32]:
        path = Path(self.store.uri.removeprefix("file://")) / shard.path
        if not path.exists():
            raise BadData("ShardMissing", f"{path}: not found")
        self._check_size(path.stat().st_size, shard)
        if shard.tokens * 4 <= HASH_BELOW_BYTES:
            self._check_hash(path, shard)
        return self._open(path, shard)

    def _fetch(self, shard: Shard) -> NDArray[np.uint32]:
        """Copy a shard to the scratch folder, once; its name is its hash."""
        path = self._scratch / f"{shard.sha256}.bin"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                content = self.store.read(shard.path, max_bytes=shard.tokens * 4)
            except (NotFound, BadRecord) as error:
                raise BadData("ShardMissing", str(error)) from error
            self._check_size(len(content), shard)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_bytes(content)
            self._check_hash(partial, shard)
            partial.rename(path)
        return self._open(path, shard)

    def _check_size(self, size: int, shard: Shard) -> None:
        if size != shard.tokens * 4:
            where = self.store.location(shard.path)
            raise BadData("ShardCorrupt", f"{where}: {size} bytes, expected {shard.tokens * 4}")

    def _check_hash(self, path: Path, shard: Shard) -> None:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != shard.sha256:
            where = self.store.location(shard.path)
            raise BadData("ShardCorrupt", f"{where}: SHA-256 differs from the manifest's")

    @staticmethod
    def _open(path: Path, shard: Shard) -> NDArray[np.uint32]:
        if shard.tokens == 0:
            return np.empty(0, np.uint32)
        return np.memmap(path, dtype="<u4", mode="r")
