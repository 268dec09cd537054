"""A checkpoint with another tokenizer is measured on the very text of the sweep's sequences."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from isoloss_contract import layout
from isoloss_contract.records import DataManifest, DomainSource
from isoloss_contract.store import Store
from isoloss_trainer.evaluation import DomainSequences
from isoloss_trainer.foreign_tokens import foreign_text
from isoloss_trainer.prepare import prepare
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import Interruption
from isoloss_trainer.tokenization import TextTokenizer, load_tokenizer
from isoloss_trainer.world import World
from tests.isoloss_trainer import builders

ALONE = World()
MEDIAN_BYTES = 120
CHEAP, DEAR = "abcde", "vwxyz"


def lognormal_documents(count: int) -> list[str]:
    """Lengths as those of web pages; long documents use letters that cost less per byte."""
    draw = random.Random(5)
    texts = []
    for _ in range(count):
        size = int(MEDIAN_BYTES * draw.lognormvariate(0, 1.3)) + 2
        letters = CHEAP if size > MEDIAN_BYTES else DEAR
        texts.append("".join(draw.choice(letters + "  ") for _ in range(size - 1)) + ".")
    return texts


class ByteCosts:
    """A model that pays a fixed price per byte, whatever the tokenizer: 1 for CHEAP, 1.3 for DEAR."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        prices = [0.0] * tokenizer.vocabulary_size
        for piece, number in tokenizer.tokenizer.get_vocab().items():
            if number != tokenizer.end_token:
                prices[number] = sum(1.3 if letter in DEAR else 1.0 for letter in piece)
        self._prices = torch.tensor(prices)

    def token_losses(self, _inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self._prices[targets]


@pytest.fixture(scope="module")
def lognormal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreparedData]:
    """Prepared data of documents with log-normal lengths, and the corpus' folder."""
    folder = tmp_path_factory.mktemp("lognormal")
    texts = lognormal_documents(3000)
    builders.write_json_lines(folder / "x.jsonl", texts)
    builders.make_tokenizer(folder / "tokenizer", texts[:300])
    builders.make_tokenizer(folder / "theirs", texts[:300], vocabulary=290)
    source = DomainSource(name="text", uri=f"{builders.uri(folder)}/x.jsonl", text_field="text")
    task = builders.prepare_task(
        builders.uri(folder),
        builders.uri(folder / "store"),
        domains=(source,),
        validation_documents_per_thousand=300,
        sequence_length=64,
    )
    prepare(task, folder, Interruption(), builders.quiet())
    path = layout.data_manifest(task.config.key)
    manifest = Store(task.store_uri).read_record(path, DataManifest)
    return folder, PreparedData(f"{task.store_uri}/data/{manifest.prepare_key}", folder)


def test_long_documents_weigh_as_much_as_in_the_sweeps_own_sequences(
    lognormal: tuple[Path, PreparedData],
) -> None:
    folder, data = lognormal
    ours, theirs = (
        load_tokenizer(builders.uri(folder / name)) for name in ("tokenizer", "theirs")
    )
    sequences = DomainSequences.of(data.validation_stream("text"), ours.end_token, 64, 150)
    prices = ByteCosts(ours).token_losses(
        torch.empty(0), torch.from_numpy(sequences.tokens[:, 1:].astype(np.int64))
    )
    foreign = foreign_text(theirs, data, "text", sequences, longest=10_000)
    loss = foreign.loss(ByteCosts(theirs).token_losses, ALONE, 512)
    assert loss.value == pytest.approx(float(prices.mean()), abs=5e-3)


def test_documents_are_told_apart_by_their_texts_and_not_by_end_tokens(
    lognormal: tuple[Path, PreparedData],
) -> None:
    """A tokenizer may read a text as an end token: no later document moves."""
    folder, data = lognormal
    theirs = load_tokenizer(builders.uri(folder / "theirs"))
    stream = np.array(data.validation_stream("text"))
    ours = DomainSequences.of(stream, data.manifest.end_token, 64, 40)
    wanted = foreign_text(theirs, data, "text", ours, 10_000)
    stream[5:2000:50] = data.manifest.end_token
    disturbed = DomainSequences.of(stream, data.manifest.end_token, 64, 40)
    found = foreign_text(theirs, data, "text", disturbed, 10_000)
    for one, other in zip(found.groups, wanted.groups, strict=True):
        assert np.array_equal(one.tokens, other.tokens)
    assert np.array_equal(found.sizes, wanted.sizes)


def test_every_byte_of_the_sweeps_sequences_is_read_once(
    lognormal: tuple[Path, PreparedData],
) -> None:
    folder, data = lognormal
    theirs = load_tokenizer(builders.uri(folder / "theirs"))
    stream, lengths = data.validation_stream("text"), data.validation_lengths("text")
    ours = DomainSequences.of(stream, data.manifest.end_token, 64, 40)
    for longest in (10_000, 20):
        foreign = foreign_text(theirs, data, "text", ours, longest)
        read = sum(
            (group.shares * _lengths_of(theirs, group.tokens[:, 1:].ravel())).sum()
            for group in foreign.groups
        )
        wanted = sum(lengths[start + 1 : start + 65].sum() for start in ours.starts)
        assert read == pytest.approx(float(wanted))
        assert max(group.width for group in foreign.groups) <= longest
        assert foreign.sizes.sum() == len(ours.documents)


def _lengths_of(tokenizer: TextTokenizer, targets: np.ndarray) -> np.ndarray:
    """Bytes of targets of ASCII text."""
    pieces = [tokenizer.tokenizer.id_to_token(int(token)) for token in targets]
    return np.array(
        [1 if piece == builders.END else len(piece) for piece in pieces], dtype=np.float64
    )


@pytest.mark.parametrize("text", ["plain words", " spaces  \n\n ", "naïve – 漢字 🙂 e\u0301", ""])
def test_token_lengths_add_up_to_the_text(lognormal: tuple[Path, PreparedData], text: str) -> None:
    folder, _data = lognormal
    tokenizer = load_tokenizer(builders.uri(folder / "tokenizer"))
    (measured,) = tokenizer.encode_closed([text])
    assert measured.lengths.sum() == len(text.encode()) + 1
    assert measured.tokens[-1] == tokenizer.end_token
    assert (measured.tokens[:-1] == tokenizer.encode([text])[0]).all()
