"""The benchmark of refined answers, briefly: its command with planted runs instead of trained ones."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.transfer.design import Grid
from benchmarks.transfer.design import Place as Exponents
from benchmarks.validation import __main__ as command
from benchmarks.validation.design import OWN, Lattice, Shift
from benchmarks.validation.judging import Question
from benchmarks.validation.measuring import Measured, Probed
from benchmarks.validation.training import ProbePlan
from isoloss.laws import Laws, Prediction, PredictionQuery, Run, loss_curvature, predict
from isoloss.validation import Place
from isoloss_trainer.termination import Interruption
from tests.support.planted_laws import fitted_laws

TOKENS, SHARE = 2e10, 0.3
FLOPS_PER_TOKEN = 6 * 3e8
QUERY = PredictionQuery(initial_loss=2.75, cpt_tokens=TOKENS, params=3e8)
SEEDS = (0, 1, 2)
NOISE = 0.0002
"""Nats: the planted laws' valley is so flat that a factor of three in the learning rate loses 0.012."""


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


def ends(question: Question, lattice: Lattice) -> dict[int, dict[Place, Run]]:
    return {
        seed: bowl(question, lattice, (1.0, 1.0), TOKENS, seed=seed, noise=NOISE) for seed in SEEDS
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


def shortened(runs: dict[int, dict[Place, Run]], share: float) -> dict[int, dict[Place, Run]]:
    """The same losses after fewer tokens."""
    return {
        seed: {place: replace(each, tokens=share * each.tokens) for place, each in found.items()}
        for seed, found in runs.items()
    }


@pytest.mark.whole
def test_the_tables_hold_every_answer_with_both_noises_and_probes_of_every_length(
    question: Question,
    lattice: Lattice,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
    bench = SimpleNamespace(measure=lambda: measured)
    for name in ("Workshop", "training_pool"):
        monkeypatch.setattr(command, name, lambda *_: nullcontext())
    monkeypatch.setattr(command, "Bench", lambda *_: bench)
    monkeypatch.setattr(Interruption, "listen", lambda self: self)
    monkeypatch.setattr(sys, "argv", ["validation"])
    assert command.main() == 0
    text = capsys.readouterr().out
    kinds = [(share, noise) for share in ("30%", "60%") for noise in ("assumed", "measured")]
    kinds += [("all", noise) for noise in ("assumed", "measured")]
    for share, noise in kinds:
        for seed in SEEDS:
            assert f"| the laws' answer | {seed} | {share} | {noise} |" in text
        assert f"| the laws' answer | {share} | {noise} | 3 |" in text
        assert f"| other places of the grid | {share} | {noise} | 6 |" in text
    for each in probed:
        moves = question.with_probes(each.plan.flops).moves()
        assert f"(carried as {moves.mean[0]:+.2f} +- {moves.deviation[0]:.2f})" in text
    assert "(60 degrees of freedom)" in text
