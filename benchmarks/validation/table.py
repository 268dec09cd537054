"""What was measured, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.measured_optimum import Optimum
from benchmarks.validation.judging import (
    Case,
    Noise,
    Standing,
    budget,
    judged,
    noise_between_seeds,
    summary,
    truth,
    without,
)
from benchmarks.validation.measuring import Measured

ASSUMED, BETWEEN_SEEDS = "assumed", "measured"
"""Noise of the laws' residuals, as the operator takes it, and that between the seeds of the grid's runs."""
INNER = "other places of the grid"


def tables(measured: Measured) -> Iterator[str]:
    """All of it."""
    question, ends = measured.question, measured.ends
    tokens = budget(ends)
    short, long = (
        noise_between_seeds(measured.probes, measured.probe_tokens),
        noise_between_seeds(ends, tokens),
    )
    yield _noise_line("the probes' end", measured.probe_tokens, short)
    yield _noise_line("the budget's end", tokens, long)
    residuals = question.laws.surface.residual_rms
    yield f"Residuals of the joint surface: {residuals:.4f} nats."
    yield ""
    yield from _optima(measured, tokens)
    noises = {ASSUMED: residuals, BETWEEN_SEEDS: short.deviation}
    by_answer = {noise: _cases(measured, deviation) for noise, deviation in noises.items()}
    yield ""
    yield from _case_table(by_answer)
    yield ""
    yield from _summary_table(by_answer)


def _cases(measured: Measured, noise: float) -> dict[str, list[Case]]:
    """Every answer with every seed's probes, by name."""
    found: dict[str, list[Case]] = {}
    for name, (shift, cross) in (
        *((shift.name, (shift, cross)) for shift, cross in measured.crosses),
        *((INNER, each) for each in measured.inner),
    ):
        for seed, probes in measured.probes.items():
            runs = [probes[place] for place in cross]
            case = judged(measured.question, shift, seed, runs, measured.ends, noise)
            found.setdefault(name, []).append(case)
    return found


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


def _with_factor(found: Optimum, axis: int) -> str:
    value = f"{np.exp(found.vertex[axis]):.3g}"
    return f"{value} (a factor of {np.exp(found.errors[axis]):.2f})"


def _case_table(by_noise: Mapping[str, Mapping[str, Sequence[Case]]]) -> Iterator[str]:
    yield (
        "| answer | seed | noise | LR, B | regret | ln LR, ln B off | refined LR, B | regret | ln LR, ln B off "
        "| verdict |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    names = [name for name in by_noise[ASSUMED] if name != INNER]
    for name in names:
        for noise, cases in by_noise.items():
            for case in cases[name]:
                yield (
                    f"| {name} | {case.seed} | {noise} | {_standing(case.before)} | {_standing(case.after)} "
                    f"| {case.validation.reason.value} |"
                )


def _standing(found: Standing | None) -> str:
    if found is None:
        return "none | |"
    rate, batch = np.exp(found.log_place)
    return (
        f"{rate:.3g}, {batch:.1f} | {found.regret:.4f} +- {found.regret_error:.4f} "
        f"| {found.distance[0]:+.2f}, {found.distance[1]:+.2f}"
    )


def _summary_table(by_noise: Mapping[str, Mapping[str, Sequence[Case]]]) -> Iterator[str]:
    yield "| answer | noise | cases | mean regret | of the refined answer | at least halved | worse beyond noise | verdicts |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in by_noise[ASSUMED]:
        for noise, cases in by_noise.items():
            found = summary(cases[name])
            yield (
                f"| {name} | {noise} | {len(cases[name])} | {found.before:.4f} | {found.after:.4f} "
                f"| {'yes' if found.is_halved else 'no'} | {found.worse} | {_verdicts(cases[name])} |"
            )


def _verdicts(cases: Sequence[Case]) -> str:
    reasons = [case.validation.reason.value for case in cases]
    return ", ".join(f"{reasons.count(each)} {each}" for each in dict.fromkeys(reasons))
