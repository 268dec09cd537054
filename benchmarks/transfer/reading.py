"""What continued runs want, in that of runs from scratch of the same size, and what each rule loses by it. Tables in Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from benchmarks.science.judging import Reading
from benchmarks.transfer import design, grids
from isoloss.laws import Array, Composition, Point
from isoloss.laws.answer.composition import composed
from isoloss.laws.answer.question import Question
from isoloss.laws.model import Interval
from isoloss.usual import FADE

LARGEST_ERROR = 0.2
"""Standard error of ln LR above which an optimum does not count."""
LEVEL = 0.8
BROKEN, BROKEN_AT = 0.1, 4.0
"""A rate breaks a shape if its run from scratch is so many nats above the lowest, at so many tokens a parameter."""
ELASTIC_TO, ELASTIC_PAST = 2.0, 5
"""Tokens a parameter of the budgets and of the checkpoints that an elasticity is of."""
LOWEST_RATIO = 0.18
"""Of rates of pre-training that are a quarter of the laws' and not an eighth."""
STEEPNESS = {"Measured": FADE, "s^0.75": 0.75, "s^1": 1.0}
"""Exponents of the share still to come."""
RULES = ("Paper", *STEEPNESS, "rated")
SHARES = (0.0, 0.45, 0.75, 0.95, 1.0)
"""Between which cases are summed up."""


@dataclass(frozen=True)
class Laws:
    """Of one size: straight lines through its optima from scratch in ln tokens, and its lowest losses."""

    of_rate: Array
    """Slope and intercept of ln LR."""
    of_batch: Array
    losses: Mapping[int, float]
    """Lowest, by tokens."""

    def tokens_at(self, loss: float) -> float:
        """At which a run from scratch has this loss; straight in ln tokens between readings, and beyond them."""
        tokens = np.log([t for t in self.losses if t])
        lowest = np.minimum.accumulate([loss for t, loss in self.losses.items() if t])
        place = int(np.clip(np.searchsorted(-lowest, -loss), 1, len(lowest) - 1))
        (x0, x1), (y0, y1) = tokens[place - 1 : place + 1], lowest[place - 1 : place + 1]
        return float(np.exp(x0 + (loss - y0) * (x1 - x0) / (y1 - y0)))

    def answer(self, tokens: float) -> tuple[float, float]:
        """ln LR and ln B of a run from scratch."""
        at = np.log(tokens)
        return float(np.polyval(self.of_rate, at)), float(np.polyval(self.of_batch, at))


@dataclass(frozen=True)
class Case:
    """A grid of continued runs at one budget, whose optimum counts."""

    size: str
    origin: str
    params: float
    tokens: float
    """Of the budget."""
    past: float
    """Tokens of a run from scratch that has the loss before any step."""
    scratch: tuple[float, float]
    """What the laws say for past and budget: ln LR, ln B."""
    found: Reading
    errors: Array
    broken: bool = False
    """Whether its checkpoint was pre-trained at a rate that breaks its shape."""

    @property
    def checkpoint(self) -> design.Checkpoint:
        """That it continues."""
        every = (part.checkpoint for size in design.SIZES.values() for part in size.parts)
        return next(past for past in every if past is not None and past.name == self.origin)

    @property
    def pretraining(self) -> int:
        """Exponent of the learning rate that the checkpoint was pre-trained at."""
        return design.SIZES[self.size].pretraining.i - self.checkpoint.slower

    @property
    def ratio(self) -> float:
        """That rate, over the learning rate of the laws."""
        return float(2.0**self.pretraining / np.exp(self.scratch[0]))

    @property
    def elastic(self) -> bool:
        """Whether it counts for elasticities."""
        short = self.tokens <= design.SIZES[self.size].tokens(ELASTIC_TO)
        return short and self.checkpoint.per_param == ELASTIC_PAST and not self.broken

    @cached_property
    def over_measured(self) -> float:
        """ln of the learning rate wanted over that of the rule Measured."""
        of_rule = self.composed("Measured").learning_rate.value
        return float(self.found.vertex[0] - np.log(of_rule))

    @property
    def over_measured_batch(self) -> float:
        """ln of the batch size wanted over that of the rule Measured."""
        return float(self.found.vertex[1] - self.scratch[1] - np.log(2.0 - self.share))

    @property
    def share(self) -> float:
        """Of the compute, what is still to come."""
        return self.tokens / (self.past + self.tokens)

    @property
    def per_param(self) -> float:
        """Tokens a parameter of a run from scratch to the same point."""
        return (self.past + self.tokens) / self.params

    @property
    def wish(self) -> float:
        """Learning rate wanted, over that of the laws."""
        return float(np.exp(self.found.vertex[0] - self.scratch[0]))

    def composed(self, composition: Composition) -> Point:
        """The product's answer, with the interval of the composition alone."""
        rate, batch = (Interval(v, v, v) for v in np.exp(self.scratch))
        sizes = np.log([self.params]), np.log([self.past + self.tokens])
        total = 6.0 * self.params * (self.past + self.tokens)
        question = Question(
            log_params=float(np.log(self.params)),
            flops_per_token=6.0 * self.params,
            log_total=np.log([total]),
            total_flops=Interval(total, total, total),
            equivalent_flops=None,
            target_loss=None,
            cpt_flops=6.0 * self.params * self.tokens,
            place=sizes,
            batch_size=None,
            multiple=1.0,
            tolerance=None,
            composition=composition,
            composition_error=None,
            composes=True,
            past_flops=None,
        )
        return composed(Point(rate, batch, total_flops=1.0), question, LEVEL)

    def holds(self) -> tuple[bool, bool]:
        """Whether the default's intervals hold the best learning rate and batch size."""
        point, (rate, batch) = self.composed("Measured"), np.exp(self.found.vertex)
        of_rate, of_batch = point.learning_rate, point.batch_size
        return bool(of_rate.low <= rate <= of_rate.high), bool(
            of_batch.low <= batch <= of_batch.high
        )


def laws_of(size: design.Size, runs: grids.Runs) -> Laws | None:
    """None without two optima."""
    found = [
        (t, grids.optimum(losses).vertex)
        for t in (size.tokens(ratio) for ratio in design.CHECKED)
        if grids.has_optimum(losses := grids.losses_at(runs, t))
    ]
    if len(found) < 2:
        return None
    at, vertices = np.log([t for t, _ in found]), np.array([vertex for _, vertex in found])
    every = sorted({tokens for run in runs.values() for tokens in run})
    lowest = {t: min(losses.values()) for t in every if (losses := grids.losses_at(runs, t))}
    return Laws(np.polyfit(at, vertices[:, 0], 1), np.polyfit(at, vertices[:, 1], 1), lowest)


def cases(results: design.Results) -> list[Case]:
    """All that count."""
    found = []
    of_size = {
        name: laws_of(design.SIZES[name], results.get((name, design.SCRATCH), {}))
        for name, _ in results
    }
    for (name, origin), runs in results.items():
        if origin == design.SCRATCH or (laws := of_size[name]) is None:
            continue
        # Of one checkpoint: between devices it differs by what they round.
        initial = float(np.median([run[0] for run in runs.values()]))
        past, params = laws.tokens_at(initial), float(design.SIZES[name].shape.params)
        for tokens in (design.SIZES[name].tokens(ratio) for ratio in design.BUDGETS):
            losses = grids.losses_at(runs, tokens)
            if (
                not grids.has_optimum(losses)
                or (errors := grids.standard_errors(losses))[0] > LARGEST_ERROR
            ):
                continue
            scratch, at = laws.answer(past + tokens), grids.optimum(losses)
            case = Case(name, origin, params, tokens, past, scratch, at, errors)
            of_scratch = results[name, design.SCRATCH]
            found.append(
                replace(case, broken=breaks(design.SIZES[name], of_scratch, case.pretraining))
            )
    return found


def breaks(size: design.Size, scratch: grids.Runs, rate: int) -> bool:
    """Whether a rate of 2^`rate` is so high that it costs a run from scratch, with the checkpoints' batch size, BROKEN nats."""
    losses = grids.losses_at(scratch, size.tokens(BROKEN_AT))
    best = grids.best_place(losses)
    at = losses.get(grids.Place(rate, size.pretraining.j), losses[best])
    return bool(rate >= best.i and at > losses[best] + BROKEN)


@dataclass(frozen=True)
class Elasticity:
    """d ln(best rate of a continued run) / d ln(rate of its pre-training), all else equal."""

    raw: float
    value: float
    """Of the best rate over Measured's answer."""
    errors: tuple[float, float]
    """Standard errors of both: the jackknife, each checkpoint left out in turn."""
    checkpoints: int


def elasticity(cases: Sequence[Case]) -> Elasticity | None:
    """Least squares with an intercept for each size, text and budget. None unless two rates stay whichever checkpoint is left out."""
    origins = sorted({(case.size, case.origin) for case in cases})
    kept = [[c for c in cases if (c.size, c.origin) != left] for left in origins]
    slopes = [_slopes(some) for some in (cases, *kept)]
    if not origins or any(each is None for each in slopes):
        return None
    whole, *without = (np.array(each) for each in slopes)
    of_raw, of_value = np.sqrt((len(origins) - 1) * np.var(without, axis=0))
    return Elasticity(
        float(whole[0]), float(whole[1]), (float(of_raw), float(of_value)), len(origins)
    )


def _slopes(cases: Sequence[Case]) -> Array | None:
    """(2,) Of the raw rate, and of that over Measured's."""
    groups: dict[tuple[str, str, float], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.size, case.checkpoint.text, case.tokens), []).append(case)
    products, squares = np.zeros(2), 0.0
    for some in groups.values():
        x = np.log(2.0) * np.array([case.pretraining for case in some])
        y = np.array([[case.found.vertex[0], case.over_measured] for case in some])
        products += (x - x.mean()) @ y
        squares += float(np.sum((x - x.mean()) ** 2))
    return products / squares if squares else None


def answer(rule: str, case: Case, all_cases: Sequence[Case]) -> tuple[float, float] | None:
    """ln LR and ln B; None for `rated` without cases of other sizes, or of a rate that it is not for."""
    if rule == "Paper":
        return case.scratch
    rate = case.scratch[0] + STEEPNESS.get(rule, FADE) * np.log(case.share)
    if rule == "rated":
        others = [c for c in all_cases if c.size != case.size and c.checkpoint.ending == "decayed"]
        of = elasticity([c for c in others if c.elastic and c.ratio > LOWEST_RATIO])
        if of is None or case.broken or case.ratio < LOWEST_RATIO:
            return None
        rate += of.value * np.log(case.ratio)
    return float(rate), case.scratch[1] + float(np.log(2.0 - case.share))


def tables(results: design.Results) -> Iterator[str]:
    """Every grid, every case, and the rules by size."""
    yield from _head(
        *("size", "origin", "tokens a parameter", "runs", "lowest loss", "at LR", "at B"),
        *("best LR", "best B"),
    )
    for (name, origin), runs in results.items():
        yield from _grid_rows(design.SIZES[name], origin, runs)
    found = cases(results)
    yield from _head(
        *(
            "size",
            "origin",
            "budget",
            "r",
            "s",
            "LR over laws",
            "B over laws",
        ),
        *(f"{rule} loses" for rule in RULES),
    )
    yield from (_case_row(case, found) for case in found)
    yield from _head(
        *("size", "which", "cases", "LR over Measured's", "B"),
        *RULES,
        "inside LR, B",
    )
    yield from _summary_rows(found)
    yield from _head("size", "ending", "raw", "over Measured", "from a quarter of the laws' rate")
    yield from _elasticity_rows(found)


def _summary_rows(found: Sequence[Case]) -> Iterator[str]:
    """Of every size: by the rate of pre-training over the laws'; then of those that are not broken, by share, and all."""
    for name in sorted({case.size for case in found}):
        of_size = [case for case in found if case.size == name]
        for rate in sorted({case.pretraining for case in of_size}):
            some = [case for case in of_size if case.pretraining == rate]
            ratio = np.exp(np.mean([np.log(case.ratio) for case in some]))
            broken = ", broken" * some[0].broken
            yield _summary_row(f"{name}|rate 2^{rate}, {ratio:.2f} of laws'{broken}", some, found)
        whole = [case for case in of_size if not case.broken]
        for low, high in pairwise(SHARES):
            if some := [case for case in whole if low <= case.share < high]:
                yield _summary_row(f"{name}|s {low:g} to {high:g}", some, found)
        yield _summary_row(f"{name}|all but broken", whole, found)


def _summary_row(name: str, some: Sequence[Case], found: Sequence[Case]) -> str:
    """Geometric means of what was wanted, mean regrets in nats, and how many intervals hold."""
    wanted = [(c.over_measured, c.over_measured_batch) for c in some]
    rate, batch = np.exp(np.mean(wanted, axis=0))
    held = ", ".join(str(sum(each)) for each in zip(*(c.holds() for c in some), strict=True))
    regrets = (_regret(rule, some, found) for rule in RULES)
    return _row(name, str(len(some)), f"{rate:.2f}", f"{batch:.2f}", *regrets, held)


def _elasticity_rows(found: Sequence[Case]) -> Iterator[str]:
    for size, ending in sorted({(c.size, c.checkpoint.ending) for c in found}):
        some = [c for c in found if (c.size, c.checkpoint.ending) == (size, ending) and c.elastic]
        every, upper = elasticity(some), elasticity([c for c in some if c.ratio > LOWEST_RATIO])
        if every and upper:
            cells = (
                (every.raw, every.errors[0]),
                (every.value, every.errors[1]),
                (upper.value, upper.errors[1]),
            )
            yield _row(size, ending, *(f"{slope:.2f} ± {error:.2f}" for slope, error in cells))


def _grid_rows(size: design.Size, origin: str, runs: grids.Runs) -> Iterator[str]:
    for ratio in design.CHECKED:
        losses = grids.losses_at(runs, size.tokens(ratio))
        if len(losses) >= grids.FEWEST:
            best, found, inside = (
                grids.best_place(losses),
                grids.optimum(losses),
                grids.has_optimum(losses),
            )
            interval = _values(found.vertex, grids.standard_errors(losses)) if inside else ("", "")
            lowest = (f"{losses[best]:.3f}", f"{best.rate:.2e}", str(best.batch))
            yield _row(size.name, origin, f"{ratio:g}", str(len(losses)), *lowest, *interval)


def _case_row(case: Case, found: Sequence[Case]) -> str:
    batch_wish = np.exp(case.found.vertex[1] - case.scratch[1])
    return _row(
        *(case.size, case.origin, f"{case.tokens / case.params:.2g}", f"{case.per_param:.2g}"),
        f"{case.share:.2g}",
        *(f"{case.wish:.2f}", f"{batch_wish:.2f}"),
        *(_regret(rule, [case], found) for rule in RULES),
    )


def _regret(rule: str, some: Sequence[Case], found: Sequence[Case]) -> str:
    """Mean, nats."""
    answers = [(case, answer(rule, case, found)) for case in some]
    if any(each is None for _, each in answers):
        return ""
    return f"{np.mean([case.found.regret(*np.exp(said)) for case, said in answers if said]):.4f}"


def _values(vertex: Array, errors: Array) -> tuple[str, str]:
    """With their standard errors, as factors."""
    (rate, batch), (of_rate, of_batch) = np.exp(vertex), np.exp(errors)
    return f"{rate:.2e} (x/ {of_rate:.2f})", f"{batch:.1f} (x/ {of_batch:.2f})"


def _row(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


def _head(*cells: str) -> Iterator[str]:
    yield from ("", _row(*cells), _row(*("---" for _ in cells)))
