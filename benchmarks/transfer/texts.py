"""The corpora: docstrings for the sweep and for what is like it, source code and C++ headers for what is not."""

from __future__ import annotations

import hashlib
from pathlib import Path

from benchmarks.transfer.design import BEFORE, FAR, OTHER, SEQUENCE_LENGTH, TARGET, VOCABULARY
from demo.corpus import DOMAINS, Domain, docstrings, without_docstrings, write_jsonl
from demo.tokenizer import train_tokenizer
from isoloss_contract.records import DomainSource, PrepareConfig, PrepareTask

DOCSTRINGS = Domain(DOMAINS["general"].packages, docstrings, 7_000_000)
CODE = Domain(DOMAINS["code"].packages, without_docstrings, 2_500_000)
HEADERS = Domain(("torch/include/ATen", "torch/include/c10"), str.strip, 2_500_000, suffix=".h")
HELD_OUT_PER_THOUSAND = 40


def provide_texts(folder: Path) -> PrepareTask:
    """Write the corpora and a tokenizer to `folder` unless they are there; the task that prepares them."""
    marker = folder / "complete"
    if not marker.exists():
        folder.mkdir(parents=True, exist_ok=True)
        documents = DOCSTRINGS.documents()
        halves = {
            TARGET: [text for text in documents if _is_target(text)],
            BEFORE: [text for text in documents if not _is_target(text)],
            OTHER: CODE.documents(),
            FAR: HEADERS.documents(),
        }
        for name, texts in halves.items():
            write_jsonl(texts, "text", folder / f"{name}.jsonl")
        train_tokenizer([halves[TARGET], halves[OTHER]], folder / "tokenizer", VOCABULARY)
        marker.touch()
    return _task(folder)


def _is_target(text: str) -> bool:
    """Half of the documents; not by the part of the hash that decides what is held out."""
    return hashlib.sha256(text.encode()).digest()[-1] % 2 == 0


def _task(folder: Path) -> PrepareTask:
    config = PrepareConfig(
        tokenizer=f"file://{folder.resolve()}/tokenizer",
        sequence_length=SEQUENCE_LENGTH,
        domains=tuple(
            DomainSource(
                name=name, uri=f"file://{folder.resolve()}/{name}.jsonl", text_field="text"
            )
            for name in (TARGET, BEFORE, OTHER, FAR)
        ),
        validation_documents_per_thousand=HELD_OUT_PER_THOUSAND,
    )
    return PrepareTask(config=config, store_uri=f"file://{folder.resolve().parent}/store")
