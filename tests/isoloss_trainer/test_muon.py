"""Muon against torch's own, in parts of the flat vector, and through whole runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from isoloss_contract.records import OptimizerConfig, PointConfig
from isoloss_trainer.model import build_network
from isoloss_trainer.muon import MatrixStack, Muon, between, matrix_stacks, orthogonalised
from isoloss_trainer.optimizer import OptimizerState, time_constants
from isoloss_trainer.parameters import FlatParameters
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import (
    DEEPSEEK,
    LLAMA,
    QWEN3_MOE,
    SEQUENCE_LENGTH,
    train_task,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.test_learner import batches, point_run

MUON = OptimizerConfig(name="Muon", momentum=0.95, warmup_tokens=0, weight_decay=0.1)
FAMILIES = [LLAMA, DEEPSEEK, QWEN3_MOE]


def family(config: dict[str, Any]) -> str:
    return str(config["model_type"])


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
def test_a_matrix_is_orthogonalised_as_torch_does_it(shape: tuple[int, int]) -> None:
    from torch.optim import _muon

    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    theirs = _muon._zeropower_via_newtonschulz(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    (ours,) = orthogonalised(matrix[None], torch.bfloat16)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02)


def test_singular_values_come_close_to_one() -> None:
    """Of every matrix of a stack, tall or wide, small or large."""
    matrices = torch.randn((3, 16, 64), generator=torch.Generator().manual_seed(1))
    matrices *= torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    for stack in (matrices, matrices.mT):
        values = torch.linalg.svdvals(orthogonalised(stack, torch.float32))
        assert 0.6 < values.min() < values.max() < 1.3


def test_a_matrix_without_momentum_stays_where_it_is() -> None:
    """Such as that of an expert that no token has reached yet."""
    assert not orthogonalised(torch.zeros(2, 4, 8), torch.float32).any()


@pytest.mark.parametrize("config", FAMILIES, ids=family)
def test_muon_moves_every_matrix_of_the_layers_and_nothing_else(config: dict[str, Any]) -> None:
    """Embedding, head, norms and biases are AdamW's; together they are all."""
    network = build_network(config, seed=0)
    flat = FlatParameters(network, torch.float32, World())
    stacks = matrix_stacks(network, flat.offsets)
    named = flat.named(torch.arange(flat.size))
    matrices = [
        v for n, v in named.items() if v.dim() > 1 and "embed" not in n and "head" not in n
    ]
    of_muon = [range(stack.start, stack.stop) for stack in stacks]
    assert [(r.start, len(r)) for r in of_muon] == [(int(v.min()), v.numel()) for v in matrices]
    rest = between(stacks, slice(0, flat.size))
    covered = sorted([*((r.start, r.stop) for r in of_muon), *((s.start, s.stop) for s in rest)])
    assert (covered[0][0], covered[-1][1]) == (0, flat.size)
    assert all(before[1] == after[0] for before, after in pairwise(covered))


def test_experts_and_their_two_projections_are_matrices_of_their_own() -> None:
    network = build_network(QWEN3_MOE, seed=0)
    flat = FlatParameters(network, torch.float32, World())
    stacks = {s.start: s for s in matrix_stacks(network, flat.offsets)}
    name = next(name for name in flat.offsets if name.endswith("gate_up_proj"))
    experts, both, hidden = dict(network.named_parameters())[name].shape
    found = stacks[flat.offsets[name]]
    assert (found.count, found.rows, found.columns) == (2 * experts, both // 2, hidden)


def gradients(flat: FlatParameters, count: int) -> list[torch.Tensor]:
    """As of a model: nothing between the parameters."""
    random, found = torch.Generator().manual_seed(5), []
    for _ in range(count):
        vector = torch.zeros(flat.size)
        for view in flat.named(vector).values():
            view.copy_(torch.randn(view.shape, generator=random))
        found.append(vector)
    return found


def point_of(prepared: Prepared, **changes: Any) -> PointConfig:
    return train_task(prepared.manifest, prepared.uri, **changes).point


def test_steps_equal_those_of_torchs_muon_and_adamw(prepared: Prepared) -> None:
    """With torch's scale of updates for learning rates of AdamW."""
    optimizer = MUON.model_copy(update={"gradient_clip": 1e9})
    point = point_of(prepared, optimizer=optimizer)
    network, twin = build_network(LLAMA, seed=0), build_network(LLAMA, seed=0)
    flat = FlatParameters(network, torch.float32, World())
    state = OptimizerState.of(flat.master)
    stacks = matrix_stacks(network, flat.offsets)
    muon = Muon(stacks, slice(0, flat.size), lambda mine: mine, torch.bfloat16)
    weights = dict(twin.named_parameters())
    starts = {stack.start for stack in stacks}
    matrices = [weights[name] for name, start in flat.offsets.items() if start in starts]
    others = [weights[name] for name, start in flat.offsets.items() if start not in starts]
    both = (
        torch.optim.Muon(
            matrices, lr=3e-3, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=3e-3, weight_decay=0.1),
    )
    for number, gradient in enumerate(gradients(flat, 5), 1):
        for name, view in flat.named(gradient.clone()).items():
            weights[name].grad = view
        for theirs in both:
            theirs.step()
        state.step(gradient, point, number * 128, 128, muon=muon)
    for name, ours in flat.named(flat.master).items():
        torch.testing.assert_close(ours, weights[name].detach(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("config", FAMILIES, ids=family)
@pytest.mark.parametrize("processes", [2, 3])
def test_parts_of_the_vector_move_as_the_whole_does(
    prepared: Prepared, config: dict[str, Any], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a matrix, or a stack of them, lies across the border of two parts."""
    monkeypatch.setattr("isoloss_trainer.muon.ORTHOGONALISED", 3000)
    network = build_network(config, seed=0)
    flat = FlatParameters(network, torch.float32, World(0, processes))
    stacks = matrix_stacks(network, flat.offsets)
    (gradient,) = gradients(flat, 1)

    def moved(part: slice, join: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        random = torch.Generator().manual_seed(7)
        vectors = [torch.randn(flat.size, generator=random)[part].clone() for _ in range(2)]
        lookahead = gradient[part].clone()
        rates = {"decay": 0.9, "rate": 0.01, "weight_decay": 0.1}
        weights, momentum = vectors
        Muon(stacks, part, join, torch.float32).step(weights, lookahead, momentum, **rates)
        return [weights, momentum, lookahead]

    whole = moved(slice(0, flat.size), lambda mine: mine)
    for rank in range(processes):
        part = World(rank, processes).part(flat.size)
        found = moved(part, lambda _: whole[2])
        for ours, wanted in zip(found, whole, strict=True):
            torch.testing.assert_close(ours, wanted[part], rtol=1e-5, atol=1e-6)


def test_a_part_without_a_matrix_has_nothing_to_orthogonalise() -> None:
    stack = MatrixStack(start=128, count=2, rows=4, columns=8)
    for part in (slice(0, 128), slice(0, 64), slice(192, 256)):
        assert list(stack.touched(part)) == []
        assert between((stack,), part) == [slice(0, part.stop - part.start)]


@pytest.mark.parametrize("config", FAMILIES, ids=family)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_with_muon_learns(
    prepared: Prepared, config: dict[str, Any], precision: str
) -> None:
    """Half a nat within 60 steps; with AdamW alone the toy model takes about as many."""
    run = point_run(prepared, model=config, optimizer=MUON, precision=precision)
    steps = enumerate(batches(run, 60), 1)
    losses = [float(run.learner.step(b, n * run.batch_tokens).loss) for n, b in steps]
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


def test_momentum_is_stated_in_tokens(prepared: Prepared) -> None:
    point = point_of(prepared, optimizer=MUON)
    batch_tokens = point.batch_size * SEQUENCE_LENGTH
    assert time_constants(point).momentum_tokens == pytest.approx(19.4957 * batch_tokens, rel=1e-4)
    assert time_constants(point_of(prepared)).momentum_tokens is None
