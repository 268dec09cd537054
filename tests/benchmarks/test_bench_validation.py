"""The benchmark of refined answers: planted losses are judged as what they are, and time left is told from what ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.measured_optimum import quadratic_optimum
from benchmarks.point_trainer import PointTrainer
from benchmarks.transfer.design import Grid
from benchmarks.transfer.design import Place as Exponents
from benchmarks.validation.courses import Course, Courses
from benchmarks.validation.design import OWN, Lattice, Shift
from benchmarks.validation.judging import (
    Case,
    Question,
    Standing,
    ToldNoise,
    budget,
    judged,
    losses_by_place,
    noise_between_seeds,
    standing,
    summary,
    truth,
    validated,
    without,
)
from benchmarks.validation.measuring import Measured, Probed, grown
from benchmarks.validation.running import Pace
from benchmarks.validation.table import tables
from benchmarks.validation.training import ProbePlan
from isoloss.laws import Laws, Prediction, PredictionQuery, Run, loss_curvature, predict
from isoloss.validation import Place, probes_of_runs, validate
from isoloss_contract.records import DomainSource, PrepareConfig, PrepareTask
from isoloss_operator.planning.probes import probe_places
from isoloss_trainer.interruption import Interruption
from tests.isoloss_trainer.builders import documents, make_tokenizer, train_task, write_json_lines
from tests.support.planted_laws import fitted_laws

TOKENS, SHARE = 2e10, 0.3
FLOPS_PER_TOKEN = 6 * 3e8
QUERY = PredictionQuery(initial_loss=2.75, cpt_tokens=TOKENS, params=3e8)
SEEDS = (0, 1, 2)
NOISE = 0.0002
"""Nats: the planted laws' valley is so flat that a factor of three in the learning rate loses 0.012."""
TOLD = ToldNoise(stated=NOISE)


@pytest.fixture(scope="module")
def question() -> Question:
    laws: Laws = fitted_laws()
    answer = predict(laws, QUERY)
    assert isinstance(answer, Prediction)
    return Question(laws, QUERY, answer, SHARE * TOKENS * FLOPS_PER_TOKEN)


def run(place: Place, tokens: float, loss: float, *, diverged: bool = False) -> Run:
    return Run(
        name=f"{place}",
        params=3e8,
        batch_size=float(place.batch_size),
        sequence_length=2048,
        learning_rate=place.learning_rate,
        tokens=np.array([tokens / 2, tokens]),
        losses=np.array([loss + 0.1, loss]),
        diverged=diverged,
        finished=True,
    )


@pytest.fixture(scope="module")
def lattice(question: Question) -> Lattice:
    answer = question.answer
    return Lattice(Place(answer.learning_rate.value, round(answer.batch_size.value)), 2.0)


GRID = Grid((-2, 3), (-2, 2), lowest_batch=-8)


def bowl(
    question: Question,
    lattice: Lattice,
    factors: tuple[float, float],
    tokens: float,
    *,
    seed: int = 0,
    noise: float = 0.0,
) -> dict[Place, Run]:
    """A grid's runs whose optimum is at `factors` times the laws' answer."""
    rng = np.random.default_rng([seed, int(tokens)])
    origin = np.log([lattice.centre.learning_rate, lattice.centre.batch_size])
    curvature = loss_curvature(question.laws)
    found = {}
    for point in GRID.places():
        place = lattice.at(point.i, point.j)
        x = np.log([place.learning_rate, place.batch_size]) - origin - np.log(factors)
        loss = 2.5 + 0.5 * float(x @ curvature @ x) + noise * rng.standard_normal()
        found[place] = run(place, tokens, loss)
    return found


def ends(
    question: Question, lattice: Lattice, factors: tuple[float, float] = (1.0, 1.0)
) -> dict[int, dict[Place, Run]]:
    return {
        seed: bowl(question, lattice, factors, TOKENS, seed=seed, noise=NOISE) for seed in SEEDS
    }


def probes(
    question: Question, lattice: Lattice, factors: tuple[float, float]
) -> dict[int, dict[Place, Run]]:
    """Probes whose optimum, carried to the budget, is at `factors`."""
    rate, batch = np.array(factors) / np.exp(question.moves().mean)
    return {
        seed: bowl(question, lattice, (rate, batch), SHARE * TOKENS, seed=seed, noise=NOISE)
        for seed in SEEDS
    }


def cross(lattice: Lattice, i: int = 0, j: int = 0) -> tuple[Place, ...]:
    return lattice.cross(Exponents(i, j))


# ----------------------------------------------------------------------------------------- places


def test_a_cross_of_the_lattice_is_what_the_operator_probes() -> None:
    centre = probe_places(1.5054e-3, 4.0, 2.0)[0]
    assert set(Lattice(centre, 2.0).cross(Exponents(0, 0))) == set(
        probe_places(1.5054e-3, 4.0, 2.0)
    )


def test_batch_sizes_end_at_one_sequence() -> None:
    assert Lattice(Place(1e-3, 4), 2.0).first_grid().lowest_batch == -2
    assert Lattice(Place(1e-3, 1), 2.0).first_grid().batches == (0, 1)


def test_the_finer_grid_lies_half_steps_about_the_optimum() -> None:
    found = Lattice(Place(1e-3, 16), 2.0).finer(np.log([1e-3, 32.0]))
    assert {place.batch_size for place in found} == {23, 32, 45}
    assert {place.learning_rate for place in found} == {0.0007071, 1e-3, 0.001414}


def test_only_places_with_four_neighbours_are_inner_and_the_answer_is_none() -> None:
    found = list(Lattice(Place(1e-3, 16), 2.0).interior(Grid((-1, 2), (-1, 2))))
    assert found == [Exponents(0, 1), Exponents(1, 0), Exponents(1, 1)]


def test_a_grid_grows_where_its_lowest_run_lies_on_the_edge() -> None:
    lattice, grid = Lattice(Place(1e-3, 16), 2.0), Grid((-1, 1), (-1, 1))

    def losses(best: Exponents) -> dict[int, dict[Place, Run]]:
        runs = {}
        for point in grid.places():
            place = lattice.at(point.i, point.j)
            distance = (point.i - best.i) ** 2 + (point.j - best.j) ** 2
            runs[place] = run(place, TOKENS, 3.0 + 0.01 * distance)
        return {0: runs}

    assert grown(grid, lattice, losses(Exponents(0, 0))) == grid
    assert grown(grid, lattice, losses(Exponents(1, 0))) == Grid((-1, 2), (-1, 1))
    assert grown(grid, lattice, losses(Exponents(-1, 1))) == Grid((-2, 1), (-1, 2))


# ------------------------------------------------------------------------------------------ truth


def test_the_stated_error_of_a_regret_is_its_scatter_over_draws_of_noise() -> None:
    rng = np.random.default_rng(0)
    points = np.array([[x, y] for x in range(-2, 3) for y in range(-2, 3)]) * 0.5
    exact = 0.05 * points[:, 0] ** 2 + 0.05 * points[:, 1] ** 2
    draws = [
        quadratic_optimum(points, exact + 0.001 * rng.standard_normal(25)) for _ in range(300)
    ]
    scatter = np.std([draw.regret(1.0, 0.5) for draw in draws])
    stated = np.sqrt(np.mean([draw.regret_error(1.0, 0.5) ** 2 for draw in draws]))
    assert stated == pytest.approx(scatter, rel=0.25)


def test_two_places_alike_differ_by_nothing_for_sure() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((20, 2))
    found = quadratic_optimum(
        points, 0.1 * (points**2).sum(axis=1) + 0.01 * rng.standard_normal(20)
    )
    assert found.difference_error(points[0], points[0]) == 0.0
    assert found.difference_error(points[0], points[1]) > 0.0


def test_the_truth_is_of_the_mean_over_seeds(question: Question, lattice: Lattice) -> None:
    two = {
        seed: bowl(question, lattice, (factor, 1.0), TOKENS)
        for seed, factor in ((0, 0.5), (1, 2.0))
    }
    found = truth(two, TOKENS)
    assert np.exp(found.vertex) == pytest.approx(
        [lattice.centre.learning_rate, lattice.centre.batch_size], rel=1e-6
    )


def test_a_place_counts_where_every_seed_got_there(question: Question, lattice: Lattice) -> None:
    runs = ends(question, lattice)
    first, second, third = list(runs[0])[:3]
    runs[1][first] = run(first, TOKENS / 2, 2.5, diverged=True)
    del runs[2][second]
    found = losses_by_place(runs, TOKENS)
    assert first not in found
    assert second not in found
    assert len(found[third]) == len(SEEDS)


def test_runs_that_diverged_do_not_shorten_the_budget(
    question: Question, lattice: Lattice
) -> None:
    runs = ends(question, lattice)
    place = next(iter(runs[0]))
    runs[0][place] = run(place, TOKENS / 4, 9.0, diverged=True)
    assert budget(runs) == TOKENS


# ------------------------------------------------------------------------------------------ noise


def test_noise_is_told_with_and_without_what_a_seed_does_to_all_places() -> None:
    rng = np.random.default_rng(1)
    places = [Place(1e-3 * (1 + k), 8) for k in range(200)]
    shift = {0: 0.0, 1: 0.02, 2: -0.02}
    runs = {
        seed: {p: run(p, TOKENS, 3.0 + moved + 0.004 * rng.standard_normal()) for p in places}
        for seed, moved in shift.items()
    }
    found = noise_between_seeds(runs, TOKENS)
    assert found.deviation == pytest.approx(np.hypot(0.02, 0.004), rel=0.05)
    assert found.apart == pytest.approx(0.004, rel=0.1)
    assert (found.freedom, found.apart_freedom) == (400, 398)


def test_places_far_above_the_lowest_are_no_noise() -> None:
    runs = {
        seed: {
            Place(1e-3, 8): run(Place(1e-3, 8), TOKENS, 3.0 + 0.001 * seed),
            Place(1e-3, 16): run(Place(1e-3, 16), TOKENS, 3.0 + 0.001 * seed),
            Place(9e-3, 8): run(Place(9e-3, 8), TOKENS, 3.5 + 0.3 * seed),
        }
        for seed in (0, 1)
    }
    found = noise_between_seeds(runs, TOKENS)
    assert (found.freedom, found.apart_freedom) == (2, 1)
    assert found.deviation == pytest.approx(0.001 / np.sqrt(2.0))


def test_one_seed_shows_no_noise() -> None:
    with pytest.raises(ValueError, match="two seeds"):
        noise_between_seeds({0: {Place(1e-3, 8): run(Place(1e-3, 8), TOKENS, 3.0)}}, TOKENS)


# ---------------------------------------------------------------------------------------- verdicts


def test_without_a_shift_the_verdict_is_that_of_validate(
    question: Question, lattice: Lattice
) -> None:
    runs = [probes(question, lattice, (2.0, 1.0))[0][place] for place in cross(lattice)]
    told = validate(
        question.laws,
        QUERY,
        probes_of_runs(runs, stated_noise=NOISE)[0],
        SHARE * TOKENS * FLOPS_PER_TOKEN,
    )
    assert validated(question, OWN, runs, TOLD) == told


def test_a_shifted_answer_errs_by_so_much_and_is_as_sure(question: Question) -> None:
    answer, shifted = question.answer, Shift("", 3.0, 0.5).of(question.answer)
    assert shifted.learning_rate.value == pytest.approx(3.0 * answer.learning_rate.value)
    for one, other in (
        (shifted.learning_rate, answer.learning_rate),
        (shifted.batch_size, answer.batch_size),
    ):
        assert one.high / one.low == pytest.approx(other.high / other.low)
    assert shifted.batch_size_raw == pytest.approx(0.5 * answer.batch_size_raw)
    assert shifted.batch_size.value == round(shifted.batch_size_raw)
    assert OWN.of(answer).learning_rate == answer.learning_rate


def cases(
    question: Question, lattice: Lattice, shift: Shift, wanted: tuple[float, float], at: int
) -> list[Case]:
    """Every seed's, the probes about exponent `at` of the learning rate."""
    short, long = probes(question, lattice, wanted), ends(question, lattice, wanted)
    return [
        judged(question, shift, seed, [short[seed][p] for p in cross(lattice, at)], long, TOLD)
        for seed in SEEDS
    ]


def test_probes_bring_an_answer_that_errs_in_the_learning_rate_back(
    question: Question, lattice: Lattice
) -> None:
    found = summary(cases(question, lattice, Shift("", 4.0), (1.0, 1.0), 2))
    assert found.is_halved
    assert found.worse == 0
    for case in cases(question, lattice, Shift("", 4.0), (1.0, 1.0), 2):
        assert case.after is not None
        assert 0.0 < case.after.distance[0] < case.before.distance[0]


def test_probes_that_mislead_are_found_to_make_an_answer_worse(
    question: Question, lattice: Lattice
) -> None:
    short, long = probes(question, lattice, (4.0, 1.0)), ends(question, lattice)
    found = [
        judged(question, OWN, seed, [short[seed][p] for p in cross(lattice)], long, TOLD)
        for seed in SEEDS
    ]
    assert all(case.is_worse for case in found)
    assert not summary(found).is_halved
    assert summary(found).worse == len(SEEDS)


def test_whole_runs_as_probes_are_not_carried_anywhere(question: Question) -> None:
    moves = question.with_whole_runs().moves()
    assert moves.mean == pytest.approx([0.0, 0.0])
    assert moves.deviation == pytest.approx([0.0, 0.0])


def test_a_seed_is_judged_by_the_others(question: Question, lattice: Lattice) -> None:
    short, long = probes(question, lattice, (1.0, 1.0)), ends(question, lattice)
    moved = long | {0: bowl(question, lattice, (3.0, 2.0), TOKENS)}
    runs = [short[0][place] for place in cross(lattice)]
    assert set(without(long, 0)) == {1, 2}
    with_own, with_moved = (judged(question, OWN, 0, runs, each, TOLD) for each in (long, moved))
    assert with_own.before.regret == with_moved.before.regret
    other = judged(question, OWN, 1, runs, moved, TOLD)
    assert other.before.regret != with_own.before.regret


def case(before: float, after: float | None, error: float = 0.001) -> Case:
    def stands(regret: float) -> Standing:
        return Standing(np.zeros(2), regret, error, np.zeros(2))

    told: Any = SimpleNamespace()
    return Case(OWN, 0, told, stands(before), None if after is None else stands(after), error)


@pytest.mark.parametrize(
    ("pairs", "halved", "worse"),
    [
        pytest.param([(0.02, 0.009), (0.02, 0.011)], True, 0, id="exactly half counts"),
        pytest.param([(0.02, 0.009), (0.02, 0.012)], False, 0, id="a little more than half"),
        pytest.param([(0.02, 0.0), (0.0, 0.01)], True, 1, id="halved although one seed is worse"),
        pytest.param([(0.01, 0.0116)], False, 0, id="worse within noise"),
        pytest.param([(0.01, 0.0118)], False, 1, id="worse beyond noise"),
        pytest.param([(0.01, None)], False, 0, id="no refined answer leaves the answer"),
    ],
)
def test_halved_and_worse_are_what_they_say(
    pairs: list[tuple[float, float | None]], halved: bool, worse: int
) -> None:
    found = summary([case(*pair) for pair in pairs])
    assert (found.is_halved, found.worse) == (halved, worse)


def test_nothing_is_no_summary() -> None:
    with pytest.raises(ValueError, match="nothing is judged"):
        summary([])


def test_a_standing_is_measured_from_the_optimum(question: Question, lattice: Lattice) -> None:
    optimum = truth({0: bowl(question, lattice, (2.0, 1.0), TOKENS)}, TOKENS)
    found = standing(optimum, lattice.centre.learning_rate, lattice.centre.batch_size)
    assert found.distance == pytest.approx([-np.log(2.0), 0.0], abs=1e-6)
    assert found.regret == pytest.approx(
        0.5 * loss_curvature(question.laws)[0, 0] * np.log(2.0) ** 2
    )


# -------------------------------------------------------------------------------------- training


@pytest.mark.slow
def test_a_probe_is_the_same_whether_its_run_goes_on_or_not(tmp_path: Path) -> None:
    texts = documents(300)
    write_json_lines(tmp_path / "text.jsonl", texts)
    make_tokenizer(tmp_path / "tokenizer", texts[:60])
    source = DomainSource(name="web", uri=f"file://{tmp_path}/text.jsonl", text_field="text")

    def courses(store: str) -> tuple[PointTrainer, Courses]:
        config = PrepareConfig(
            tokenizer=f"file://{tmp_path}/tokenizer",
            sequence_length=32,
            domains=(source,),
            validation_documents_per_thousand=100,
        )
        corpus = PrepareTask(config=config, store_uri=f"file://{tmp_path}/{store}")
        trainer = PointTrainer("test", corpus, tmp_path / "scratch", Interruption())
        return trainer, Courses(trainer, "averaged")

    trainer, together = courses("together")
    point = train_task(
        trainer.manifest, "file:///unused", sequence_length=32, batch_size=4, mixture={"web": 1.0}
    ).point
    both, short, long = (Course("", point, stops) for stops in ((2048, 4096), (2048,), (4096,)))
    _, alone = courses("alone")
    assert together.train(both)
    assert alone.train(short)
    assert not alone.is_trained(both)
    (probe, end), (probe_alone,) = together.runs(both), alone.runs(short)
    assert alone.train(long)
    assert (probe.tokens[-1], end.tokens[-1]) == (2048, 4096)
    assert probe.losses.tolist() == probe_alone.losses.tolist()
    assert end.losses.tolist() == alone.runs(long)[0].losses.tolist()
    assert alone.is_trained(both)
    assert alone.runs(both)[0].losses.tolist() == probe.losses.tolist()


# ------------------------------------------------------------------------------------ table, time


def shortened(runs: dict[int, dict[Place, Run]], share: float) -> dict[int, dict[Place, Run]]:
    """The same losses after fewer tokens."""
    return {
        seed: {place: replace(each, tokens=share * each.tokens) for place, each in found.items()}
        for seed, found in runs.items()
    }


def test_the_tables_hold_every_answer_with_both_noises_and_probes_of_every_length(
    question: Question, lattice: Lattice
) -> None:
    long = ends(question, lattice)
    probed = tuple(
        Probed(ProbePlan(round(share * TOKENS), share * TOKENS * FLOPS_PER_TOKEN), runs)
        for share, runs in (
            (SHARE, probes(question, lattice, (1.0, 1.0))),
            (0.6, shortened(long, 0.6)),
        )
    )
    inner = tuple(
        (Shift(f"{p.i} {p.j}", 2.0**p.i, 2.0**p.j), lattice.cross(p))
        for p in lattice.interior(Grid((-2, 2), (-1, 1)))
    )
    measured = Measured(question, GRID, probed, long, ((OWN, cross(lattice)),), inner)
    text = "\n".join(tables(measured))
    kinds = [(share, noise) for share in ("30%", "60%") for noise in ("assumed", "measured")]
    kinds.append(("all", "measured"))
    for share, noise in kinds:
        for seed in SEEDS:
            assert f"| the laws' answer | {seed} | {share} | {noise} |" in text
        assert f"| the laws' answer | {share} | {noise} | 3 |" in text
        assert f"| other places of the grid | {share} | {noise} | 6 |" in text
    for each in probed:
        moves = question.with_probes(each.plan.flops).moves()
        assert f"(carried as {moves.mean[0]:+.2f} +- {moves.deviation[0]:.2f})" in text
    assert "(60 degrees of freedom)" in text


def course(batch: int, tokens: int = 1000) -> Course:
    point: Any = SimpleNamespace(model={"hidden_size": 96}, batch_size=batch)
    return Course("", point, (300, tokens))


def test_time_left_follows_the_seconds_per_token_of_the_same_batch_size() -> None:
    pace = Pace()
    pace.take(course(2), 20.0)
    pace.take(course(8), 10.0)
    assert pace.seconds([course(2, 2000), course(8)]) == pytest.approx(50.0)
    assert pace.seconds([course(4)]) == pytest.approx(15.0)
    assert pace.seconds([]) == 0.0
