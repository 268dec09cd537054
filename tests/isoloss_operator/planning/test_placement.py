"""Sweeps that leave their grid to the search: where their points go, and what is refused."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isoloss_contract.ledger import Placement
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.planning.points import (
    SOURCE,
    former_places,
    lattice,
    model_key,
    place_sizes,
    placed_by_law,
    plan_points,
    sizes_to_place,
)
from isoloss_operator.planning.specs import InvalidSpec, parse_sweep_spec
from tests.support.builders import manifest, sweep_spec
from tests.support.models import example_model

SEQUENTIAL = {"strategy": "Sequential"}
PROXIES = [
    {"name": "tiny", "model": {"config": example_model("dense-tiny")}, "tokens": 4_000_000},
    {"name": "small", "model": {"config": example_model("dense-small")}, "tokens": 8_000_000},
]
factors = st.floats(1.5, 10.0)
OWN = {"batchSizes": [4, 8], "learningRates": ["1e-3", "2e-3"]}


def unplaced(**changes: Any) -> ScalingSweepSpec:
    """Two sizes without a grid."""
    return parse_sweep_spec(
        sweep_spec(**{"proxies": PROXIES, "grid": None, "search": SEQUENTIAL, **changes})
    )


def placed(spec: ScalingSweepSpec) -> ScalingSweepSpec:
    return place_sizes(spec).spec


def raised(spec: ScalingSweepSpec, times: int = 2) -> ScalingSweepSpec:
    """With more tokens."""
    more = tuple(p.model_copy(update={"tokens": times * p.tokens}) for p in spec.proxies)
    return spec.model_copy(update={"proxies": more})


def test_every_size_gets_three_by_three_points_about_a_place_of_its_own() -> None:
    spec = placed(unplaced())
    points = plan_points(spec, manifest(sweep_spec()))
    assert len(points) == len({point.key for point in points}) == 9 * len(spec.proxies)
    first, second = (spec.grid_of(proxy) for proxy in spec.proxies)
    assert first.learning_rates != second.learning_rates


def test_places_are_the_same_on_every_pass_and_do_not_depend_on_the_corpus() -> None:
    spec = unplaced()
    assert place_sizes(spec).places == place_sizes(spec).places
    assert placed(placed(spec)) == placed(spec)


def recorded_at(spec: ScalingSweepSpec, learning_rate: float, batch_size: int) -> Placement:
    proxy = spec.proxies[0]
    return Placement(proxy.name, learning_rate, batch_size, SOURCE, model_key(proxy))


def test_a_recorded_place_stands_when_tokens_are_raised() -> None:
    """The published law would move it, and every point trained so far would be dropped."""
    spec = unplaced()
    recorded = place_sizes(spec).places
    assert place_sizes(raised(spec)).places != recorded
    assert place_sizes(raised(spec), recorded).places == recorded


def test_a_renamed_size_keeps_its_place() -> None:
    """It is known by its model: under another name its points are the same, wherever the law would put them now."""
    spec = raised(unplaced())
    recorded = place_sizes(unplaced()).places
    renamed = renaming(spec, "tiny", "least")
    assert [place.proxy for place in place_sizes(renamed, recorded).places] == [
        "least",
        "small",
    ]
    assert centres(place_sizes(renamed, recorded).places) == centres(recorded)


def test_two_sizes_that_exchange_their_names_keep_nothing_of_each_other() -> None:
    """Their models are others: a name alone places nothing."""
    recorded = place_sizes(unplaced()).places
    swapped = renaming(renaming(renaming(unplaced(), "tiny", "x"), "small", "tiny"), "x", "small")
    assert place_sizes(swapped, recorded).places == place_sizes(swapped).places


def test_two_sizes_of_one_model_keep_a_place_each() -> None:
    """Though a search refuses them with its spec."""
    small = unplaced().proxies[1]
    longer = small.model_copy(update={"name": "longer", "tokens": 40_000_000})
    spec = unplaced().model_copy(update={"proxies": (small, longer)})
    recorded = place_sizes(spec).places
    assert recorded[0].learning_rate != recorded[1].learning_rate
    assert place_sizes(raised(spec), recorded).places == recorded


def test_what_is_kept_of_former_places_is_bounded_and_has_no_present_one() -> None:
    spec = unplaced()
    recorded = place_sizes(spec).places
    assert former_places(recorded, recorded) == ()
    assert former_places(recorded, recorded[:1]) == recorded[1:]
    many = tuple(replace(recorded[0], proxy=f"p{n}") for n in range(150))
    assert former_places(many, ()) == many[-100:]


def renaming(spec: ScalingSweepSpec, old: str, new: str) -> ScalingSweepSpec:
    proxies = (p.model_copy(update={"name": new}) if p.name == old else p for p in spec.proxies)
    return spec.model_copy(update={"proxies": tuple(proxies)})


def centres(places: Iterable[Placement]) -> list[tuple[float, int]]:
    return [(place.learning_rate, place.batch_size) for place in places]


def test_the_lattice_about_a_recorded_place_is_the_specs() -> None:
    spec = unplaced(search={**SEQUENTIAL, "placement": {"lines": 4, "batchSizeFactor": "3"}})
    recorded = (recorded_at(spec, 1e-3, 100),)
    grid = place_sizes(spec, recorded).spec.proxies[0].grid
    assert grid is not None
    assert grid.batch_sizes == (19, 58, 170, 520)
    assert grid.learning_rates == ("0.00035", "0.00071", "0.0014", "0.0028")


def test_a_size_with_a_grid_keeps_it() -> None:
    small, large = PROXIES
    spec = unplaced(proxies=[{**small, "grid": OWN}, large])
    assert [proxy.name for proxy in sizes_to_place(spec)] == [large["name"]]
    assert placed(spec).proxies[0].grid == spec.proxies[0].grid


@pytest.mark.parametrize("search", [{}, SEQUENTIAL])
def test_a_sweep_with_a_grid_is_left_as_it_is(search: dict[str, Any]) -> None:
    spec = parse_sweep_spec(sweep_spec(search=search))
    assert place_sizes(spec).places == ()
    assert place_sizes(spec, ()).spec is spec


def test_points_are_counted_before_they_are_placed() -> None:
    spec = unplaced(search={**SEQUENTIAL, "placement": {"lines": 5}})
    assert spec.points == placed(spec).points == 50
    assert spec.direct_runs == 25


def test_all_experts_of_a_mixture_count_for_its_learning_rate() -> None:
    """By its active parameters alone it would be three times as high."""
    proxy = {
        "name": "experts",
        "model": {"config": example_model("moe-100m")},
        "tokens": 10_000_000_000,
    }
    (found,) = place_sizes(unplaced(proxies=[proxy], evaluation={})).places
    assert found.learning_rate == 1.4e-3


def wide(**factors: str) -> ScalingSweepSpec:
    """A lattice of nine lines."""
    large = {"model": {"config": example_model("dense-100m")}, "tokens": 20_000_000_000}
    placement = {"lines": 9, **factors}
    return unplaced(
        search={**SEQUENTIAL, "placement": placement},
        proxies=[{"name": "a", **large}],
        evaluation={},
    )


def with_steps(count: int, spec: ScalingSweepSpec) -> tuple[ScalingSweepSpec, Placement]:
    """A recorded place at whose batch size the first size has so many steps."""
    batch = spec.proxies[0].tokens // spec.data.sequence_length // count
    return spec, recorded_at(spec, 1e-3, batch)


CHECKED = unplaced().model_copy(update={"design": "Checked"})


@pytest.mark.parametrize(
    ("spec", "recorded", "says"),
    [
        (raised(unplaced(), 10**6), (), r"step-law gives learning rate .*; give a grid"),
        (
            *with_steps(1, unplaced()),
            r"last for 0 steps of the largest placed batch.* at least 1 are needed; give a grid",
        ),
        # As the rule of the API says of grids that are given: it is checked again with the placed ones.
        (*with_steps(50, CHECKED), r"at least 100 are needed; give a grid"),
        (
            wide(batchSizeFactor="10"),
            (),
            r"lines \(9\) and batchSizeFactor \(10\) give batch size \d+.*; lower these, or give a grid",
        ),
        (
            wide(learningRateFactor="10"),
            (),
            r"lines \(9\) and learningRateFactor \(10\) give learning rate \S+, which must .* at most 10.*"
            "; lower these, or give a grid",
        ),
    ],
    ids=["beyond the law", "no step", "a checked design", "batch sizes", "learning rates"],
)
def test_a_size_that_cannot_be_placed_needs_a_grid(
    spec: ScalingSweepSpec, recorded: Any, says: str
) -> None:
    """The fields that made a lattice which no grid may have are named."""
    known = (recorded,) if recorded else ()
    absent = r"spec.proxies\[0\].grid: is absent, and no first points can be placed: .*"
    with pytest.raises(InvalidSpec, match=f"^{absent}{says}$"):
        place_sizes(spec, known)


# ------------------------------------------------------------------ where the law and the lattice put them


@pytest.mark.parametrize(("length", "batch_size"), [(8192, 80), (4096, 160)])
def test_the_centre_is_the_published_optimum_at_two_digits(length: int, batch_size: int) -> None:
    """1.797 N^-0.713 D^0.307 is 2.26e-3, 0.581 D^0.571 tokens are 80 sequences of 8192, for 4.29e8 and 4e10."""
    assert placed_by_law(4.29e8, 4e10, length) == (2.3e-3, batch_size)


@pytest.mark.parametrize(
    ("centre", "lines", "factor", "rates", "batch_sizes"),
    [
        ((1.1e-3, 130), 3, 2.0, (5.5e-4, 1.1e-3, 2.2e-3), (65, 130, 260)),
        ((2e-3, 100), 4, 4.0, (2.5e-4, 1e-3, 4e-3, 1.6e-2), (12, 50, 200, 800)),
        ((1e-3, 1), 3, 2.0, (5e-4, 1e-3, 2e-3), (1, 2, 4)),
    ],
    ids=["odd", "an even number leaves the centre between two", "from one sequence on"],
)
def test_a_lattice_is_about_its_centre_with_two_digits_everywhere(
    centre: tuple[float, int],
    lines: int,
    factor: float,
    rates: tuple[float, ...],
    batch_sizes: tuple[int, ...],
) -> None:
    assert lattice(centre, lines, factor, factor) == (rates, batch_sizes)


@given(st.floats(1e-7, 0.1), st.integers(1, 10**6), st.integers(2, 9), factors, factors)
@example(rate=1e-3, batch=1, lines=2, rate_factor=2.0, batch_factor=1.6875)  # 1.5 and 2.5
def test_lines_ascend_whatever_the_centre_and_the_factors(
    rate: float, batch: int, lines: int, rate_factor: float, batch_factor: float
) -> None:
    rates, batch_sizes = lattice((rate, batch), lines, rate_factor, batch_factor)
    assert len(rates) == len(batch_sizes) == lines
    assert batch_sizes[0] >= 1
    assert all(a < b for a, b in pairwise(rates))
    assert all(a < b for a, b in pairwise(batch_sizes))


@given(st.floats(1e-5, 0.1), st.integers(100, 10**6))
def test_rounding_moves_a_line_by_a_twentieth_at_most(rate: float, batch: int) -> None:
    rates, _ = lattice((rate, batch), 3, 2.0, 2.0)
    for value, exact in zip(rates, (0.5, 1.0, 2.0), strict=True):
        assert abs(math.log(value / (exact * rate))) < 0.05
