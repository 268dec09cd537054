"""The sample tables that come with the package: what they are said to be, and honest about what made them."""

import csv
import io
from collections.abc import Sequence
from importlib.resources import files

import pytest

import isoloss
from isoloss import datasets
from isoloss.laws import Interval
from isoloss.validation import probes_of_runs
from tests.docs.samples import as_csv, probes
from tests.support.synthetic_runs import answered, synthetic_optimum, synthetic_runs


@pytest.fixture(scope="module")
def laws() -> isoloss.Laws:
    return isoloss.fit_laws(datasets.load_sample_runs().runs)


@pytest.fixture(scope="module")
def answer(laws: isoloss.Laws) -> isoloss.Prediction:
    return answered(laws, datasets.QUESTION)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def assert_same_table(committed: str, made: str) -> None:
    assert len(rows(committed)) == len(rows(made))
    for old, new in zip(rows(committed), rows(made), strict=True):
        numbers = ("loss", "learning_rate")
        assert [old[key] for key in old if key not in numbers] == [
            new[key] for key in new if key not in numbers
        ]
        for key in numbers:
            assert float(old[key]) == pytest.approx(float(new[key]), rel=1e-4), old["run"]


def test_both_tables_are_what_the_script_writes() -> None:
    assert_same_table(datasets.sample_text(datasets.RUNS), as_csv(synthetic_runs()))
    around = tuple(probes(datasets.load_sample_runs().runs))
    assert_same_table(datasets.sample_text(datasets.PROBES), as_csv(around))


def test_the_sample_runs_give_identified_laws(laws: isoloss.Laws) -> None:
    assert laws.status == "fitted"
    assert not laws.refusals
    level = laws.loss_compute.irreducible_loss_interval
    assert level is not None
    assert level.low < 1.7 < level.high  # as synthetic


def test_the_answer_for_the_sample_checkpoint_has_what_made_the_runs_in_its_intervals(
    answer: isoloss.Prediction,
) -> None:
    """The surface knows runs from scratch alone: variant `paper` is about one of that compute."""
    params = datasets.QUESTION.params
    rate, batch = synthetic_optimum(params, answer.total_flops.value / (6 * params))
    paper = answer.variants["paper"]
    assert inside(rate, paper.learning_rate)
    assert inside(batch, paper.batch_size)


def inside(value: float, interval: Interval) -> bool:
    return interval.low < value < interval.high


def test_the_sample_probes_confirm_the_answer_and_narrow_it(
    laws: isoloss.Laws, answer: isoloss.Prediction
) -> None:
    table = files(datasets) / datasets.PROBES
    found = judged(laws, isoloss.read_runs(str(table)).runs)
    assert found.validated
    assert found.refined is not None
    assert width(found.refined.learning_rate) < width(answer.learning_rate)


def width(interval: Interval) -> float:
    return interval.high / interval.low


def judged(laws: isoloss.Laws, runs: Sequence[isoloss.Run]) -> isoloss.Validation:
    around, tokens = probes_of_runs(
        runs, measured_noise=laws.run_noise, residual=laws.surface.residual_rms
    )
    flops = 6 * datasets.QUESTION.params * tokens
    found = isoloss.validate(laws, datasets.QUESTION, around, flops)
    assert isinstance(found, isoloss.Validation)
    return found
