"""Designs that isoloss init chooses, trained on surfaces of known optimum."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.economy.outcomes import CAPS, Outcome, asked
from benchmarks.science.shapes import Layout, SyntheticJudge, runs_on, surface, token_slope
from isoloss.design import Target
from isoloss.laws import FitOptions, fit_laws
from isoloss_operator.commands.design import Design, ProxySize, compared, layouts

SHAPES = ("scattered", "bending", "turning", "following", "soft", "skewed")
TARGET = Target(4e9, 8e10)
LINES = 3


def ladder() -> list[ProxySize]:
    """Sizes of no checkpoint in particular: only how many parameters they have matters here."""
    sizes = [round(3e7 * 1.25**k) for k in range(16)]
    return [ProxySize({}, n, n, n, n, 8, 0.0, 1) for n in sizes if n <= TARGET.params / 4]


def designs() -> list[tuple[str, Design]]:
    """For every cap the design of least expected regret."""
    every = compared(layouts(ladder(), int(TARGET.tokens)), TARGET, (LINES,), searches=False)
    found: list[tuple[str, Design]] = []
    for cap in CAPS:
        allowed = [each for each in every if each.cost <= cap]
        if allowed:
            best = min(allowed, key=lambda each: each.outlook.wasted)
            found.append((f"at most {cap:.0%}", best))
    return found


def outcomes(seeds: int) -> Iterator[tuple[str, Outcome]]:
    """By the name of the design."""
    for number, (name, design) in enumerate(designs()):
        for shape in SHAPES:
            for seed in range(seeds):
                yield name, outcome(design, shape, seed, number)


def outcome(design: Design, shape: str, seed: int, number: int) -> Outcome:
    """Of the design, which has this number."""
    truth = surface(shape, seed)
    sizes = tuple(float(run.size.active) for run in design.runs)
    layout = replace(
        Layout(),
        sizes=sizes,
        tokens=tuple(float(run.tokens) for run in design.runs),
        rates=LINES,
        batches=LINES,
    )
    laws = fit_laws(runs_on(truth, layout, seed), FitOptions(bootstrap_samples=20))
    n, d = TARGET.params, TARGET.tokens
    expected = design.outlook.wasted * token_slope(truth, n, d)
    asking = Outcome(number, design.cost, expected, sizes[-1], sizes[-1] / sizes[0])
    return asked(asking, laws, (n, d), SyntheticJudge(truth, n, d))
