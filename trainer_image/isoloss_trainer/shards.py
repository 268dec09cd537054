"""Reads the prepared data: sequences of tokens by number, each verified against a hash of its own, and for training
batches of them in their order.

A run reads a small part of a large corpus, in random order. So shards are not copied: on a shared
volume they are mapped, in object storage each sequence is a request for its bytes. Those of a small
corpus are, because a request takes as long for a kilobyte as for a megabyte. What every process of a
node needs whole (such shards, hashes, validation tokens) is fetched by one of them.

Sequence number i of a run is a function of (seed, i) alone. It does not depend on batch size, micro-batch or number of
devices, so that runs that differ in these read the same tokens in the same order, and resuming needs no state but the
count.

torch is imported by who asks for a batch: preparing a corpus needs none.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isoloss_contract.records import DataManifest, DomainData, HashedShard, PointConfig, Shard
from isoloss_contract.store import BadRecord, NotFound, Patience, Store
from isoloss_trainer.termination import BadConfiguration, BadData
from isoloss_trainer.world import World

if TYPE_CHECKING:
    import torch

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


# -------------------------------------------------------------------------------------- held-out texts


MAX_HELD_OUT_BYTES = 4 * 2**30
"""Size of a domain's texts: they are sorted in memory."""


def validation_texts(domain: str) -> str:
    """Path of the held-out documents' texts, in evaluation order, relative to the data folder."""
    return f"{domain}/validation.jsonl.gz"


def pack_texts(texts: list[str]) -> bytes:
    """Gzipped JSON lines; equal texts give equal bytes."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    return gzip.compress(lines.encode(), compresslevel=3, mtime=0)


def unpack_texts(content: bytes) -> list[str]:
    """Undo `pack_texts`."""
    return [json.loads(line)["text"] for line in gzip.decompress(content).splitlines()]


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

    def __init__(self, shards: Sequence[HashedShard], data: PreparedData) -> None:
        self._shards, self._data = shards, data
        self._length = length = data.manifest.sequence_length
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
        tokens = self._data.tokens(shard, start, self._length + 1)
        if sequence_hash(tokens) != self._data.hashes(shard)[within].tobytes():
            where = self._data.store.location(shard.path)
            raise BadData(
                "ShardCorrupt", f"{where}: tokens from {start} on differ from their hash"
            )
        return tokens


class PreparedData:
    """The prepared corpus behind `uri`; `scratch` is shared by the processes of a node."""

    def __init__(self, uri: str, scratch: Path) -> None:
        self.store = Store(uri, PATIENT)
        try:
            self.manifest = self.store.read_record("manifest.json", DataManifest)
        except NotFound as error:
            raise BadData("DataNotPrepared", f"{uri}: no manifest.json") from error
        self._domains = {domain.name: domain for domain in self.manifest.domains}
        self._scratch = scratch / "data"
        self._maps: dict[tuple[str, bool], Bytes] = {}
        shards = [shard for domain in self.manifest.domains for shard in domain.training]
        size = sum(shard.tokens for shard in shards) * TOKEN_BYTES
        self.is_local = uri.startswith(LOCAL)
        """Whether it is on a volume: its files are mapped, and the page cache is the node's."""
        self.is_mapped = self.is_local or size <= COPIED_BYTES
        """Whether training tokens are read from files, not by requests."""

    def check_digest(self, wanted: str) -> None:
        """Raises BadData if these are other data than a task was made for."""
        if self.manifest.digest != wanted:
            message = (
                f"{self.store.uri}: digest {self.manifest.digest} differs from the task's {wanted}"
            )
            raise BadData("DataChanged", message, "data")

    def check_point(self, point: PointConfig) -> None:
        """Raises BadData or BadConfiguration unless these are the data that the point's key stands for."""
        self.check_digest(point.data_digest)
        length = self.manifest.sequence_length
        if length != point.sequence_length:
            message = (
                f"the data are prepared for sequences of {length}, not {point.sequence_length}"
            )
            raise BadConfiguration("SequenceLengthDiffers", message, "sequence_length")
        for name in point.mixture:
            self.domain(name)

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
        return DomainTokens(self.domain(name).training, self)

    def validation_stream(self, name: str) -> NDArray[np.uint32]:
        """All validation tokens of a domain."""
        return self._whole(self.domain(name).validation)

    def validation_lengths(self, name: str) -> NDArray[np.uint32]:
        """Bytes of text that each validation token stands for (records.DomainData)."""
        return self._whole(self.domain(name).validation_lengths)

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

    def hashes(self, shard: HashedShard) -> Bytes:
        """sequence_hashes of a shard [sequences, HASH_BYTES]."""
        size = sequence_count(shard.tokens, self.manifest.sequence_length) * HASH_BYTES
        found = self._mapped(windows_path(shard.path), size, shard.windows_sha256)
        return found.reshape(-1, HASH_BYTES)

    def _whole(self, shard: Shard) -> NDArray[np.uint32]:
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
        path = self._scratch / name
        if path.exists():
            return path
        self._scratch.mkdir(parents=True, exist_ok=True)
        with (self._scratch / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                partial = self._scratch / f"{name}.partial"
                partial.write_bytes(make())
                partial.rename(path)
        return path


# ----------------------------------------------------------------------------------------- the order


_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: its multiples are spread most evenly over 64 bits."""
_MASK = 2**64 - 1


def domain_of(start: int, count: int, shares: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Domain of each of the `count` sequences from number `start` on.

    A Weyl sequence compared with the cumulative shares: any stretch contains each domain in its share
    to within a few sequences, so that short runs see the same mixture as long ones.
    """
    numbers = np.arange(start, start + count, dtype=np.uint64)
    points = numbers * np.uint64(_GOLDEN) + np.uint64(_mixed(seed, 0, 0))
    limits = [min(_MASK, int(share * 2.0**53) << 11) for share in np.cumsum(shares)[:-1]]
    return np.searchsorted(np.array(limits, dtype=np.uint64), points, side="right")


def permutation(size: int, seed: int, domain: int, epoch: int) -> NDArray[np.int64]:
    """A shuffle of range(`size`) that does not depend on library versions."""
    keys = np.arange(size, dtype=np.uint64) * np.uint64(_GOLDEN)
    keys = mix(keys + np.uint64(_mixed(seed, domain + 1, epoch)))
    return np.argsort(keys, kind="stable")


class DataOrder:
    """Which (domain, sequence) is number i. Any order of calls works; ascending order is cheap."""

    def __init__(self, sizes: Mapping[str, int], mixture: Mapping[str, float], seed: int) -> None:
        self.names = sorted(mixture)
        self._sizes = [sizes[name] for name in self.names]
        self._shares = np.array([mixture[name] for name in self.names])
        self._seed = seed
        self._counted = 0
        self._seen = np.zeros(len(self.names), dtype=np.int64)
        self._permutations: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def take(self, start: int, count: int) -> list[tuple[str, int]]:
        """Domain and sequence number of the run's sequences `start` … `start + count - 1`."""
        self._count_to(start)
        domains = domain_of(start, count, self._shares, self._seed)
        seen = self._seen.copy()
        taken = []
        for domain in domains.tolist():
            taken.append((self.names[domain], self._sequence(domain, int(seen[domain]))))
            seen[domain] += 1
        return taken

    def epochs(self, sequences: int) -> dict[str, float]:
        """How many times each domain has been read after `sequences` sequences."""
        self._count_to(sequences)
        pairs = zip(self.names, self._seen.tolist(), self._sizes, strict=True)
        return {name: seen / size for name, seen, size in pairs}

    def _sequence(self, domain: int, position: int) -> int:
        epoch, within = divmod(position, self._sizes[domain])
        known = self._permutations.get(domain)
        if known is None or known[0] != epoch:
            known = (epoch, permutation(self._sizes[domain], self._seed, domain, epoch))
            self._permutations[domain] = known
        return int(known[1][within])

    def _count_to(self, start: int) -> None:
        if start < self._counted:
            self._counted, self._seen = 0, np.zeros_like(self._seen)
        while self._counted < start:
            count = min(2**20, start - self._counted)
            domains = domain_of(self._counted, count, self._shares, self._seed)
            self._seen = self._seen + np.bincount(domains, minlength=len(self.names))
            self._counted += count


def _mixed(*numbers: int) -> int:
    state = 0
    for number in numbers:
        state = int(mix(np.array([(state * _GOLDEN + number + 1) & _MASK], np.uint64))[0])
    return state


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every input bit affects every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


# ------------------------------------------------------------------------------------------- batches


REQUESTS = 16
"""Sequences that are asked for at once: a request takes tens of milliseconds, however small."""


class TrainingSequences:
    """The endless training stream of a mixture: sequence i is the same for every batch size.

    Each process reads its own share of a batch. The batch that follows is read in a thread while this one
    is used, and for an accelerator into pinned memory, from which it is copied without waiting. What is
    read follows from the numbers asked for alone.
    """

    def __init__(
        self,
        data: PreparedData,
        mixture: Mapping[str, float],
        seed: int,
        world: World | None = None,
    ) -> None:
        self._width = data.manifest.sequence_length + 1
        self._domains = {name: data.training(name) for name in mixture}
        sizes = {name: domain.sequences for name, domain in self._domains.items()}
        self.order = DataOrder(sizes, mixture, seed)
        self._world = world or World()
        self._requests = None if data.is_mapped else ThreadPoolExecutor(REQUESTS, "sequences")
        self._reader = ThreadPoolExecutor(1, "batches", self._enter_reader)
        self._ahead: tuple[tuple[int, int], Future[torch.Tensor]] | None = None

    def read(self, start: int, count: int) -> torch.Tensor:
        """Sequences `start` … `start + count - 1`: int64 [count, S + 1]. Those of other processes'
        shares are zeros. Raises what reading them raised, such as BadData."""
        ahead, self._ahead = self._ahead, None
        asked = ahead[1] if ahead and ahead[0] == (start, count) else self._ask(start, count)
        # Before waiting, so that there is no pause between the two.
        self._ahead = ((start + count, count), self._ask(start + count, count))
        return asked.result()

    def close(self) -> None:
        """Ask for nothing more, and end the thread."""
        if self._requests is not None:
            self._requests.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _ask(self, start: int, count: int) -> Future[torch.Tensor]:
        # The order is counted here: it is not for two threads.
        numbers = self.order.take(start, count)[self._world.share(count)]
        if self._requests is None:
            windows = (self._window(*number) for number in numbers)
            return self._reader.submit(self._batch, windows, count)
        asked = [self._requests.submit(self._window, *number) for number in numbers]
        return self._reader.submit(self._batch, (window.result() for window in asked), count)

    def _window(self, domain: str, number: int) -> NDArray[np.uint32]:
        return self._domains[domain].window(number)

    def _batch(self, windows: Iterable[NDArray[np.uint32]], count: int) -> torch.Tensor:
        """In the reader's thread."""
        import torch

        batch = np.zeros((count, self._width), np.int64)
        share = self._world.share(count)
        for row, window in zip(range(share.start, share.stop), windows, strict=True):
            batch[row] = window
        found = torch.from_numpy(batch)
        return found if self._world.on_cpu else found.pin_memory()

    def _enter_reader(self) -> None:
        """Pinning is a call to the device that a thread has chosen, which is the first by default."""
        if not self._world.on_cpu:
            import torch

            torch.cuda.set_device(self._world.device)
