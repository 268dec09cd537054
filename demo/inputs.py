"""A corpus, a tokenizer and a checkpoint in the object store, as the demo's user would have them.

Each is made once; a marker object, written last, says that it is complete.
"""

import time
from collections.abc import Callable
from pathlib import Path

from isoloss_contract.store import Store

CORPUS = "corpus"
TOKENIZER = "tokenizer"
CHECKPOINT = "checkpoints/base"
WHOLE = "complete"
"""Prefix of the markers' names. They are outside the folders, where no glob of the sweep matches."""

Say = Callable[[str], None]


def provide_corpus(store: Store, scratch: Path, say: Say) -> None:
    """Collect the corpus, train the tokenizer on it and upload both, unless they exist."""
    if _is_whole(store, CORPUS):
        say("corpus and tokenizer: in the store")
        return
    # These imports and parsing thousands of files take seconds, which a second run saves.
    from demo.corpus import DOMAINS, write_corpus
    from demo.tokenizer import train_tokenizer

    started = time.monotonic()
    texts = {name: domain.documents() for name, domain in DOMAINS.items()}
    write_corpus(texts, scratch / CORPUS)
    train_tokenizer(list(texts.values()), scratch / TOKENIZER)
    for folder in (CORPUS, TOKENIZER):
        _upload(store, scratch / folder, folder)
    _mark(store, CORPUS)
    sizes = ", ".join(f"{d} {sum(map(len, t)) / 1e6:.1f} MB" for d, t in texts.items())
    say(f"corpus ({sizes}) and tokenizer: uploaded in {time.monotonic() - started:.0f} s")


def provide_checkpoint(store: Store, scratch: Path, say: Say) -> None:
    """Pre-train the checkpoint and upload it, unless it exists."""
    if _is_whole(store, CHECKPOINT):
        say("checkpoint: in the store")
        return
    from demo.checkpoint import TOKENS, pretrain

    started = last = time.monotonic()

    def report(tokens: int, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last > 10:
            last = time.monotonic()
            say(f"checkpoint: {tokens / TOKENS:.0%}, training loss {loss:.2f}")

    folder = scratch / "checkpoint"
    pretrain(_download_tokenizer(store, scratch), folder, report)
    _upload(store, folder, CHECKPOINT)
    _mark(store, CHECKPOINT)
    say(f"checkpoint: pre-trained and uploaded in {time.monotonic() - started:.0f} s")


def _is_whole(store: Store, folder: str) -> bool:
    return store.exists(_marker(folder))


def _mark(store: Store, folder: str) -> None:
    store.write(_marker(folder), b"1\n")


def _marker(folder: str) -> str:
    return f"{WHOLE}-{folder.replace('/', '-')}"


def _upload(store: Store, folder: Path, target: str) -> None:
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        store.write(f"{target}/{path.name}", path.read_bytes())


def _download_tokenizer(store: Store, scratch: Path) -> Path:
    folder = scratch / TOKENIZER
    folder.mkdir(parents=True, exist_ok=True)
    for name in store.names(TOKENIZER):
        (folder / name).write_bytes(store.read(f"{TOKENIZER}/{name}"))
    return folder
