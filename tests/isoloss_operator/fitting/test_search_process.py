"""Steps of a search as the operator asks for them, played on a synthetic surface."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isoloss.laws import FitOptions, Run
from isoloss.search import Point, SearchOptions, Seen, Size
from isoloss_operator.decide.choose import search_sizes
from isoloss_operator.decide.fits import SearchRequest, SearchStep
from isoloss_operator.fitting.fit_process import search_step
from isoloss_operator.planning.points import plan_points
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.builders import sweep_spec
from tests.support.models import example_model
from tests.support.synthetic import Synthetic

TRUTH = Synthetic(rate_at=(1.2e-3, -0.4, 0.10), batch_at=(900.0, -0.05, 0.10))
LENGTH = 2048
FIT = FitOptions(bootstrap_samples=20)
SHARES = np.geomspace(0.02, 1.0, 14)


def trained(size: Size, point: Point, tokens: float) -> Run:
    at = np.append(SHARES[SHARES * size.tokens < 0.99 * tokens] * size.tokens, tokens)
    place = (point.batch_size, point.learning_rate)
    losses = np.array([TRUTH.loss(size.params, t, *place) for t in at])
    return Run(str(point), size.params, place[0], LENGTH, place[1], at, losses)


def played(sizes: tuple[Size, ...], most: int = 60) -> tuple[SearchStep, dict[Point, Seen]]:
    """The last step, and what was seen by then."""
    own, seen = {size.name: size for size in sizes}, dict[Point, Seen]()
    for _ in range(most):
        step = search_step(
            SearchRequest(
                sizes=sizes,
                points={str(point): replace(each, run=None) for point, each in seen.items()},
                options=SearchOptions(fit=FIT),
                flops_left=None,
            ),
            {str(point): each.run for point, each in seen.items() if each.run is not None},
            FIT,
        )
        if step.ended:
            return step, seen
        for decision in step.decisions:
            point = Point(decision.size, float(decision.batch_size), decision.learning_rate)
            run = trained(own[point.size], point, decision.tokens)
            seen[point] = Seen(point, run, decision.tokens)
    raise AssertionError("the search does not end")


def searched(**changes: Any) -> tuple[Size, ...]:
    spec = parse_sweep_spec(sweep_spec(search={"strategy": "Sequential"}, **changes))
    points = plan_points(spec)
    return search_sizes(spec, points, dict.fromkeys((p.proxy.name for p in points), 1e-14))


def test_a_neighbour_that_has_no_tokens_for_a_step_is_no_end_of_the_search() -> None:
    """The best batch is the largest of the grid, and the next one, of 1.3e8 tokens, more than a whole run."""
    rates, batches = (5e-4, 1e-3, 2e-3), (4.0, 512.0)
    sizes = tuple(
        Size(name, params, 1.2e8, batches, rates, largest_batch_size=572.0, sequence_length=LENGTH)
        for name, params in (("small", 1e8), ("large", 3e8))
    )
    _, seen = played(sizes)
    assert max(point.batch_size for point in seen) == 512
    larger = [each for point, each in seen.items() if point.size == "large"]
    assert any(each.tokens > 0.99 * 0.6 * 1.2e8 for each in larger)


def test_an_added_point_whose_size_has_too_few_tokens_by_now_is_not_asked_for_again() -> None:
    size = Size(
        "small",
        1e8,
        1.2e8,
        (64.0, 512.0),
        (5e-4, 1e-3, 2e-3),
        largest_batch_size=572.0,
        sequence_length=LENGTH,
    )
    known = {
        Point("small", batch, rate): 0.3 * size.tokens
        for batch in (64.0, 512.0, 65536.0)
        for rate in size.learning_rates
    }
    request = SearchRequest(
        sizes=(size,),
        points={str(p): Seen(p, wanted=wanted) for p, wanted in known.items()},
        options=SearchOptions(fit=FIT),
        flops_left=None,
    )
    runs = {str(p): trained(size, p, wanted) for p, wanted in known.items()}
    step = search_step(request, runs, FIT)
    assert step.decisions
    assert all(each.batch_size != 65536 for each in step.decisions)


@pytest.mark.parametrize(("design", "largest"), [("Checked", 10), ("Unchecked", 1004)])
def test_no_batch_is_added_whose_run_would_be_shorter_than_the_spec_may_ask_for(
    design: str, largest: int
) -> None:
    tokens = {"tiny": 4_000_000, "small": 4_000_000_000_000}
    sizes = searched(
        proxies=[
            {"name": name, "model": {"config": example_model(f"dense-{name}")}, "tokens": of}
            for name, of in tokens.items()
        ],
        grid={"batchSizes": [4, 8], "learningRates": ["1e-3", "2e-3", "4e-3"]},
        data={**sweep_spec()["data"], "sequenceLength": 3984},
        evaluation={"firstTokens": 100_000},
        design=design,
    )
    assert [size.largest_batch_size for size in sizes] == [largest, 1_000_000]
