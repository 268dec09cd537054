"""Copies of a run cool down, and the run itself is the one that it would have been without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoloss_contract import layout
from isoloss_contract.records import (
    CooldownConfig,
    EvaluationConfig,
    OptimizerConfig,
    PointProgress,
    TrainTask,
    TrajectoryRow,
)
from isoloss_contract.store import Store
from isoloss_trainer.attempt import Reporter
from isoloss_trainer.evaluation import Loss, ValidationSet
from isoloss_trainer.learner import Learner, StepFacts, cooldown_factors
from isoloss_trainer.run import PointRun
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import Interrupted, Interruption
from tests.isoloss_trainer.builders import (
    DEEPSEEK,
    LLAMA,
    attempt,
    last_state,
    spoil_weights,
    stop_during_step,
    train_task,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.trained import rows, run, trajectory, undisturbed

BATCH_TOKENS = 4 * 32
CONSTANT = EvaluationConfig(first_tokens=512, per_decade=4, sequences_per_domain=8)
COOLDOWN = CooldownConfig(share=0.25, per_decade=2)
"""A third of the steps behind: after the evaluations at 512 and 1664 tokens, 4 and 13 steps, 1 and 4 more. The
warm-up of these runs is over after 128 tokens."""
COOLED_FIELDS = {"cooled_tokens", "cooled_loss", "cooled_loss_standard_error"}
OF_A_DOMAIN = {"cooled_loss", "cooled_standard_error"}


def task_with(
    prepared: Prepared, cooldown: CooldownConfig | None = COOLDOWN, **changes: Any
) -> TrainTask:
    given = {"optimizer": OptimizerConfig(warmup_tokens=128), **changes}
    evaluation = CONSTANT.model_copy(update={"cooldown": cooldown})
    return train_task(prepared.manifest, prepared.uri, evaluation=evaluation, **given)


def without_cooled(row: TrajectoryRow) -> dict[str, Any]:
    found = row.model_dump(exclude=COOLED_FIELDS)
    found["domains"] = {
        name: domain.model_dump(exclude=OF_A_DOMAIN) for name, domain in row.domains.items()
    }
    return found


# ------------------------------------------------------------------------------ the run itself


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": DEEPSEEK},
        {"precision": "bf16"},
        {"batch_size": 8},
    ],
    ids=["plain", "experts with biases", "bf16", "a larger batch"],
)
def test_cooldowns_change_no_bit_of_the_run(prepared: Prepared, changes: dict[str, Any]) -> None:
    alone = task_with(prepared, None, **changes)
    beside = task_with(prepared, **changes)
    run(alone)
    run(beside)
    assert [without_cooled(row) for row in rows(beside)] == [
        without_cooled(row) for row in rows(alone)
    ]
    assert any(row.cooled_loss for row in rows(beside))
    assert not any(row.cooled_tokens for row in rows(alone))
    assert last_state(Store(beside.store_uri), beside.point.key) == last_state(
        Store(alone.store_uri), alone.point.key
    )


def test_a_cooled_loss_is_that_of_a_run_that_decays_from_there(prepared: Prepared) -> None:
    """Computed a second time by hand: a run to the fork, the decayed steps, an evaluation."""
    run(task_with(prepared))
    (cooled,) = [row for row in rows(task_with(prepared)) if row.tokens == 1664]
    decayed = PointRun(
        attempt(task_with(prepared, None), PreparedData(prepared.data_uri, prepared.folder))
    )
    factors = {14: 0.875, 15: 0.625, 16: 0.375, 17: 0.125}
    for step in range(1, 18):
        batch = decayed.sequences.read((step - 1) * 4, 4)
        decayed.learner.step(batch, step * BATCH_TOKENS, factors.get(step, 1.0))
    decayed.state.step = 17
    row = decayed.final_trajectory()[-1]
    decayed.sequences.close()
    assert cooled.cooled_tokens == row.tokens == 17 * BATCH_TOKENS
    assert (cooled.cooled_loss, cooled.cooled_loss_standard_error) == (
        row.loss,
        row.loss_standard_error,
    )
    assert {name: domain.cooled_loss for name, domain in cooled.domains.items()} == {
        name: domain.loss for name, domain in row.domains.items()
    }


def test_a_cooldown_reads_what_the_run_reads_next(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after it: the run goes on with the same sequences, at its full rate."""
    seen: list[tuple[int, float, int]] = []
    original = Learner.step

    def noted(
        self: Learner, batch: torch.Tensor, tokens: int, rate_factor: float = 1.0
    ) -> StepFacts:
        seen.append((tokens // BATCH_TOKENS, rate_factor, hash(batch.numpy().tobytes())))
        return original(self, batch, tokens, rate_factor)

    monkeypatch.setattr(Learner, "step", noted)
    run(task_with(prepared))
    cooling = [(step, factor) for step, factor, _ in seen if factor != 1.0]
    assert cooling == [(5, 0.5), (14, 0.875), (15, 0.625), (16, 0.375), (17, 0.125)]
    assert [step for step, factor, _ in seen if factor == 1.0] == list(range(1, 17))
    texts = {step: text for step, factor, text in seen if factor == 1.0}
    assert all(texts[step] == text for step, factor, text in seen if factor != 1.0 and step <= 16)


def test_a_copy_that_diverges_has_no_cooled_loss_and_the_run_goes_on(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Learner.step

    def spoiling(
        self: Learner, batch: torch.Tensor, tokens: int, rate_factor: float = 1.0
    ) -> StepFacts:
        facts = original(self, batch, tokens, rate_factor)
        if rate_factor != 1.0:
            spoil_weights(self)
        return facts

    alone = task_with(prepared, None)
    run(alone)
    monkeypatch.setattr(Learner, "step", spoiling)
    result = run(task_with(prepared))
    found = rows(task_with(prepared))
    assert result.tokens == 2048
    assert (result.cooled_tokens, result.cooled_loss) == (17 * BATCH_TOKENS, None)
    assert [row.loss for row in found] == [row.loss for row in rows(alone)]
    assert [(row.cooled_tokens, row.cooled_loss) for row in found if row.cooled_tokens] == [
        (5 * BATCH_TOKENS, None),
        (17 * BATCH_TOKENS, None),
    ]


# ------------------------------------------------------------------------------ interruptions


@pytest.mark.parametrize("step", range(4, 10))
def test_a_stop_around_a_cooldown_changes_nothing(prepared: Prepared, step: int) -> None:
    """During the steps before it, in it (the fifth step taken) and after it."""
    task = task_with(prepared)
    wanted = undisturbed(task)
    with stop_during_step(step) as interruption, pytest.raises(Interrupted):
        run(task, interruption)
    run(task)
    assert trajectory(task) == wanted.trajectory
    assert last_state(Store(task.store_uri), task.point.key) == wanted.state


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=lambda model: model["model_type"])
@pytest.mark.parametrize("stops", [[15], [15, 2], [16, 1], [18]], ids=str)
def test_a_stopped_cooldown_goes_on_where_it_was(
    prepared: Prepared, stops: list[int], model: dict[str, Any]
) -> None:
    """Stopped during so many of an attempt's steps, of which the 15th to the 18th are the cooldown's."""
    task = task_with(prepared, model=model)
    wanted = undisturbed(task)
    taken = 0
    for step in stops:
        with stop_during_step(step) as interruption, pytest.raises(Interrupted, match="1664"):
            run(task, interruption)
        taken += step
    with stop_during_step(100) as interruption:
        run(task, interruption)
    assert interruption.steps == 16 + 1 + 4 - taken
    assert trajectory(task) == wanted.trajectory
    assert last_state(Store(task.store_uri), task.point.key) == wanted.state


def test_a_stopped_cooldown_leaves_nothing_behind_once_the_run_has_gone_on(
    prepared: Prepared,
) -> None:
    task = task_with(prepared)
    folder, store = layout.point_checkpoints(task.point.key), Store(task.store_uri)
    with stop_during_step(15) as interruption, pytest.raises(Interrupted):
        run(task, interruption)
    assert store.names(folder)[0] == "cooling-0000000013-0000000000001792"
    run(task)
    assert all(name.startswith("step-") for name in store.names(folder))


def test_a_broken_checkpoint_of_a_cooldown_starts_it_over(prepared: Prepared) -> None:
    task = task_with(prepared)
    wanted = undisturbed(task)
    with stop_during_step(15) as interruption, pytest.raises(Interrupted):
        run(task, interruption)
    folder = prepared.folder / layout.point_checkpoints(task.point.key)
    (file,) = folder.glob("cooling-*/*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    run(task)
    assert trajectory(task) == wanted.trajectory


def test_a_stop_in_the_evaluation_of_a_cooled_copy_changes_nothing(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_with(prepared)
    wanted = undisturbed(task)
    interruption, evaluate, calls = Interruption(), ValidationSet.evaluate, []

    def stopping(self: ValidationSet, *arguments: Any) -> tuple[Loss, dict[str, Loss]]:
        calls.append(1)
        interruption.requested = len(calls) == 3  # raw, averaged, cooled
        return evaluate(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ValidationSet, "evaluate", stopping)
        with pytest.raises(Interrupted, match="512 tokens"):
            run(task, interruption)
    run(task)
    assert trajectory(task) == wanted.trajectory


def test_a_stop_right_after_a_cooldown_keeps_what_the_copy_found_out(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the run is put back: the store has the step already, and not yet the row of its evaluation."""
    task = task_with(prepared)
    wanted = undisturbed(task)
    restore = Learner.restore
    with stop_during_step(100) as interruption:

        def stopping(self: Learner) -> None:
            restore(self)
            interruption.requested = interruption.steps == 18  # the last of the cooldown

        with monkeypatch.context() as patch:
            patch.setattr(Learner, "restore", stopping)
            with pytest.raises(Interrupted, match="1664 tokens"):
                run(task, interruption)
    with stop_during_step(100) as rest:
        run(task, rest)
    assert rest.steps == 16 + 1 + 4 - 18
    assert trajectory(task) == wanted.trajectory
    assert last_state(Store(task.store_uri), task.point.key) == wanted.state


def test_an_attempt_that_is_killed_in_a_cooldown_left_the_fork_in_the_store(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest is a third of the run: without that, it would cost what was trained before it, too."""
    task = task_with(prepared)
    wanted = undisturbed(task)
    original = Learner.step

    def killed(
        self: Learner, batch: torch.Tensor, tokens: int, rate_factor: float = 1.0
    ) -> StepFacts:
        if rate_factor == 0.375:
            raise ValueError("killed")
        return original(self, batch, tokens, rate_factor)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", killed)
        with pytest.raises(ValueError, match="killed"):
            run(task)
    names = Store(task.store_uri).names(layout.point_checkpoints(task.point.key))
    assert names[-1] == "step-0000000013"
    assert run(task).attempts == 2
    assert trajectory(task) == wanted.trajectory


@pytest.mark.parametrize("tokens", [600, 1664, 1800])
def test_a_continued_run_cools_down_as_one_that_was_longer_from_the_start(
    prepared: Prepared, tokens: int
) -> None:
    task = task_with(prepared)
    wanted = undisturbed(task)
    run(task.model_copy(update={"tokens": tokens}))
    run(task)
    assert trajectory(task) == wanted.trajectory


# ------------------------------------------------------------------------------ what is stated


def test_the_result_counts_the_tokens_of_cooldowns(prepared: Prepared) -> None:
    result = run(task_with(prepared))
    assert (result.tokens, result.cooldown_tokens) == (2048, 5 * BATCH_TOKENS)
    assert result.trained_tokens == 2048 + 5 * BATCH_TOKENS


def test_the_result_states_the_last_cooled_loss(prepared: Prepared) -> None:
    """That of the longest copy: the evaluation at the very end has none."""
    result = run(task_with(prepared))
    longest = rows(task_with(prepared))[-2]
    assert longest.cooled_loss is not None
    assert (result.cooled_tokens, result.cooled_loss) == (17 * BATCH_TOKENS, longest.cooled_loss)


def test_a_run_whose_first_evaluation_is_at_its_end_cools_down_once_from_there(
    prepared: Prepared,
) -> None:
    """As a probe of cooled laws does: 12 steps at a constant learning rate and 4 that decay."""
    evaluation = CONSTANT.model_copy(
        update={"first_tokens": 12 * BATCH_TOKENS, "cooldown": COOLDOWN}
    )
    task = train_task(
        prepared.manifest,
        prepared.uri,
        tokens=12 * BATCH_TOKENS,
        evaluation=evaluation,
        optimizer=OptimizerConfig(warmup_tokens=128),
    )
    result = run(task)
    (row,) = rows(task)
    assert (row.step, row.cooled_tokens) == (12, 16 * BATCH_TOKENS)
    assert (result.trained_tokens, result.cooled_tokens) == (16 * BATCH_TOKENS, 16 * BATCH_TOKENS)
    assert result.cooled_loss == row.cooled_loss
    assert row.cooled_loss is not None
    assert row.cooled_loss < (row.loss or 0.0)


def test_a_cooldown_is_progress(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator ends what reports the same tokens for an hour."""
    noted: list[PointProgress] = []
    note = Reporter.note

    def noting(self: Reporter, *arguments: Any) -> None:
        note(self, *arguments)
        noted.append(self._progress(None))

    monkeypatch.setattr(Reporter, "note", noting)
    run(task_with(prepared))
    trained = [progress.trained_tokens for progress in noted]
    assert trained == sorted(trained)
    assert {p.trained_tokens for p in noted if p.tokens == 1664} >= {
        1664 + BATCH_TOKENS * cooled for cooled in (1, 2, 3, 4, 5)
    }


# ------------------------------------------------------------------------------ shapes, keys


@pytest.mark.parametrize(
    ("shape", "share_of_the_rate"), [("Linear", 1 / 2), ("OneMinusSqrt", 1 / 3)]
)
@pytest.mark.parametrize("steps", [1, 10, 1000])
def test_the_rate_summed_over_a_cooldown_hardly_depends_on_the_batch_size(
    shape: Any, share_of_the_rate: float, steps: int
) -> None:
    """The integrals of 1 - x and 1 - sqrt(x)."""
    factors = cooldown_factors(CooldownConfig(shape=shape), steps)
    assert len(factors) == steps
    assert factors == sorted(factors, reverse=True)
    assert 0 < factors[-1] <= factors[0] < 1
    tolerance = 0.05 if steps == 1 else 0.01
    assert sum(factors) / steps == pytest.approx(share_of_the_rate, abs=tolerance)


def test_all_of_a_cooldown_is_part_of_a_points_key(prepared: Prepared) -> None:
    point = task_with(prepared, None, model=LLAMA).point.model_copy(
        update={"data_digest": "0" * 32}
    )
    keys = {
        point.model_copy(
            update={"evaluation": CONSTANT.model_copy(update={"cooldown": cooldown})}
        ).key
        for cooldown in (
            None,
            COOLDOWN,
            COOLDOWN.model_copy(update={"share": 0.2}),
            COOLDOWN.model_copy(update={"shape": "OneMinusSqrt"}),
            COOLDOWN.model_copy(update={"per_decade": 4}),
        )
    }
    assert len(keys) == 5
