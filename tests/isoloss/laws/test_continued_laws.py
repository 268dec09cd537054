"""Laws of runs that continue checkpoints say what is asked of a checkpoint: nothing is composed."""

from dataclasses import replace
from functools import cache

import pytest

from isoloss import laws as engine
from tests.support.synthetic_runs import synthetic_runs

OPTIONS = engine.FitOptions(bootstrap_samples=20)
PARAMS, FLOPS = 3e8, 2e19


@cache
def laws_of(start: engine.StartedFrom | None) -> engine.Laws:
    """The same runs, said to have begun so."""
    return engine.fit_laws([replace(run, started_from=start) for run in synthetic_runs()], OPTIONS)


def answered(laws: engine.Laws, **query: float) -> engine.Prediction:
    """The answer for a checkpoint."""
    asked = {"initial_loss": 3.2, "cpt_flops": FLOPS, "params": PARAMS, **query}
    found = engine.predict(laws, engine.PredictionQuery(**asked))  # type: ignore[arg-type]
    assert isinstance(found, engine.Prediction), found
    return found


def test_the_answer_is_that_of_the_laws_at_the_continuations_own_compute() -> None:
    laws = laws_of("Checkpoints")
    found = answered(laws)
    assert found.equivalent_flops is None
    assert found.total_flops.value == pytest.approx(FLOPS)
    assert (found.variants, found.composition) == ({}, None)
    asked = engine.PredictionQuery(total_flops=FLOPS, params=PARAMS)
    there = engine.predict(laws, asked)
    assert isinstance(there, engine.Prediction)
    assert found.learning_rate == there.learning_rate
    assert found.batch_size == there.batch_size
    assert any("no composition applies" in each for each in found.warnings)
    assert any("no composition applies" in each for each in answered(laws, batch_size=64).warnings)


def test_the_initial_loss_is_not_asked_for_the_past() -> None:
    """A checkpoint that is better than the laws allow, or worse than all seen, is continued all the same."""
    laws = laws_of("Checkpoints")
    rates = {answered(laws, initial_loss=loss).learning_rate.value for loss in (0.5, 3.2, 12.0)}
    assert len(rates) == 1


def test_laws_of_runs_from_scratch_are_composed_as_before() -> None:
    plain, message = answered(laws_of(None)), answered(laws_of("Scratch"))
    assert message.equivalent_flops is not None
    assert message.learning_rate == plain.learning_rate


def test_laws_keep_what_their_runs_began_with_and_say_it() -> None:
    laws = laws_of("Checkpoints")
    document = engine.laws_to_json(laws)
    assert document["laws"]["started_from"] == "Checkpoints"
    assert engine.laws_from_json(document).started_from == "Checkpoints"
    assert any("continue checkpoints" in each for each in laws.warnings)
    assert not any("continue checkpoints" in each for each in laws_of("Scratch").warnings)


def test_runs_from_scratch_and_continued_ones_are_not_one_law() -> None:
    first, *others = synthetic_runs()
    mixed = [replace(first, started_from="Checkpoints")]
    mixed += [replace(run, started_from="Scratch") for run in others]
    (refusal, *_) = engine.fit_laws(mixed, OPTIONS).refusals
    assert refusal.reason is engine.RefusalReason.MIXED_STARTS
