"""The benchmark of continued runs: its judgements on planted worlds, and its training for real, once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.measured_optimum import loss_at
from benchmarks.transfer import scores
from benchmarks.transfer.design import (
    BRIEF,
    FULL,
    LARGE,
    SMALL,
    Checkpoint,
    Design,
    Grid,
    Place,
    Size,
)
from benchmarks.transfer.judging import optimum
from benchmarks.transfer.measuring import Continued, Measured, grown, measure
from benchmarks.transfer.rules import RULES, answers_at, equivalent_flops
from benchmarks.transfer.scores import (
    by_checkpoint,
    calibrated,
    cases,
    composition_error,
    fit,
    folds,
    is_new,
    registered,
    score_at_batches,
    score_controls,
    score_engine,
    score_rule,
    shifted,
)
from benchmarks.transfer.table import tables
from isoloss.laws import Run
from tests.support.planted import Planted

# --------------------------------------------------------------------------------------- grids


def test_a_grid_grows_on_the_side_of_its_best_run_and_ends_at_two_sequences() -> None:
    grid = Grid((-8, -6), (1, 3))
    assert grid.widened(Place(-8, 2), (5, 5)) == Grid((-9, -6), (1, 3))
    assert grid.widened(Place(-6, 3), (5, 5)) == Grid((-8, -5), (1, 4))
    assert grid.widened(Place(-7, 1), (5, 5)) == grid
    assert grid.widened(Place(-8, 2), (3, 3)) == grid


def bowl(rate: float, batch: float) -> Mapping[Place, float]:
    """Losses on a 5 x 4 grid around an optimum, with the ridge of small batches."""
    found = {}
    for place in Grid((-10, -6), (1, 4)).places():
        x, y = np.log(place.rate / rate), np.log(place.batch / batch)
        found[place] = 3.0 + 0.03 * x**2 + 0.02 * y**2 - 0.02 * x * y
    return found


def test_the_measured_optimum_is_the_planted_one_and_its_regret_the_planted_loss() -> None:
    found = optimum(bowl(3e-3, 5.0))
    assert found.inside
    assert np.exp(found.vertex) == pytest.approx([3e-3, 5.0], rel=1e-6)
    assert found.regret(np.log(6e-3), np.log(5.0)) == pytest.approx(0.03 * np.log(2) ** 2)


@pytest.mark.parametrize(("rate", "batch"), [(3e-4, 5.0), (3e-3, 100.0)])
def test_an_optimum_beyond_the_grid_is_not_inside(rate: float, batch: float) -> None:
    assert not optimum(bowl(rate, batch)).inside


def test_the_stated_error_of_an_optimum_is_the_scatter_over_draws_of_noise() -> None:
    rng = np.random.default_rng(0)
    exact = bowl(3e-3, 5.0)
    draws = [
        optimum({p: v + 0.002 * rng.standard_normal() for p, v in exact.items()})
        for _ in range(300)
    ]
    scatter = np.std([draw.vertex for draw in draws], axis=0)
    stated = np.sqrt(np.mean([draw.errors**2 for draw in draws], axis=0))
    assert stated == pytest.approx(scatter, rel=0.25)


def test_nine_runs_are_needed_for_a_quadratic() -> None:
    few = dict(list(bowl(3e-3, 5.0).items())[:8])
    with pytest.raises(ValueError, match="8 runs reached these tokens"):
        optimum(few)


def run(params: float, place: Place, tokens: np.ndarray, losses: np.ndarray) -> Run:
    return Run(f"{params}-{place}", params, place.batch, 64, place.rate, tokens, losses)


def test_a_run_that_ended_early_has_no_loss_beyond_its_end() -> None:
    ended = run(1e8, Place(-9, 7), np.array([1e9, 2e9]), np.array([3.0, 2.8]))
    assert loss_at(ended, 1.4142135e9) == pytest.approx(2.9)
    assert loss_at(ended, 2.1e9) == float("inf")


def test_a_grid_is_trained_once_and_grows_until_the_optimum_is_inside() -> None:
    trained: list[Place] = []

    def train(place: Place) -> Run:
        trained.append(place)
        x, y = np.log(place.rate / 2**-9.5), np.log(place.batch / 2**3.2)
        loss = 3.0 + 0.05 * x**2 + 0.05 * y**2
        return run(1e8, place, np.array([1e5, 2e5]), np.array([loss + 0.2, loss]))

    runs = grown(Grid((-8, -6), (1, 3)), (6, 5), (200_000,), train)
    assert len(trained) == len(set(trained)) == len(runs)
    assert optimum({place: run.losses[-1] for place, run in runs.items()}).inside
    assert min(place.i for place in runs) == -10


# -------------------------------------------------------------------------------- planted worlds

TWO = (
    replace(SMALL, scratch_grid=Grid((-12, -8), (5, 9))),
    replace(LARGE, scratch_grid=Grid((-12, -8), (5, 9))),
)
PARAMS = {"small": 1e8, "large": 3e8}
SURFACE = Planted(size_coefficient=800.0, token_coefficient=900.0)
RAW_OVER_EQUIVALENT = 8.0
"""Of these worlds' checkpoints: they were trained on text that helps little."""


@dataclass(frozen=True)
class World:
    """Continued runs want what a run from scratch of the same total wants, times `factor` in LR."""

    factor: float = 1.0

    def trained(self, size: Size, place: Place, before: float, tokens: float) -> Run:
        """Losses at up to `tokens` after `before`; from scratch where that is 0."""
        n, at = PARAMS[size.name], np.geomspace(tokens / 60, tokens, 12)
        factor = self.factor if before else 1.0
        losses = [SURFACE.loss(n, before + d, place.batch, place.rate / factor) for d in at]
        return run(n, place, at, np.array(losses))

    def measured(self) -> Measured:
        """Two sizes, four checkpoints of each, two budgets."""
        design = replace(
            FULL,
            sizes=TWO,
            scratch_tokens=30_000_000_000,
            texts=("other", "same"),
            pretraining_tokens=(8 * 10**9, 40 * 10**9),
            budgets=(3_000_000_000, 8_000_000_000),
        )
        scratch = {
            size.name: {
                place: self.trained(size, place, 0.0, design.scratch_tokens)
                for place in size.scratch_grid.places()
            }
            for size in TWO
        }
        return Measured(design, scratch, tuple(map(self._continued, design.checkpoints)))

    def _continued(self, checkpoint: Checkpoint) -> Continued:
        size, before = checkpoint.size, checkpoint.tokens / RAW_OVER_EQUIVALENT
        # The loss that the frontier reaches with as much compute: what the paper's inversion assumes.
        best, tokens = SURFACE.best_size(6.0 * PARAMS[size.name] * before)
        rate, batch = SURFACE.rate(best, tokens), SURFACE.batch(best, tokens)
        loss = SURFACE.loss(best, tokens, batch, rate)
        runs = {
            place: self.trained(size, place, before, 8e9)
            for place in Grid((-12, -7), (5, 9)).places()
        }
        return Continued(checkpoint, loss, 0.001, runs)


@pytest.fixture(scope="module")
def exact() -> Measured:
    return World().measured()


def regrets(scores: list) -> float:
    return float(np.mean([score.regret for score in scores]))


def test_where_the_papers_composition_is_exact_it_does_best(exact: Measured) -> None:
    laws, found = fit(exact), cases(exact)
    assert len(found) == 16
    cost = {
        name: regrets(score_rule(laws, found, rule, "surface")) for name, rule in RULES.items()
    }
    assert cost["paper"] < 0.5 * cost["A"]
    assert cost["paper"] < 0.5 * cost["B"]
    assert cost["paper"] < 0.0005
    scores = score_engine(laws, found, "surface")
    assert len(scores) >= 12  # the others are too far from the sweep
    assert max(abs(e) for s in scores for e in s.log_errors) < 0.3


def test_at_a_batch_size_that_is_given_the_exact_composition_does_best_too(
    exact: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "BATCHES", (64.0, 128.0, 256.0))
    laws, found = fit(exact), cases(exact)
    paper, faded = (score_at_batches(laws, found, c) for c in ("Paper", "Measured"))
    assert len(paper) == len(faded) >= 10
    assert regrets(paper) < 0.001
    assert regrets(paper) < 0.5 * regrets(faded)
    assert min(score.regret for score in faded) >= 0.0


def test_a_factor_that_all_continued_runs_share_is_learned_from_the_others() -> None:
    """The factor is found out of sample, and counts as the composition's error, not the laws'."""
    measured = World(factor=1.6).measured()
    laws, found = fit(measured), cases(measured)
    paper = score_rule(laws, found, RULES["paper"], "surface")
    moved = shifted(laws, found, "surface", by_checkpoint)
    assert np.mean([s.log_errors[0] for s in paper]) == pytest.approx(-np.log(1.6), abs=0.1)
    assert abs(np.mean([s.log_errors[0] for s in moved])) < 0.05
    assert regrets(moved) < 0.3 * regrets(paper)
    controls = score_controls(laws, measured, found, "surface")
    assert controls
    rate, batch = composition_error(paper, controls)
    assert rate == pytest.approx(np.log(1.6), abs=0.1)
    assert batch < 0.2


def test_a_sibling_corrects_a_factor_that_both_sizes_share_and_no_other_checkpoint_tells() -> None:
    measured = World(factor=1.6).measured()
    laws = fit(measured)
    answers = score_engine(laws, cases(measured), "surface")
    found = calibrated(answers, "small", "large")
    assert len(found["as answered"]) == len(found["sibling"]) >= 4
    assert regrets(found["sibling"]) < 0.3 * regrets(found["as answered"])
    for before, batch_alone in zip(found["as answered"], found["sibling, B alone"], strict=True):
        assert batch_alone.log_errors[0] == before.log_errors[0]
    large = [s for s in answers if s.case.checkpoint.size.name == "large"]
    assert not calibrated(large, "small", "large")["sibling"], "there is none"


def test_the_registered_rule_is_its_formula_and_is_judged_on_no_case_it_was_found_on(
    exact: Measured,
) -> None:
    laws, found = fit(exact), cases(exact)
    papers = score_rule(laws, found, RULES["paper"], "surface")
    rules = registered(laws, found)
    assert len(papers) == len(rules["registered"]) == 12  # the others are too far from the sweep
    for paper, rule in zip(papers, rules["registered"], strict=True):
        case = rule.case
        share = case.cpt_flops / paper.total_flops
        assert rule.log_errors[0] - paper.log_errors[0] == pytest.approx(0.5 * np.log(share))
        at_end = answers_at(laws, case.flops_per_token * 3e10, case.params)["surface"]
        batch = at_end.batch_size.value * (case.sweep_loss / case.initial_loss) ** 1.9
        assert rule.log_errors[1] + case.measured.vertex[1] == pytest.approx(np.log(batch))
    known = replace(found[0], tokens=53_349.0)
    assert found[0].checkpoint.size.name == "small"
    assert is_new(found[0])
    assert not is_new(known)
    decayed = replace(known.checkpoint, ending="decayed")
    assert is_new(replace(known, checkpoint=decayed))


def test_folds_never_learn_from_what_they_judge(exact: Measured) -> None:
    found = cases(exact)
    parts = list(folds(found, by_checkpoint))
    assert len(parts) == 8
    for others, inside in parts:
        assert len(others) + len(inside) == len(found)
        assert not {by_checkpoint(c) for c in others} & {by_checkpoint(c) for c in inside}


def test_a_loss_at_or_below_the_irreducible_one_has_no_equivalent_compute(
    exact: Measured,
) -> None:
    laws = fit(exact)
    irreducible = laws.loss_compute.irreducible_loss
    assert irreducible is not None
    assert equivalent_flops(laws, irreducible) is None
    assert equivalent_flops(laws, irreducible + 1.0) is not None


@pytest.mark.whole
def test_the_table_has_a_row_for_every_case_and_rule(exact: Measured) -> None:
    text = "\n".join(tables(exact))
    assert text.count("| small | other |") == text.count("| large | same |") == 4 + 2
    for name in (*RULES, "control: from scratch", "shifted, checkpoint left out"):
        assert text.count(f"\n| {name} |") == 2
    assert "0 of 16 cases are left out" in text


# ----------------------------------------------------------------------------------- for real


def test_the_brief_design_is_a_part_of_the_full_one() -> None:
    """Its runs are not trained again when the full benchmark follows in the same folder."""
    assert BRIEF.budgets == FULL.budgets
    assert BRIEF.pretraining == FULL.pretraining
    assert {c.name for c in BRIEF.checkpoints} < {c.name for c in FULL.checkpoints}


@pytest.mark.slow
def test_a_second_call_trains_nothing_and_measures_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.transfer.texts import HELD_OUT_PER_THOUSAND
    from benchmarks.transfer.training import Workshop
    from isoloss_contract.records import DomainSource, PrepareConfig, PrepareTask
    from isoloss_trainer.termination import Interruption
    from tests.isoloss_trainer.builders import documents, make_tokenizer, write_json_lines

    torch.set_num_threads(1)
    texts = documents(600)
    domains = ("target", "before", "other")
    for k, name in enumerate(domains):
        write_json_lines(tmp_path / f"{name}.jsonl", texts[k::3])
    make_tokenizer(tmp_path / "tokenizer", texts[:60])
    corpus = PrepareTask(
        config=PrepareConfig(
            tokenizer=f"file://{tmp_path}/tokenizer",
            sequence_length=64,
            domains=tuple(
                DomainSource(name=n, uri=f"file://{tmp_path}/{n}.jsonl", text_field="text")
                for n in domains
            ),
            validation_documents_per_thousand=2 * HELD_OUT_PER_THOUSAND,
        ),
        store_uri=f"file://{tmp_path}/store",
    )
    tiny = Size("tiny", 16, 2, Grid((-9, -8), (4, 5)), Grid((-9, -9), (4, 4)))
    design = Design(
        sizes=(tiny,),
        scratch_tokens=17_000,
        lines=(2, 2),
        texts=("half",),
        pretraining_tokens=(2_048, 4_096),
        pretraining=Place(-8, 4),
        budgets=(9_487,),
        per_decade=4,
        validation_sequences=4,
        longer=(Checkpoint(tiny, "half", 8_192),),
    )
    workshop = Workshop(design, tmp_path, corpus, Interruption())

    def all_runs() -> Measured:
        return measure(workshop, lambda _line: None)

    first = all_runs()
    endings = [(c.checkpoint.tokens, c.checkpoint.ending) for c in first.continued]
    assert endings == [
        (2_048, "averaged"),
        (4_096, "averaged"),
        (4_096, "decayed"),
        (8_192, "averaged"),
    ]
    assert first.continued[0].initial_loss > first.continued[1].initial_loss
    results = sorted((tmp_path / "store" / "points").glob("*/result.json"))
    written = [os.stat(path).st_mtime_ns for path in results]
    again = all_runs()
    assert [os.stat(path).st_mtime_ns for path in results] == written
    # From scratch, pre-training once, continued from three checkpoints, and from one's decayed and raw weights.
    assert len(results) == 4 + 1 + 3 * 4 + 2 * 4
    for one, other in zip(first.continued, again.continued, strict=True):
        assert one.initial_loss == other.initial_loss
        for place, found in one.runs.items():
            assert np.array_equal(found.losses, other.runs[place].losses)
    shutil.rmtree(tmp_path / "checkpoints" / "tiny-half-4096-raw")
    with pytest.raises(RuntimeError, match="tiny-half-4096-raw: its pre-training run is at 8,192"):
        workshop.provide(Checkpoint(tiny, "half", 4_096, "raw"))
