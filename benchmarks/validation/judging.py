"""What probes of one seed make of an answer, judged by the optimum that the other seeds' whole runs show.

A probe and the whole run of its seed share their first tokens and so their noise: a truth with that seed in it
would praise probes for following their own noise. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.measured_optimum import Optimum, loss_at, quadratic_optimum
from benchmarks.validation.design import Shift
from isoloss.laws import (
    Array,
    Laws,
    Prediction,
    PredictionQuery,
    Refused,
    Run,
    loss_curvature,
    predict,
)
from isoloss.validation import TOLERANCE, Place, Validation, judge, probes_of_runs
from isoloss.validation.bowl import Normal
from isoloss.validation.drift import drift

BEYOND_NOISE = 1.645
"""Standard errors: 95 % in one direction."""
NEAR = 0.1
"""Nats above the lowest up to which places count for the noise: runs near divergence scatter more."""

Runs = Mapping[int, Mapping[Place, Run]]
"""By seed."""


# ------------------------------------------------------------------------------------- the truth


def losses_by_place(runs: Runs, tokens: float) -> dict[Place, Array]:
    """(seeds,) losses at `tokens` of the places where every seed got there, seeds in ascending order."""
    seeds = sorted(runs)
    places = [place for place in runs[seeds[0]] if all(place in runs[seed] for seed in seeds)]
    table = {
        place: np.array([loss_at(runs[seed][place], tokens) for seed in seeds]) for place in places
    }
    return {place: losses for place, losses in table.items() if np.isfinite(losses).all()}


def truth(runs: Runs, tokens: float) -> Optimum:
    """Of the mean over seeds. Raises ValueError where too few places got to `tokens`."""
    means = {place: losses.mean() for place, losses in losses_by_place(runs, tokens).items()}
    return quadratic_optimum(log_places(list(means)), np.array(list(means.values())))


def log_places(places: Sequence[Place]) -> Array:
    """(places, 2) of ln LR, ln B."""
    return np.log([[place.learning_rate, place.batch_size] for place in places])


def without(runs: Runs, seed: int) -> Runs:
    """Those of all other seeds."""
    return {other: found for other, found in runs.items() if other != seed}


# ------------------------------------------------------------------------------------- the noise


@dataclass(frozen=True)
class Noise:
    """Scatter of the losses of one place over seeds."""

    deviation: float
    """Standard deviation between seeds, nats."""
    freedom: int
    apart: float
    """The same without what a seed does to all places alike, which no comparison within a seed sees."""
    apart_freedom: int


def noise_between_seeds(runs: Runs, tokens: float) -> Noise:
    """Pooled over the places near the lowest. Raises ValueError for fewer than two seeds or places."""
    losses = losses_by_place(runs, tokens)
    lowest = min((float(each.mean()) for each in losses.values()), default=0.0)
    table = np.array([each for each in losses.values() if each.mean() <= lowest + NEAR])
    if len(table) < 2 or table.shape[1] < 2:
        raise ValueError("noise between seeds needs two seeds of two places")
    places, seeds = table.shape
    within = table - table.mean(axis=1, keepdims=True)
    apart = within - within.mean(axis=0, keepdims=True)
    free, apart_free = places * (seeds - 1), (places - 1) * (seeds - 1)
    return Noise(
        float(np.sqrt((within**2).sum() / free)),
        free,
        float(np.sqrt((apart**2).sum() / apart_free)),
        apart_free,
    )


# ------------------------------------------------------------------------------------- the answers


@dataclass(frozen=True)
class Question:
    """What was asked of the laws, and how long the probes are."""

    laws: Laws
    query: PredictionQuery
    answer: Prediction
    probe_flops: float
    """Of one probe."""
    tolerance: float = TOLERANCE
    """Nats that the answer may lose and still holds."""

    def with_probes(self, flops: float) -> Question:
        """The same with longer or shorter ones."""
        return replace(self, probe_flops=flops)

    def with_whole_runs(self) -> Question:
        """The same with probes as long as the budget."""
        assert self.answer.cpt_flops is not None  # the query has a budget
        return self.with_probes(self.answer.cpt_flops)

    def moves(self) -> Normal:
        """From the optimum at the probes' tokens to that at the budget, as `validate` has it."""
        short = predict(
            self.laws, replace(self.query, cpt_flops=self.probe_flops, cpt_tokens=None)
        )
        if isinstance(short, Refused):
            raise ValueError(" ".join(refusal.message for refusal in short.refusals))
        return drift(short, self.answer)


@dataclass(frozen=True)
class ToldNoise:
    """What `probes_of_runs` is told of the noise between seeds, nats."""

    stated: float | None = None
    residual: float | None = None
    """Of the laws' surface."""


def validated(
    question: Question, shift: Shift, probes: Sequence[Run], noise: ToldNoise
) -> Validation:
    """The verdict on the shifted answer by probes about it; without a shift the one of `validate`."""
    found, _ = probes_of_runs(probes, stated_noise=noise.stated, residual=noise.residual)
    return judge(
        shift.of(question.answer),
        found,
        question.moves(),
        loss_curvature(question.laws),
        question.tolerance,
    )


@dataclass(frozen=True)
class Standing:
    """A learning rate and a batch size against a measured optimum."""

    log_place: Array
    """(2,) ln LR, ln B."""
    regret: float
    """Nats."""
    regret_error: float
    distance: Array
    """(2,) ln of it over the optimum."""


def standing(optimum: Optimum, learning_rate: float, batch_size: float) -> Standing:
    """Batch size in sequences."""
    at = np.log(np.array([learning_rate, batch_size]))
    return Standing(
        at, optimum.regret(*at), optimum.regret_error(*at), np.asarray(at - optimum.vertex)
    )


@dataclass(frozen=True)
class Case:
    """One answer, the probes of one seed, and what came of it."""

    shift: Shift
    seed: int
    validation: Validation
    before: Standing
    after: Standing | None
    """Of the refined answer; None: there is none."""
    change_error: float
    """Standard error of the change in regret, nats; 0 without a refined answer."""

    @property
    def regret_after(self) -> float:
        """Of the refined answer; of the answer itself where there is none."""
        return self.before.regret if self.after is None else self.after.regret

    @property
    def is_worse(self) -> bool:
        """Whether the refined answer loses more, beyond noise."""
        return self.regret_after - self.before.regret > BEYOND_NOISE * self.change_error


def judged(
    question: Question,
    shift: Shift,
    seed: int,
    probes: Sequence[Run],
    ends: Runs,
    noise: ToldNoise,
) -> Case:
    """Judge by the truth at the last tokens that all of the other seeds' whole runs reached."""
    optimum = truth(without(ends, seed), budget(ends))
    validation = validated(question, shift, probes, noise)
    answer = shift.of(question.answer)
    before = standing(optimum, answer.learning_rate.value, answer.batch_size.value)
    refined = validation.refined
    if refined is None:
        return Case(shift, seed, validation, before, None, 0.0)
    after = standing(optimum, refined.learning_rate.value, refined.batch_size.value)
    error = optimum.difference_error(after.log_place, before.log_place)
    return Case(shift, seed, validation, before, after, error)


def budget(ends: Runs) -> float:
    """The tokens that all whole runs have in common, those that diverged left out."""
    return min(
        float(run.tokens[-1])
        for runs in ends.values()
        for run in runs.values()
        if not run.diverged
    )


@dataclass(frozen=True)
class Summary:
    """Of one answer over all seeds."""

    before: float
    """Mean regret, nats."""
    after: float
    worse: int
    """Seeds whose refined answer loses more, beyond noise."""

    @property
    def is_halved(self) -> bool:
        """Whether the mean regret is at least halved."""
        return self.after <= 0.5 * self.before


def summary(cases: Sequence[Case]) -> Summary:
    """Raises ValueError without a case."""
    if not cases:
        raise ValueError("nothing is judged")
    return Summary(
        float(np.mean([case.before.regret for case in cases])),
        float(np.mean([case.regret_after for case in cases])),
        sum(case.is_worse for case in cases),
    )
