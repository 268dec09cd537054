"""The text: C sources and English documentation of the Linux kernel, tokenized once into one small file for each vocabulary.

    apt-get download linux-source-6.1 && dpkg-deb -x linux-source-6.1_*.deb linux
    python -m benchmarks.transfer.texts linux/usr/src/linux-source-6.1.tar.xz .bench/transfer

makes text-512.npz.xz and text-4096.npz.xz (minutes), which travel to the machine that trains.
"""

import hashlib
import io
import lzma
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TARGET, NEAR, FAR, HELD_OUT = DOMAINS = "target", "near", "far", "held_out"
"""Half of the C files, the other half, English, and C files of the first half that no run reads."""
SUBSYSTEMS = ("drivers/net/", "fs/", "kernel/", "mm/", "net/")
MEGABYTES = {512: 20, 4096: 55}
"""Of each domain at most, by vocabulary."""
HELD_OUT_OF_256 = 8
LEARNED_FROM = 3_000_000
"""Bytes of each domain that merges are learned from."""
END = "<|end|>"
Tokens = NDArray[np.uint16]


def make(archive: Path, folder: Path) -> None:
    """Read the kernel's `archive` and write a file for every vocabulary."""
    texts = _documents(archive)
    folder.mkdir(parents=True, exist_ok=True)
    for vocabulary, megabytes in MEGABYTES.items():
        cut = {name: _up_to(megabytes * 10**6, found) for name, found in texts.items()}
        tokenizer = _tokenizer([cut[NEAR], cut[FAR]], vocabulary)
        tokens = {name: _tokens(tokenizer, found) for name, found in cut.items()}
        write(path(folder, vocabulary), tokens)
        counts = ", ".join(f"{name} {len(found):,}" for name, found in tokens.items())
        size = path(folder, vocabulary).stat().st_size / 1e6
        print(f"{path(folder, vocabulary)}: {size:.0f} MB; tokens: {counts}", flush=True)


def write(file: Path, tokens: dict[str, Tokens]) -> None:
    """Of all DOMAINS."""
    buffer = io.BytesIO()
    np.savez(buffer, *(tokens[name] for name in DOMAINS))
    file.write_bytes(lzma.compress(buffer.getvalue(), preset=6))


def path(folder: Path, vocabulary: int) -> Path:
    """Of the file for a vocabulary."""
    return folder / f"text-{vocabulary}.npz.xz"


def read(folder: Path, vocabulary: int) -> dict[str, Tokens]:
    """Tokens of every domain. Raises FileNotFoundError that says how they are made."""
    found = path(folder, vocabulary)
    if not found.exists():
        raise FileNotFoundError(
            f"{found} is missing: make it as benchmarks/transfer/texts.py says"
        )
    with np.load(io.BytesIO(lzma.decompress(found.read_bytes()))) as arrays:
        return {name: arrays[file] for name, file in zip(DOMAINS, arrays.files, strict=True)}


class Sequences:
    """Windows of S + 1 tokens in an order that depends on the seed; another one in every epoch."""

    def __init__(self, tokens: Tokens, length: int, seed: int) -> None:
        self._tokens, self._length, self._seed = tokens, length, seed
        self.count = (len(tokens) - 1) // length
        self._epoch, self._order = -1, np.arange(0)

    def read(self, first: int, count: int) -> NDArray[np.int64]:
        """Sequences [count, S + 1] from number `first` on."""
        return np.stack([self._window(number) for number in range(first, first + count)])

    def _window(self, number: int) -> NDArray[np.int64]:
        epoch, place = divmod(number, self.count)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self.count)
        start = int(self._order[place]) * self._length
        return self._tokens[start : start + self._length + 1].astype(np.int64)


def spread(tokens: Tokens, length: int, count: int) -> NDArray[np.int64]:
    """Fixed sequences [at most count, S + 1], evenly over `tokens`."""
    available = (len(tokens) - 1) // length
    count = min(count, available)
    starts = np.arange(count) * available // count * length
    return np.stack([tokens[s : s + length + 1] for s in starts]).astype(np.int64)


def _documents(archive: Path) -> dict[str, list[str]]:
    found: dict[str, list[tuple[str, str]]] = {TARGET: [], NEAR: [], FAR: [], HELD_OUT: []}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            digest = hashlib.sha256(name.encode()).digest()
            domain = _domain(name, digest)
            file = tar.extractfile(member) if domain else None
            if domain and file:
                found[domain].append((digest.hex(), file.read().decode(errors="replace")))
    return {domain: [text for _, text in sorted(pairs)] for domain, pairs in found.items()}


def _domain(name: str, digest: bytes) -> str | None:
    if name.startswith("Documentation/") and name.endswith(".rst"):
        return None if "/translations/" in name else FAR
    if not name.startswith(SUBSYSTEMS) or not name.endswith(".c"):
        return None
    if digest[-1] % 2:
        return NEAR
    return HELD_OUT if digest[0] < HELD_OUT_OF_256 else TARGET


def _up_to(size: int, texts: Sequence[str]) -> list[str]:
    sizes = np.cumsum([len(text) for text in texts])
    return list(texts[: int(np.searchsorted(sizes, size)) + 1])


def _tokenizer(domains: Sequence[Sequence[str]], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = [text for texts in domains for text in _up_to(LEARNED_FROM, texts)]
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def _tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    return np.concatenate(list(_each(tokenizer, texts)))


def _each(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Tokens]:
    end = tokenizer.token_to_id(END)
    for start in range(0, len(texts), 256):
        for found in tokenizer.encode_batch_fast(texts[start : start + 256]):
            yield np.array([*found.ids, end], dtype=np.uint16)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
