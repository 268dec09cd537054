"""What preparing a corpus costs per token, against the plainest loop that tokenises and against `datasets`.

    python -m benchmarks.bench_prepare [--megabytes 8] [--rounds 5] [--tokens 40e9]

Each makes files of token numbers from the same JSON lines with the same tokenizer (a byte-level BPE trained
on the text, vocabulary 8,192); they take turns. Counted are seconds of CPU of the whole process, the
tokenizer's threads included: tokens per second and core. The loop parses, tokenises and appends to a file.
`datasets` maps over a JSON data set and writes Arrow. Ours also chooses held-out documents, sketches each
document for near-duplicates, hashes every sequence, and can be interrupted.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from isoloss_contract.records import DomainSource, PrepareConfig, PrepareTask
from isoloss_trainer.log import Log
from isoloss_trainer.prepare import prepare
from isoloss_trainer.termination import Interruption
from isoloss_trainer.tokenization import load_tokenizer
from tests.isoloss_trainer.builders import make_tokenizer, write_json_lines
from tests.support.texts import text

SEQUENCE_LENGTH = 2048
DOCUMENT_CHARACTERS = 3_000
VOCABULARY = 8192
PODS, CORES = 16, 8


class Corpus:
    """JSON lines in a folder, with a tokenizer."""

    def __init__(self, folder: Path, megabytes: float) -> None:
        whole = text(int(megabytes * 1e6))
        self.folder = folder
        self.texts = [
            whole[i : i + DOCUMENT_CHARACTERS] for i in range(0, len(whole), DOCUMENT_CHARACTERS)
        ]
        self.file = folder / "x.jsonl"
        write_json_lines(self.file, self.texts)
        make_tokenizer(folder / "tokenizer", self.texts[:500], VOCABULARY)
        self.tokenizer = load_tokenizer(f"file://{folder}/tokenizer")
        self.tokens = sum(len(tokens) + 1 for tokens in self.tokenizer.encode(self.texts))


def ours(corpus: Corpus, folder: Path) -> None:
    """The trainer's own task."""
    source = DomainSource(name="text", uri=f"file://{corpus.file}", text_field="text")
    config = PrepareConfig(
        tokenizer=f"file://{corpus.folder}/tokenizer",
        sequence_length=SEQUENCE_LENGTH,
        domains=(source,),
        validation_documents_per_thousand=5,
    )
    task = PrepareTask(config=config, store_uri=f"file://{folder}")
    with Path(os.devnull).open("w") as nowhere:
        prepare(task, folder, Interruption(), Log(nowhere))


def loop(corpus: Corpus, folder: Path) -> None:
    """Parse, tokenise in batches, append to a file."""
    tokenizer = corpus.tokenizer
    with corpus.file.open() as lines, (folder / "tokens.bin").open("wb") as target:
        batch: list[str] = []
        for line in lines:
            batch.append(json.loads(line)["text"])
            if len(batch) == 1000:
                _append(tokenizer.encode(batch), tokenizer.end_token, target.write)
                batch = []
        _append(tokenizer.encode(batch), tokenizer.end_token, target.write)


def _append(encoded: list[NDArray[np.uint32]], end: int, write: Callable[[bytes], object]) -> None:
    for tokens in encoded:
        write(np.append(tokens, np.uint32(end)).tobytes())


def mapped(corpus: Corpus, folder: Path) -> None:
    """`datasets`: load_dataset, map in batches, save_to_disk."""
    import datasets

    datasets.disable_progress_bars()
    tokenizer = corpus.tokenizer
    rows = datasets.load_dataset(
        "json", data_files=str(corpus.file), split="train", cache_dir=str(folder / "cache")
    )

    def tokenise(batch: dict[str, list[str]]) -> dict[str, list[NDArray[np.uint32]]]:
        found = tokenizer.encode(batch["text"])
        return {"tokens": [np.append(tokens, np.uint32(tokenizer.end_token)) for tokens in found]}

    made = rows.map(tokenise, batched=True, remove_columns=["text"])
    made.save_to_disk(str(folder / "made"))


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of the whole process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def compare(corpus: Corpus, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each way, in turns."""
    ways = {"ours": ours, "loop": loop, "datasets": mapped}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                spent = cpu_seconds(functools.partial(way, corpus, Path(folder)))
            if number:  # the first round imports and fills caches
                seconds[name].append(spent)
    return seconds


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Print the comparison, and the hours that it means for a large corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=float, default=40e9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(Path(folder), options.megabytes)
        seconds = compare(corpus, options.rounds)
        print(
            f"{corpus.tokens:,} tokens in {len(corpus.texts):,} documents, {sys.version.split()[0]}"
        )
        for name, spent in seconds.items():
            print(
                f"{name:>10}: {corpus.tokens / statistics.median(spent):12,.0f} tokens/s and core"
            )
        for name in ("loop", "datasets"):
            pairs = zip(seconds[name], seconds["ours"], strict=True)
            print(f"ours against {name}: {spread([a / b for a, b in pairs])} times as fast")
    rate = corpus.tokens / statistics.median(seconds["ours"])
    hours = options.tokens / rate / 3600
    print(
        f"{options.tokens / 1e9:,.0f} B tokens: {hours:,.1f} core hours, "
        f"{hours / PODS / CORES:,.2f} hours on {PODS} pods of {CORES} cores"
    )


if __name__ == "__main__":
    main()
