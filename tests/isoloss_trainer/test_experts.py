"""Experts as grouped products: equal to computing expert by expert, and without copies that are kept."""

import copy
from typing import Any

import pytest
import torch

from isoloss_trainer import experts
from isoloss_trainer.model import LanguageModel, build_network
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3_MOE, VOCABULARY
from tests.isoloss_trainer.families import FAMILIES

LENGTH = 12
MIXTURES = [DEEPSEEK, QWEN3_MOE]


def tokens_of(seed: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(seed))


def hidden_of(network: Any, tokens: torch.Tensor) -> torch.Tensor:
    states: torch.Tensor = network.base_model(tokens, use_cache=False).last_hidden_state
    return states


@pytest.mark.parametrize("config", MIXTURES, ids=lambda c: c["model_type"])
def test_outputs_and_gradients_equal_those_of_one_expert_after_the_other(
    config: dict[str, Any],
) -> None:
    ours = build_network(config, seed=0)
    theirs = copy.deepcopy(ours)
    LanguageModel(ours, LENGTH)
    theirs.set_experts_implementation("eager")
    assert ours.config._experts_implementation == experts.NAME
    tokens = tokens_of(0)
    found, wanted = hidden_of(ours, tokens), hidden_of(theirs, tokens)
    torch.testing.assert_close(found, wanted)
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * towards).sum().backward()
    (wanted * towards).sum().backward()
    for (name, parameter), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if other.grad is None:
            assert parameter.grad is None, name
        else:
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_an_expert_without_tokens_has_gradients_of_zero() -> None:
    layer = experts_of(build_network(QWEN3_MOE, seed=0))
    states = torch.randn(5, QWEN3_MOE["hidden_size"], requires_grad=True)
    numbers = torch.tensor([[0, 2]]).repeat(5, 1)
    experts.grouped_experts(layer, states, numbers, torch.ones(5, 2)).sum().backward()
    for matrix in (layer.gate_up_proj, layer.down_proj):
        used = matrix.grad.flatten(1).abs().sum(1) > 0
        assert used.tolist() == [number in (0, 2) for number in range(layer.num_experts)]


def test_no_copies_of_tokens_are_kept_for_the_backward_pass() -> None:
    """They would be the most of a layer's memory: each token is copied for every expert that it goes to."""
    layer = experts_of(build_network(QWEN3_MOE, seed=0))
    tokens, width, active = 64, QWEN3_MOE["hidden_size"], 2
    states = torch.randn(tokens, width, requires_grad=True)
    numbers = torch.randn(tokens, layer.num_experts).topk(active).indices
    kept: list[tuple[int, ...]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        experts.grouped_experts(layer, states, numbers, torch.ones(tokens, active))
    assert (tokens, width) in kept
    assert (tokens * active, width) not in kept


def test_rows_are_summed_in_float32_compiled_or_not() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(8 * 6, 4, generator=generator).to(torch.bfloat16)
    inverse = torch.randperm(8 * 6, generator=generator)
    compiled = torch.compile(experts._sums, backend="aot_eager", fullgraph=True)
    exact = rows[inverse].double().view(8, 6, 4).sum(1).to(torch.bfloat16)
    assert torch.equal(experts._sums(rows, inverse, 6), exact)
    assert torch.equal(compiled(rows, inverse, 6), exact)


def test_experts_that_are_more_than_two_products_with_a_gate_keep_the_implementation_of_transformers() -> (
    None
):
    """GPT-OSS has biases and transposed weights."""
    mixture = build_network({"model_type": "gpt_oss", **FAMILIES["gpt_oss"]}, seed=0)
    for network in (mixture, build_network(LLAMA, seed=0)):
        before = network.config._experts_implementation
        LanguageModel(network, LENGTH)
        assert network.config._experts_implementation == before


def test_a_gpu_without_grouped_products_keeps_the_implementation_of_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = build_network(DEEPSEEK, seed=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert not experts.are_plain(network)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert experts.are_plain(network)


def experts_of(network: Any) -> Any:
    return next(module for module in network.modules() if hasattr(module, "is_concatenated"))
