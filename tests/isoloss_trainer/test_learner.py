"""A training step against torch's own optimizer, transformers' own loss, and itself
at other micro-batches, precisions and numbers of processes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from isoloss_contract import layout
from isoloss_contract.footprint import Fit
from isoloss_contract.records import OptimizerConfig, Outcome
from isoloss_trainer import learner as learning
from isoloss_trainer.checkpoint import OtherLayout
from isoloss_trainer.learner import (
    Learner,
    after_refusals,
    local,
    second_moment_decay,
    time_constants,
    weight_decay,
)
from isoloss_trainer.model import LanguageModel, build_network
from isoloss_trainer.run import PointRun
from isoloss_trainer.termination import (
    Interrupted,
    Interruption,
    MemoryRefused,
    OutOfMemory,
    is_out_of_memory,
)
from isoloss_trainer.train import train
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import (
    DEEPSEEK,
    LLAMA,
    QWEN3_MOE,
    SEQUENCE_LENGTH,
    attempt,
    last_state,
    part_of,
    quiet,
    run_of,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.test_shared_state import leave_state, take_state

ALONE = World()


def point_run(prepared: Prepared, **changes: Any) -> PointRun:
    data = prepared.data
    return run_of(attempt(prepared.train_task(**changes), data))


def batches(run: PointRun, count: int) -> list[torch.Tensor]:
    size = run.point.batch_size
    return [run.sequences.read(i * size, size) for i in range(count)]


class TransformersLoop:
    """A plain training loop: transformers' own loss, torch's own AdamW and clipping."""

    def __init__(self, run: PointRun) -> None:
        point = run.point
        self.clip = point.optimizer.gradient_clip
        self.network = build_network(point.model, seed=point.seed)
        weights = self.network.parameters()
        self.optimizer = torch.optim.AdamW(weights, lr=point.learning_rate, weight_decay=0.01)
        modules = self.network.modules()
        routers = [m for m in modules if hasattr(m, "e_score_correction_bias")]
        self.biases = [router.e_score_correction_bias for router in routers]

    def step(self, batch: torch.Tensor) -> float:
        loss = self.network(batch, labels=batch, use_cache=False).loss  # it shifts the labels
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        self.optimizer.step()
        return float(loss.detach())

    def take_biases(self, run: PointRun) -> None:
        """Those that our routers use; transformers never updates them."""
        for bias, ours in zip(self.biases, run.learner.balance.biases.values(), strict=True):
            bias.copy_(ours)


def flat(network: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach()


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=lambda m: m["model_type"])
def test_each_step_equals_the_transformers_loops(
    prepared: Prepared, model: dict[str, Any]
) -> None:
    """Loss and change of the weights, every step from the same weights.

    Without restarts, two runs with experts diverge from each other once rounding decides a tie
    between two experts for one token: by up to 0.1 nats at some steps, and both are right.
    """
    run = point_run(prepared, model=model, optimizer=OptimizerConfig(warmup_tokens=0))
    theirs = TransformersLoop(run)
    for number, batch in enumerate(batches(run, 50), 1):
        theirs.take_biases(run)
        before = flat(theirs.network)
        found = float(run.learner.step(batch, number * run.batch_tokens).loss)
        assert found == pytest.approx(theirs.step(batch), abs=1e-4)
        after = flat(run.learner.model.network)
        assert (flat(theirs.network) - after).norm() < 1e-3 * (after - before).norm()
        torch.nn.utils.vector_to_parameters(after.clone(), theirs.network.parameters())


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK, QWEN3_MOE], ids=lambda m: m["model_type"])
def test_micro_batches_change_nothing_but_rounding(
    prepared: Prepared, model: dict[str, Any]
) -> None:
    """Also with experts, whose balance must not depend on how a batch is split, and with a rest: three and one."""
    states = []
    for sequences in (4, 3, 1):
        run = point_run(prepared, model=model)
        run.learner.limit_micro_batch(sequences)
        for number, batch in enumerate(batches(run, 5), 1):
            run.learner.step(batch, number * run.batch_tokens)
        states.append(part_of(run.learner))
    assert all((states[0] - state).abs().max() < 2e-4 for state in states[1:])


def test_bfloat16_compute_keeps_float32_weights_and_follows_float32(prepared: Prepared) -> None:
    losses = {}
    for precision in ("float32", "bf16"):
        run = point_run(prepared, precision=precision)
        steps = enumerate(batches(run, 40), 1)
        losses[precision] = [
            float(run.learner.step(batch, number * run.batch_tokens).loss)
            for number, batch in steps
        ]
        assert part_of(run.learner).dtype == torch.float32
    gap = np.abs(np.subtract(losses["bf16"], losses["float32"]))
    assert 0 < gap.max() < 0.03


def test_bfloat16_experts_reach_the_grouped_product(prepared: Prepared) -> None:
    """transformers uses it under the compiler only for bfloat16 weights, aligned to 16 bytes."""
    run = point_run(prepared, model=DEEPSEEK, precision="bf16")
    (experts,) = (m for n, m in run.learner.model.named_modules() if n.endswith(".experts"))
    found: list[torch.Tensor] = []
    experts.register_forward_pre_hook(lambda module, _: found.extend(module.parameters()))
    (batch,) = batches(run, 1)
    run.learner.step(batch, 128)
    assert found
    assert all(p.dtype == torch.bfloat16 and p.data_ptr() % 16 == 0 for p in found)


@pytest.mark.parametrize(
    ("model", "recompute"),
    [
        pytest.param(LLAMA, False, id="llama-kept"),
        pytest.param(LLAMA, True, id="llama-recomputed", marks=pytest.mark.whole),
        pytest.param(DEEPSEEK, False, id="deepseek_v3-kept", marks=pytest.mark.whole),
        pytest.param(DEEPSEEK, True, id="deepseek_v3-recomputed"),
        pytest.param(QWEN3_MOE, False, id="qwen3_moe-kept"),
        pytest.param(QWEN3_MOE, True, id="qwen3_moe-recomputed"),
    ],
)
def test_each_layer_compiles_as_one_graph_with_the_same_gradients(
    prepared: Prepared, model: dict[str, Any], recompute: bool
) -> None:
    runs = [point_run(prepared, model=model, precision="bf16") for _ in range(2)]
    # The balance loss of a layer that is computed again leaves the graph: Learner compiles that in parts.
    whole = not (recompute and runs[1].learner.balance.has_loss)
    assert whole or model is QWEN3_MOE
    runs[1].learner.model.prepare_layers(
        recompute=recompute, compiled=True, whole=whole, backend="aot_eager"
    )
    (batch,) = batches(runs[0], 1)
    losses = [float(run.learner.step(batch, 128).loss) for run in runs]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    first, second = (part_of(run.learner) for run in runs)
    torch.testing.assert_close(first, second, rtol=0, atol=2e-3)
    if runs[0].learner.balance:
        loads = [run.learner.balance.take_load() for run in runs]
        assert loads[0] == pytest.approx(loads[1], rel=0.05)
    torch._dynamo.reset()


# ------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK, QWEN3_MOE], ids=lambda m: m["model_type"])
def test_layers_computed_twice_give_the_same_bits_and_count_once(
    prepared: Prepared, model: dict[str, Any]
) -> None:
    runs = [point_run(prepared, model=model) for _ in range(2)]
    runs[1].learner.start_recomputing()
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    layer = runs[1].learner.model.body.layers[0]
    layer.self_attn.register_forward_pre_hook(count)
    for number, batch in enumerate(batches(runs[0], 3), 1):
        facts = [run.learner.step(batch, number * run.batch_tokens) for run in runs]
        assert float(facts[0].loss) == float(facts[1].loss)
    assert calls == 6
    first, second = (run.learner.tensors() for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0].learner.balance.take_load() == runs[1].learner.balance.take_load()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory"),
    ],
    ids=lambda error: str(error)[:30] or type(error).__name__,
)
def test_refused_memory_is_recognised(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_other_errors_are_not_taken_for_refused_memory() -> None:
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    assert not is_out_of_memory(OSError("bucket 'out of memory' not found"))


def test_a_kill_by_the_host_halves_the_micro_batch_on_a_cpu_only(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = prepared.train_task(batch_size=64).point
    monkeypatch.setattr(learning, "_fitting", lambda *_: Fit(64, recompute=False))
    network = build_network(LLAMA)
    assert learning.first_guess(network, point, World(), 2).sequences == 16
    assert learning.first_guess(network, point, World(device="cuda:0"), 2).sequences == 64


def test_each_attempt_of_several_pods_tries_half_of_what_the_one_before_was_refused(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher of one pod, which starts its processes again, tells them how often memory was refused."""
    point = prepared.train_task(batch_size=8).point
    monkeypatch.setattr(learning, "_fitting", lambda *_: Fit(4, recompute=False))
    monkeypatch.setattr(World, "largest", lambda _self, number: number)

    def tried(**place: Any) -> list[Fit | None]:
        return [learning.first_try(None, point, World(size=2, **place), n) for n in range(5)]

    halves = [Fit(4, False), Fit(2, False), Fit(1, False), Fit(1, True), None]
    assert tried(device="cuda:0") == halves
    assert tried(device="cuda:0", has_address=True) == [Fit(4, False)] * 5
    assert tried() == [*halves[:3], Fit(1, False), Fit(1, False)]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_computing_with_averaged_weights_exchanges_them_for_a_while(
    prepared: Prepared, precision: str
) -> None:
    """Also where what computes is a copy in another type, which was made before."""
    learner = point_run(prepared, precision=precision).learner
    tokens = torch.arange(SEQUENCE_LENGTH + 1)[None]
    for name, tensor in learner.tensors().items():
        if name.startswith("averaged_weights."):
            local(tensor).mul_(2)
    raw, averaged = part_of(learner), part_of(learner, "averaged_weights")
    losses = [learner.token_losses(tokens[:, :-1], tokens[:, 1:])]
    with learner.averaged():
        assert torch.equal(part_of(learner), averaged)
        assert torch.equal(part_of(learner, "averaged_weights"), raw)
        losses.append(learner.token_losses(tokens[:, :-1], tokens[:, 1:]))
    losses.append(learner.token_losses(tokens[:, :-1], tokens[:, 1:]))
    assert torch.equal(part_of(learner), raw)
    assert torch.equal(losses[0], losses[2])
    assert not torch.equal(losses[0], losses[1])


def take_step(learner: Learner, batch: torch.Tensor) -> object:
    return learner.step(batch, 128)


def read_losses(learner: Learner, batch: torch.Tensor) -> object:
    return learner.token_losses(batch[:, :-1], batch[:, 1:])


@pytest.mark.parametrize(
    ("owner", "method", "call"),
    [
        pytest.param(LanguageModel, "hidden", take_step, id="gradients"),
        pytest.param(torch.optim.AdamW, "step", take_step, id="weights that change"),
        pytest.param(LanguageModel, "hidden", read_losses, id="an evaluation"),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_refused_memory_asks_for_another_start(
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    call: Callable[[Learner, torch.Tensor], object],
    precision: str,
) -> None:
    """Other processes wait for this one's part, and some weights may have taken the step."""
    run = point_run(prepared, precision=precision)
    (batch,) = batches(run, 1)

    def refuse(*_: Any) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(owner, method, refuse)
    with pytest.raises(MemoryRefused, match="a micro-batch of 4 does not fit"):
        call(run.learner, batch)


def test_each_refusal_halves_what_is_tried_and_recomputes_at_last() -> None:
    guess = Fit(6, recompute=False)
    tried = [after_refusals(guess, refusals) for refusals in range(5)]
    assert tried == [guess, Fit(3, False), Fit(1, False), Fit(1, True), None]
    assert after_refusals(Fit(2, recompute=True), 1) == Fit(1, True)


def test_a_model_too_large_for_one_sequence_gets_a_result(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless one of fewer tokens is there, which stays."""
    released = {"release_checkpoints_when_done": True}
    task = prepared.train_task(tokens=512, task=released)
    with monkeypatch.context() as patch:
        patch.setenv("ISOLOSS_REFUSALS", "20")
        with pytest.raises(OutOfMemory, match="one sequence of 32 tokens does not fit"):
            train(task, prepared.folder, Interruption(), quiet())
    result = prepared.result(task)
    assert result.outcome is Outcome.OUT_OF_MEMORY
    assert (result.tokens, result.evaluations) == (0, 0)
    train(task, prepared.folder, Interruption(), quiet())
    before = prepared.result(task)
    monkeypatch.setenv("ISOLOSS_REFUSALS", "20")
    longer = task.model_copy(update={"tokens": 1024})
    with pytest.raises(OutOfMemory):
        train(longer, prepared.folder, Interruption(), quiet())
    assert prepared.result(task) == before


# ------------------------------------------------------------------------------------ learning


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK, QWEN3_MOE], ids=lambda m: m["model_type"])
def test_a_stop_comes_through_between_micro_batches(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    """What the step has computed by then is forgotten, and the run ends as if it had not been stopped."""
    options = {"model": model, "task": {"micro_batch_halvings": 2}}
    task = prepared.train_task(**options)
    store = prepared.store
    train(task, prepared.folder, Interruption(), quiet())
    wanted = last_state(store, task.point.key), store.read(layout.point_trajectory(task.point.key))
    store.remove(layout.point_folder(task.point.key))
    interruption, original, computed = Interruption(), LanguageModel.summed_loss, []

    def counted(self: LanguageModel, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        computed.append(1)
        interruption.requested = len(computed) == 4 * 5 + 2
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "summed_loss", counted)
        with pytest.raises(Interrupted, match=f"saved at {5 * 128} tokens"):
            train(task, prepared.folder, interruption, quiet())
    assert len(computed) == 4 * 5 + 2
    train(task, prepared.folder, Interruption(), quiet())
    found = last_state(store, task.point.key), store.read(layout.point_trajectory(task.point.key))
    assert found == wanted


def test_biases_move_towards_underloaded_experts(prepared: Prepared) -> None:
    run = point_run(prepared, model=DEEPSEEK)
    (batch,) = batches(run, 1)
    learner = run.learner
    counts: list[torch.Tensor] = []
    original = learner.balance.finish_step

    def look() -> None:
        counts.extend(count.clone() for count in learner.balance.counts)
        original()

    learner.balance.finish_step = look  # type: ignore[method-assign]
    learner.step(batch, 128)
    (count,), (bias,) = counts, learner.balance.biases.values()
    assert count.sum() == 4 * SEQUENCE_LENGTH * 2
    assert torch.equal(torch.sign(bias), torch.sign(count.mean() - count))


def test_evaluating_counts_no_load_and_moves_no_bias(prepared: Prepared) -> None:
    run = point_run(prepared, model=DEEPSEEK)
    run.final_trajectory()
    assert all(not count.any() for count in run.learner.balance.counts)


# ---------------------------------------------------------------------------- several processes


def test_averaged_weights_route_by_averaged_biases(prepared: Prepared) -> None:
    run = point_run(prepared, model=DEEPSEEK)
    learner = run.learner
    (bias,) = learner.balance.biases.values()
    mean = bias.clone()
    for number, batch in enumerate(batches(run, 5), 1):
        tokens = number * run.batch_tokens
        learner.step(batch, tokens)
        share = -math.expm1(-run.batch_tokens / (0.1 * tokens))
        mean += share * (bias - mean)
    raw = bias.clone()
    assert not torch.equal(raw, mean)
    with learner.averaged():
        torch.testing.assert_close(bias, mean)
    assert torch.equal(bias, raw)
    (name,) = learner.balance.biases
    assert f"averaged.{name}" in learner.tensors()


@pytest.mark.parametrize(
    ("one", "other"), [(LLAMA, DEEPSEEK), (LLAMA, {**LLAMA, "intermediate_size": 96})]
)
def test_the_tensors_of_another_model_are_refused_by_name(
    prepared: Prepared, tmp_path: Path, one: dict[str, Any], other: dict[str, Any]
) -> None:
    leave_state(point_run(prepared, model=one).learner, tmp_path)
    learner = point_run(prepared, model=other).learner
    with pytest.raises(OtherLayout, match=r"model\.layers\.[01]\..*start over") as caught:
        take_state(learner, tmp_path)
    assert caught.value.field == "podTemplate"


def test_tensors_are_restored_by_name_whatever_the_order_of_layers(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as another version of transformers may build them in."""
    run = point_run(prepared, model=DEEPSEEK)
    for number, batch in enumerate(batches(run, 2), 1):
        run.learner.step(batch, number * run.batch_tokens)
    leave_state(run.learner, tmp_path)
    original = torch.nn.Module.named_parameters

    def reversed_order(self: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        return reversed(list(original(self, *arguments, **options)))

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Module, "named_parameters", reversed_order)
        other = point_run(prepared, model=DEEPSEEK, seed=1)
    take_state(other.learner, tmp_path)
    (batch,) = batches(run, 1)
    ours, theirs = (r.learner.step(batch, 384) for r in (run, other))
    assert float(ours.loss) == pytest.approx(float(theirs.loss), abs=1e-6)
    found = other.learner.tensors()
    assert list(found) != list(run.learner.tensors())
    for name, tensor in run.learner.tensors().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)


# --------------------------------------------------------------------------------- the optimizer


class NoReading(TorchDispatchMode):
    """Fails where a number is read from a tensor, as `item` does: on an accelerator that waits for it."""

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("model", "precision"), [(LLAMA, "float32"), (LLAMA, "bf16")], ids=["float32", "bf16"]
)
def test_a_step_reads_nothing_from_the_device(
    prepared: Prepared, model: dict[str, Any], precision: str
) -> None:
    """What it found out is read later, for many steps at once."""
    run = point_run(prepared, model=model, precision=precision)
    (batch,) = batches(run, 1)
    with NoReading():
        facts = run.learner.step(batch, run.batch_tokens)
        with pytest.raises(AssertionError):
            facts.loss.item()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_pinned_beforehand_is_what_checkpoints_are_copied_to(prepared: Prepared) -> None:
    world, task = World(device="cuda:0"), prepared.train_task()
    learner = Learner(build_network(LLAMA, seed=0), task.point, world)
    reserved = {name: local(tensor).data_ptr() for name, tensor in learner.on_host().items()}
    assert all(local(tensor).is_pinned() for tensor in learner.on_host().values())
    assert {
        name: local(tensor).data_ptr() for name, tensor in learner.copied().items()
    } == reserved


@pytest.mark.parametrize(
    ("model", "precision", "compiled"),
    [(LLAMA, "float32", True), (DEEPSEEK, "bf16", True), (DEEPSEEK, "float32", False)],
)
def test_experts_in_float32_are_not_compiled(
    prepared: Prepared, model: dict[str, Any], precision: str, compiled: bool
) -> None:
    """transformers 5.17 has no backward pass for them that the compiler knows; nothing is compiled on a CPU."""
    learner = point_run(prepared, model=model, precision=precision).learner
    assert not learner.is_compiled
    learner.world = World(device="cuda:0")
    assert learner.is_compiled == compiled


def test_time_constants_in_tokens_are_the_same_at_every_batch_size(prepared: Prepared) -> None:
    in_tokens = OptimizerConfig(second_moment_tokens=50_000, weight_decay_tokens=10_000)
    for changes in ({}, {"batch_size": 16}, {"learning_rate": 1e-4}):
        point = prepared.train_task(optimizer=in_tokens, **changes).point
        found = time_constants(point)
        assert found.second_moment_tokens == pytest.approx(50_000)
        assert found.weight_decay_tokens == pytest.approx(1e4)
        kept = 1 - point.learning_rate * weight_decay(point)
        steps = 1e4 / (point.batch_size * SEQUENCE_LENGTH)
        assert kept**steps == pytest.approx(1 / math.e)
        assert 0 < second_moment_decay(point) < 1


def test_constants_per_step_are_stated_in_tokens(prepared: Prepared) -> None:
    """As an average keeps 1/e of itself over one."""
    decay = 1 - math.exp(-0.01)
    optimizer = OptimizerConfig(beta1=0.0, beta2=math.exp(-0.01), weight_decay=decay / 1e-3)
    point = prepared.train_task(optimizer=optimizer, learning_rate=1e-3).point
    found = time_constants(point)
    assert found.first_moment_tokens is None
    assert found.second_moment_tokens == pytest.approx(100 * 4 * SEQUENCE_LENGTH)
    assert found.weight_decay_tokens == pytest.approx(100 * 4 * SEQUENCE_LENGTH)


def test_a_step_states_loss_offset_and_norm(prepared: Prepared) -> None:
    run = point_run(prepared)
    theirs = TransformersLoop(run)
    (batch,) = batches(run, 1)
    logits = theirs.network(batch[:, :-1], use_cache=False).logits
    offset = float(logits.detach().logsumexp(-1).mean())
    loss = theirs.network(batch, labels=batch, use_cache=False).loss
    loss.backward()
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in theirs.network.parameters()]))
    found = run.learner.step(batch, 128)
    assert [float(fact) for fact in found] == pytest.approx(
        [float(loss.detach()), offset, norm], rel=1e-4
    )


def test_a_penalty_keeps_offsets_small_and_is_no_part_of_the_loss(prepared: Prepared) -> None:
    runs = [point_run(prepared, optimizer=OptimizerConfig(z_loss=z)) for z in (0.0, 0.1)]
    first: list[float] = []
    offsets = []
    for run in runs:
        facts = [run.learner.step(b, i * 128) for i, b in enumerate(batches(run, 30), 1)]
        first.append(float(facts[0].loss))
        offsets.append(abs(float(facts[-1].offset)))
    assert first[0] == first[1]
    assert offsets[1] < 0.9 * offsets[0]
