"""Validation losses are exact, on fixed sequences, with errors that respect documents."""

import numpy as np
import pytest
import torch

from isoloss_trainer import evaluation
from isoloss_trainer.model import LanguageModel, build_network
from isoloss_trainer.termination import BadData
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, MIXTURE, SEQUENCE_LENGTH
from tests.isoloss_trainer.conftest import Prepared

ALONE = World()


@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK], ids=lambda c: c["model_type"])
def test_losses_agree_with_transformers_in_float64(prepared: Prepared, config: dict) -> None:  # type: ignore[type-arg]
    data = prepared.data
    validation = evaluation.ValidationSet(data, MIXTURE, 16)
    network = build_network(config, seed=0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)  # away from the uniform answer of fresh weights
    model = LanguageModel(network, SEQUENCE_LENGTH)
    _, domains = validation.evaluate(model.token_losses, ALONE, 4)
    reference = build_network(config, seed=0).double()
    reference.load_state_dict(network.state_dict())
    reference.set_attn_implementation("eager")
    reference.set_experts_implementation("eager")
    for name, sequences in validation.domains.items():
        tokens = torch.from_numpy(sequences.tokens.astype(np.int64))
        with torch.no_grad():
            logits = reference(tokens[:, :-1], use_cache=False).logits
        wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        assert domains[name].value == pytest.approx(float(wanted), abs=1e-5)


def test_the_batch_size_of_an_evaluation_does_not_matter(prepared: Prepared) -> None:
    data = prepared.data
    validation = evaluation.ValidationSet(data, MIXTURE, 10)
    model = LanguageModel(build_network(LLAMA, seed=0), SEQUENCE_LENGTH)
    losses = [validation.evaluate(model.token_losses, ALONE, size)[0].value for size in (1, 3, 64)]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)


def test_sequences_are_spread_over_the_whole_stream() -> None:
    stream = np.arange(1001, dtype=np.uint32)
    few = evaluation.DomainSequences.of(stream, end_token=5000, length=10, limit=4)
    assert few.tokens[:, 0].tolist() == [0, 250, 500, 750]
    assert few.tokens.shape == (4, 11)
    everything = evaluation.DomainSequences.of(stream, end_token=5000, length=10, limit=1000)
    assert everything.tokens[:, 0].tolist() == list(range(0, 1000, 10))


def test_documents_begin_after_end_tokens() -> None:
    stream = np.array([1, 9, 1, 1, 9, 1, 1, 1, 1], dtype=np.uint32)
    sequences = evaluation.DomainSequences.of(stream, end_token=9, length=4, limit=2)
    # Targets 9 1 1 9 | 1 1 1 1: the end token itself belongs to the document it ends.
    assert sequences.documents.tolist() == [0, 1, 1, 1, 2, 2, 2, 2]


def test_a_stream_shorter_than_a_sequence_is_refused() -> None:
    with pytest.raises(BadData):
        evaluation.DomainSequences.of(np.zeros(10, np.uint32), end_token=9, length=10, limit=1)


def document_loss(losses: np.ndarray, documents: np.ndarray) -> evaluation.Loss:
    counts = np.bincount(documents).astype(np.float64)
    return evaluation.ratio_loss(np.bincount(documents, losses), counts)


def test_errors_are_clustered_by_document() -> None:
    """Where all tokens of a document agree, it counts once however long it is."""
    random = np.random.default_rng(0)
    means = random.normal(3.0, 1.0, 400)
    documents = np.repeat(np.arange(400), 50)
    loss = document_loss(means[documents], documents)
    assert loss.standard_error == pytest.approx(1.0 / np.sqrt(400), rel=0.1)


def test_the_error_bars_cover_the_true_loss() -> None:
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(300):
        sizes = random.integers(5, 80, 60)
        documents = np.repeat(np.arange(60), sizes)
        values = random.normal(3.0, 0.5, 60)[documents] + random.normal(0, 1, len(documents))
        loss = document_loss(values, documents)
        assert loss.standard_error is not None
        inside += abs(loss.value - 3.0) < 2 * loss.standard_error
    assert 0.90 < inside / 300 < 0.99


def test_targets_count_by_their_shares_and_what_pads_a_sequence_not_at_all() -> None:
    tokens = np.array([[9, 2, 3, 0], [9, 5, 4, 6]], dtype=np.uint32)
    shares = np.array([0.5, 1.0, 0.0, 1.0, 0.25, 1.0])
    group = evaluation.Sequences(tokens, np.array([0, 1, 0, 1, 0, 1]), shares)
    text = evaluation.DomainText((group,), np.array([2.0, 5.0]))

    def look_up(_inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.where(targets == 0, torch.inf, targets.float())

    sums = np.array([0.5 * 2 + 0.25 * 4, 3.0 + 5.0 + 6.0])
    assert text.loss(look_up, ALONE, 3) == evaluation.ratio_loss(sums, text.sizes)


def test_one_document_gives_no_standard_error() -> None:
    assert document_loss(np.ones(5), np.zeros(5, np.int64)) == evaluation.Loss(1.0, None)


def test_mixed_losses_are_weighted_and_errors_add_in_quadrature() -> None:
    domains = {"a": evaluation.Loss(2.0, 0.3), "b": evaluation.Loss(4.0, 0.4)}
    mixed = evaluation.mixed_loss(domains, {"a": 0.5, "b": 0.5})
    assert mixed.value == 3.0
    assert mixed.standard_error == pytest.approx(0.25)
    assert (
        evaluation.mixed_loss(
            {**domains, "b": evaluation.Loss(4.0, None)}, {"a": 0.5, "b": 0.5}
        ).standard_error
        is None
    )
