"""What was measured, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measured_optimum import Optimum
from benchmarks.validation.deciding import decision_table
from benchmarks.validation.design import OWN, Shift
from benchmarks.validation.judging import (
    Case,
    Noise,
    Question,
    Runs,
    Standing,
    ToldNoise,
    budget,
    judged,
    noise_between_seeds,
    summary,
    truth,
    without,
)
from benchmarks.validation.measuring import Measured, Probed
from isoloss.validation import Place

ASSUMED, BETWEEN_SEEDS = "assumed", "measured"
"""Noise of at most the laws' residuals, as the operator takes it, and that between the seeds of the grid's runs."""
INNER = "other places of the grid"
WHOLE = "all"
"""Share of the budget of probes that are whole runs: what is left to gain by longer ones."""

Answers = Mapping[str, Sequence[tuple[Shift, tuple[Place, ...]]]]
"""Answers with the places of their probes, by the name under which they are summed up."""


@dataclass(frozen=True)
class Group:
    """The cases of one name, of probes of one length, judged with one noise."""

    name: str
    share: str
    noise: str
    cases: tuple[Case, ...]


def tables(measured: Measured) -> Iterator[str]:
    """All of it."""
    ends, tokens = measured.ends, budget(measured.ends)
    long = noise_between_seeds(ends, tokens)
    for probed in measured.probes:
        where = f"the end of probes of {_share(probed, tokens)}"
        yield _noise_line(
            where, probed.plan.tokens, noise_between_seeds(probed.runs, probed.plan.tokens)
        )
    yield _noise_line("the budget's end", tokens, long)
    residuals = measured.question.laws.surface.residual_rms
    if residuals is not None:
        yield f"Residuals of the joint surface: {residuals:.4f} nats."
    yield ""
    yield from _optima(measured, tokens)
    yield ""
    yield from (_early_optimum(measured, probed, tokens) for probed in measured.probes)
    found = [
        *(group for probed in measured.probes for group in _groups(measured, probed, residuals)),
        *_whole_runs(measured, long.deviation, residuals),
    ]
    # What was done with one answer stands together.
    names = list(_answers(measured))
    found.sort(key=lambda group: names.index(group.name))
    yield ""
    yield from _case_table(found)
    yield ""
    yield from _summary_table(found)
    yield ""
    yield "In how many data orders the probes of that order alone decide about the laws' answer:"
    yield ""
    own = dict(measured.crosses)[OWN]
    yield from decision_table(measured.question, own, ends, residuals)


def _answers(measured: Measured) -> Answers:
    own = {shift.name: [(shift, cross)] for shift, cross in measured.crosses}
    return own | {INNER: measured.inner}


def _share(probed: Probed, tokens: float) -> str:
    return f"{probed.plan.tokens / tokens:.0%}"


def _groups(measured: Measured, probed: Probed, residuals: float | None) -> Iterator[Group]:
    """Of probes of one length, with either noise."""
    question, ends = measured.question.with_probes(probed.plan.flops), measured.ends
    between_seeds = noise_between_seeds(probed.runs, probed.plan.tokens).deviation
    for noise, told in _noises(residuals, between_seeds).items():
        for name, answers in _answers(measured).items():
            cases = _cases(question, answers, probed.runs, ends, told)
            yield Group(name, _share(probed, budget(ends)), noise, cases)


def _whole_runs(measured: Measured, deviation: float, residuals: float | None) -> Iterator[Group]:
    """Of the answers whose probes were all trained to the budget's end, with either noise."""
    question, ends = measured.question.with_whole_runs(), measured.ends
    trained = set.intersection(*(set(runs) for runs in ends.values()))
    for noise, told in _noises(residuals, deviation).items():
        for name, answers in _answers(measured).items():
            if all(trained.issuperset(cross) for _, cross in answers):
                cases = _cases(question, answers, ends, ends, told)
                yield Group(name, WHOLE, noise, cases)


def _noises(residuals: float | None, between_seeds: float) -> dict[str, ToldNoise]:
    return {
        ASSUMED: ToldNoise(residual=residuals),
        BETWEEN_SEEDS: ToldNoise(stated=between_seeds),
    }


def _cases(
    question: Question,
    answers: Sequence[tuple[Shift, tuple[Place, ...]]],
    probes: Runs,
    ends: Runs,
    noise: ToldNoise,
) -> tuple[Case, ...]:
    """Every answer with every seed's probes."""
    return tuple(
        judged(question, shift, seed, [runs[place] for place in cross], ends, noise)
        for shift, cross in answers
        for seed, runs in probes.items()
    )


def _noise_line(where: str, tokens: float, noise: Noise) -> str:
    return (
        f"Between seeds at {where} ({tokens:,.0f} tokens): {noise.deviation:.4f} nats ({noise.freedom} degrees of "
        f"freedom), {noise.apart:.4f} ({noise.apart_freedom}) without what a seed does to all places alike."
    )


def _optima(measured: Measured, tokens: float) -> Iterator[str]:
    """Of all seeds, and of all but each."""
    yield "| seeds | optimum LR | B | lowest | misfit | inside | regret of the laws' answer |"
    yield "|---|---|---|---|---|---|---|"
    answer = measured.question.answer
    at = np.log([answer.learning_rate.value, answer.batch_size.value])
    sets = {"all": measured.ends} | {
        f"without {seed}": without(measured.ends, seed) for seed in measured.ends
    }
    for name, runs in sets.items():
        found = truth(runs, tokens)
        yield (
            f"| {name} | {_with_factor(found, 0)} | {_with_factor(found, 1)} | {found.lowest:.4f} "
            f"| {found.noise:.4f} | {'yes' if found.inside else 'no'} "
            f"| {found.regret(*at):.4f} +- {found.regret_error(*at):.4f} |"
        )


def _early_optimum(measured: Measured, probed: Probed, tokens: float) -> str:
    """What the best that probes of this length can find is worth at the budget."""
    early, late = truth(probed.runs, probed.plan.tokens), truth(measured.ends, tokens)
    move = late.vertex - early.vertex
    carried = measured.question.with_probes(probed.plan.flops).moves()
    return (
        f"At the end of probes of {_share(probed, tokens)} the optimum is LR {_with_factor(early, 0)} and B {_with_factor(early, 1)}, which loses "
        f"{late.regret(*early.vertex):.4f} +- {late.regret_error(*early.vertex):.4f} at the budget. From there to the "
        f"budget ln LR moves by {move[0]:+.2f} (carried as {carried.mean[0]:+.2f} +- {carried.deviation[0]:.2f}), "
        f"ln B by {move[1]:+.2f} (carried as {carried.mean[1]:+.2f} +- {carried.deviation[1]:.2f})."
    )


def _with_factor(found: Optimum, axis: int) -> str:
    value = f"{np.exp(found.vertex[axis]):.3g}"
    return f"{value} (a factor of {np.exp(found.errors[axis]):.2f})"


def _case_table(groups: Sequence[Group]) -> Iterator[str]:
    yield (
        "| answer | seed | probes | noise | LR, B | regret | ln LR, ln B off | refined LR, B | regret "
        "| ln LR, ln B off | verdict |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for group in groups:
        for case in group.cases if group.name != INNER else ():
            yield (
                f"| {group.name} | {case.seed} | {group.share} | {group.noise} | {_standing(case.before)} "
                f"| {_standing(case.after)} | {case.validation.reason.value} |"
            )


def _standing(found: Standing | None) -> str:
    if found is None:
        return "none | |"
    rate, batch = np.exp(found.log_place)
    return (
        f"{rate:.3g}, {batch:.1f} | {found.regret:.4f} +- {found.regret_error:.4f} "
        f"| {found.distance[0]:+.2f}, {found.distance[1]:+.2f}"
    )


def _summary_table(groups: Sequence[Group]) -> Iterator[str]:
    yield (
        "| answer | probes | noise | cases | mean regret | of the refined answer | at least halved "
        "| worse beyond noise | verdicts |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for group in groups:
        if group.cases:
            found = summary(group.cases)
            yield (
                f"| {group.name} | {group.share} | {group.noise} | {len(group.cases)} | {found.before:.4f} "
                f"| {found.after:.4f} | {'yes' if found.is_halved else 'no'} | {found.worse} "
                f"| {_verdicts(group.cases)} |"
            )


def _verdicts(cases: Sequence[Case]) -> str:
    reasons = [case.validation.reason.value for case in cases]
    return ", ".join(f"{reasons.count(each)} {each}" for each in dict.fromkeys(reasons))
