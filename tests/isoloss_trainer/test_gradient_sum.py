"""Gradients of several processes are summed bucket by bucket, in one order, while a backward pass still runs."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isoloss_trainer import parameters
from isoloss_trainer.gradient_sum import GradientSum, buckets
from isoloss_trainer.learner import Learner
from isoloss_trainer.model import LanguageModel, build_network
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3_MOE, SEQUENCE_LENGTH
from tests.isoloss_trainer.ranks import run_ranks
from tests.isoloss_trainer.test_shared_state import learn, point
from tests.support.warm_python import WarmPython

LARGEST = 1000
"""Elements of a bucket, so that these small models have many."""
SIZES = (40, 2500, 70, 900, 2)


class Recording(World):
    """One of two processes, whose sums are noted and never sent."""

    def start_sum_for(self, owner: int, tensor: torch.Tensor) -> None:
        sent.append((owner, tensor.clone()))


sent: list[tuple[int, torch.Tensor]] = []


class Layers(nn.Module):
    """Parameters of SIZES, used one after the other, as in a model."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(size)) for size in SIZES)

    def forward(self, skipped: int | None = None) -> torch.Tensor:
        found = torch.ones(())
        for number, weight in enumerate(self.weights):
            if number != skipped:
                found = (found * weight).mean() * 2
        return found


def flat(model: nn.Module, world: World) -> tuple[torch.Tensor, GradientSum, list[slice]]:
    """The gradients of `model` in one vector, their sum, and the stretches that were collected."""
    gradient, places, start = torch.zeros(4096), {}, 0
    for parameter in model.parameters():
        places[parameter] = slice(start, start + parameter.numel())
        parameter.grad = gradient[places[parameter]].view(parameter.shape)
        start += parameter.numel()
    collected: list[slice] = []
    sent.clear()
    return gradient, GradientSum(gradient, places, collected.append, world, LARGEST), collected


@pytest.mark.parametrize(("size", "processes"), [(4096, 2), (4096, 4), (128, 2), (10_240, 1)])
def test_buckets_cover_everything_once_from_the_end_each_within_one_part(
    size: int, processes: int
) -> None:
    found = buckets(size, processes, LARGEST)
    assert [i for bucket in found[::-1] for i in range(size)[bucket.stretch]] == list(range(size))
    for stretch, owner in found:
        part = World(owner, processes).part(size)
        assert part.start <= stretch.start < stretch.stop <= part.stop
        assert stretch.stop - stretch.start <= LARGEST


def test_buckets_leave_in_order_while_the_backward_pass_runs() -> None:
    """When the gradient of the second layer is there, those of later layers are on their way, and they are complete."""
    model = Layers()
    gradient, total, collected = flat(model, Recording(size=2))
    counts = []
    for weight in model.weights:
        weight.register_post_accumulate_grad_hook(lambda _: counts.append(len(sent)))
    with total.overlapping():
        model().backward()
    assert counts == sorted(counts)
    assert 0 < counts[-2] < len(sent)
    total.finish()
    wanted = buckets(len(gradient), 2, LARGEST)
    assert collected == [stretch for stretch, _ in wanted]
    assert [owner for owner, _ in sent] == [owner for _, owner in wanted]
    for (_, found), (stretch, _) in zip(sent, wanted, strict=True):
        assert torch.equal(found, gradient[stretch])


def test_a_bucket_waits_for_those_before_it() -> None:
    """Here the last layer is finished last."""
    model = Layers()
    _, total, _ = flat(model, Recording(size=2))
    with total.overlapping():
        for weight in model.weights[:-1]:
            weight.sum().backward()
            assert len(sent) == 1  # of padding alone
        model.weights[-1].sum().backward()
    total.finish()
    assert len(sent) == len(buckets(4096, 2, LARGEST))


@pytest.mark.parametrize("skipped", range(len(SIZES)))
def test_a_parameter_without_a_gradient_holds_up_nothing_for_good(skipped: int) -> None:
    """What it has from earlier micro-batches is summed in the end, in the same order."""
    model = Layers()
    gradient, total, collected = flat(model, Recording(size=2))
    model().backward()
    assert sent == []
    with total.overlapping():
        model(skipped).backward()
    total.finish()
    assert collected == [stretch for stretch, _ in buckets(len(gradient), 2, LARGEST)]
    assert torch.equal(torch.cat([found for _, found in sent[::-1]]), gradient)


def test_a_process_without_a_backward_pass_sends_as_much_as_the_others() -> None:
    """It had no sequence, or its memory refused in the middle: then the next attempt begins anew."""
    model = Layers()
    _, total, _ = flat(model, Recording(size=2))
    everything = len(buckets(4096, 2, LARGEST))
    total.finish()
    assert len(sent) == everything
    with total.overlapping():
        model.weights[-1].sum().backward()  # and no further
    total.finish()
    assert len(sent) == 2 * everything
    with total.overlapping():
        model().backward()
        assert len(sent) > 2 * everything
    total.finish()
    assert len(sent) == 3 * everything


def test_one_process_alone_collects_once_and_sends_nothing() -> None:
    model = Layers()
    _, total, collected = flat(model, World())
    with total.overlapping():
        model().backward()
    assert collected == []
    total.finish()
    assert collected == [slice(0, 4096)]


@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK], ids=lambda m: m["model_type"])
def test_gradients_of_a_compiled_body_are_sent_by_the_end_of_its_backward_pass(
    config: dict[str, Any],
) -> None:
    """Those of the head before it: the compiler hands over all of the body's gradients at once.

    In bfloat16, as on a GPU: older versions cannot compile the sum over experts that float32 falls back to.
    """
    model = LanguageModel(build_network(config, seed=0).to(torch.bfloat16), SEQUENCE_LENGTH)
    gradients = dict(model.network.named_parameters())
    gradient, places, start = torch.zeros(2**17, dtype=torch.bfloat16), {}, 0
    for parameter in gradients.values():
        places[parameter] = slice(start, start + parameter.numel())
        parameter.grad = gradient[places[parameter]].view(parameter.shape)
        start += parameter.numel()
    sent.clear()
    total = GradientSum(gradient, places, lambda _: None, Recording(size=2), LARGEST)
    model.body.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    at_head = []
    model.head.register_post_accumulate_grad_hook(lambda _: at_head.append(len(sent)))
    tokens = torch.arange(SEQUENCE_LENGTH).view(1, -1)
    with total.overlapping():
        loss, _ = model.summed_loss(tokens, tokens, 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
    total.finish()
    found = torch.cat([tensor for _, tensor in sent[::-1]])
    assert torch.equal(found, gradient)
    assert gradient.any()
    assert 0 < at_head[0] < len(sent)


def take_part(folder: Path) -> None:
    """One of several processes: learn the same over and over, each time in another WAY."""
    world = World.of_environment().joined()
    parameters.GradientSum = partial(GradientSum, largest=LARGEST)  # type: ignore[misc, assignment]
    task = json.loads((folder / "task.json").read_text())
    config = point(task["model"], task["precision"])
    found = {}
    for way in WAYS:
        learner = Learner(build_network(config.model, seed=0), config, world)
        if way == "at the end":
            for parameter in learner.model.network.parameters():
                parameter._post_accumulate_grad_hooks.clear()
        if way == "after a refusal" and learner.micro_batch > 1:
            if world.rank == 1:
                refuse_once(learner)
        else:
            learner.limit_micro_batch(1)
        facts = learn(learner, 1, 3)
        squares = learner.tensors()["weights"].double().square().sum().item()
        found[way] = [learner.micro_batch, facts, squares]
    (folder / f"found-{world.rank}.json").write_text(json.dumps(found))
    world.leave()


WAYS = ("overlapped", "overlapped again", "at the end", "after a refusal")


def refuse_once(learner: Learner) -> None:
    """As a device whose memory is full, where a backward pass is nearly at its end."""
    refusals = ["out of memory"]

    def refuse(_: torch.Tensor) -> None:
        if refusals:
            raise RuntimeError(refusals.pop())

    learner.model.network.get_input_embeddings().weight.register_hook(refuse)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "model", "precision"),
    [
        pytest.param(2, DEEPSEEK, "bf16", id="2, DeepSeek, bf16"),
        pytest.param(4, LLAMA, "float32", id="4, dense", marks=pytest.mark.whole),
        pytest.param(4, QWEN3_MOE, "bf16", id="4, Qwen3 MoE, bf16", marks=pytest.mark.whole),
    ],
)
def test_overlapped_sums_are_those_of_the_end_bit_by_bit(
    tmp_path: Path, python: WarmPython, processes: int, model: dict[str, Any], precision: str
) -> None:
    """Of the same buckets; also when they are taken again, with experts that no token was sent to, and in a step
    that one of two processes had no memory for at first."""
    (tmp_path / "task.json").write_text(json.dumps({"model": model, "precision": precision}))
    program = ["-m", "tests.isoloss_trainer.test_gradient_sum", str(tmp_path)]
    ends = run_ranks(python, program, processes)
    assert [end.returncode for end in ends] == [0] * processes, ends
    for rank in range(processes):
        found = json.loads((tmp_path / f"found-{rank}.json").read_text())
        assert set(found) == set(WAYS)
        assert all(each == found["overlapped"] for each in found.values())


if __name__ == "__main__":
    take_part(Path(sys.argv[1]))
