"""What holds for every search, however odd what it is asked and sees."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from isoloss.design import Target
from isoloss.laws import FitOptions, Run
from isoloss.search import Point, SearchOptions, Seen, Size, next_step
from tests.support.synthetic import Synthetic

TRUTH = Synthetic()
FIT = FitOptions(bootstrap_samples=5)
LOSSES = {
    "nats": lambda loss, _tokens: loss,
    "thousandths": lambda loss, _tokens: 1e-3 * loss,
    "thousands": lambda loss, _tokens: 1e3 * loss,
    "constant": lambda _loss, _tokens: 3.0,
    "rising": lambda _loss, tokens: 2.0 + 0.1 * math.log(tokens),
}
MOST_STEPS, IN_ANY_ORDER = 400, 3


@st.composite
def sizes(draw):
    """One to three, with grids of 1 to 16 points anywhere about their optima."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        params, tokens = (10.0 ** draw(st.floats(5.0, 12.0)) for _ in range(2))
        rates, batches = (
            2.0 ** (np.arange(count) + draw(st.integers(-5, 3)))
            for count in (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
        )
        found.append(
            Size(
                f"s{number}",
                params,
                tokens,
                tuple(sorted({max(round(b), 1.0) for b in batches * TRUTH.batch(params, tokens)})),
                tuple(float(r) for r in rates * TRUTH.rate(params, tokens)),
                seconds_per_flop=draw(st.sampled_from([None, 1e-15])),
                first_tokens=draw(st.sampled_from([0.0, 0.3, 1.0, 10.0])) * tokens,
            )
        )
    return tuple(found)


@st.composite
def options(draw, grids):
    """With budgets of nothing to half of the grids."""
    share = st.sampled_from([None, None, 0.0, 0.05, 0.1, 0.2, 0.5])
    flops, seconds = draw(share), draw(share)
    target = st.builds(Target, *(st.sampled_from([1.0, 1e9, 1e13]) for _ in range(2)))
    return SearchOptions(
        target=draw(st.one_of(st.none(), target)),
        jobs=draw(st.sampled_from([1, 4, 10_000])),
        max_added_points=draw(st.sampled_from([0, 6, 1000])),
        budget_flops=None if flops is None else flops * grids,
        seconds_left=None if seconds is None else seconds * grids * 1e-15,
        fit=FIT,
    )


def trained(point, size, tokens, kind, evaluations, diverged):
    at = np.geomspace(min(0.02 * size.tokens, 0.5 * tokens), tokens, evaluations)
    if evaluations == 1:
        at = np.array([tokens])
    place = (point.batch_size, point.learning_rate)
    losses = np.array([LOSSES[kind](TRUTH.loss(size.params, t, *place), t) for t in at])
    if diverged:
        losses[-1] = np.nan
    return Run(str(point), size.params, place[0], 2048, place[1], at, losses, diverged=diverged)


@seed(0)
@settings(max_examples=30, deadline=None, database=None)
@given(st.data())
def test_a_search_ends_within_its_budget_and_asks_for_nothing_that_is_closed(data):
    of = {size.name: size for size in data.draw(sizes())}
    asked = data.draw(options(sum(size.grid_flops for size in of.values())))
    kind, evaluations = data.draw(st.sampled_from(sorted(LOSSES))), data.draw(st.integers(1, 8))
    failing, diverging = (data.draw(st.sampled_from([0, 0, 2, 1])) for _ in range(2))
    grid = {point for size in of.values() for point in size.points}
    known, left = dict[Point, Seen](), asked.seconds_left
    for number in range(MOST_STEPS):
        now = replace(asked, seconds_left=left)
        step = next_step(tuple(of.values()), tuple(known.values()), now)
        if number < IN_ANY_ORDER:
            turned = (tuple(each)[::-1] for each in (of.values(), known.values()))
            assert step == next_step(*turned, now)
        named = (step.next_flops, step.next_saves, step.least_flops, step.least_seconds)
        assert all(value is None or 0.0 <= value < math.inf for value in named)
        if step.stop is not None:
            assert not step.decisions
            return
        assert step.decisions
        assert len({decision.point for decision in step.decisions}) == len(step.decisions)
        for decision in step.decisions:
            point, size = decision.point, of[decision.point.size]
            before = known.get(point, Seen(point))
            assert not before.closed
            assert before.tokens < decision.tokens <= size.tokens
            assert decision.added is (point not in grid and point not in known)
            assert 0.0 < decision.flops < math.inf
            assert 0.0 <= decision.saves < math.inf
            if left is not None:
                left -= decision.flops * (size.seconds_per_flop or 0.0)
            fails, diverges = (
                each > 0 and len(known) % each == 0 for each in (failing, diverging)
            )
            run = trained(point, size, decision.tokens, kind, evaluations, diverges)
            known[point] = Seen(point, None if fails else run, decision.tokens, fails)
        spent = sum(of[p.size].token_flops * seen.tokens for p, seen in known.items())
        assert spent <= (asked.budget_flops or math.inf) * (1 + 1e-9)
        assert left is None or left >= -1e-9 * (asked.seconds_left or 0.0)
        assert len(known.keys() - grid) <= asked.max_added_points
    raise AssertionError("the search does not end")
