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


def test_a_size_for_which_the_law_gives_no_usable_values_needs_a_grid() -> None:
    spec = raised(unplaced(), 10**6)
    with pytest.raises(InvalidSpec) as refused:
        place_sizes(spec)
    assert str(refused.value).startswith(
        "spec.proxies[0].grid: is absent, and no first points can be placed: step-law gives learning rate"
    )
    assert str(refused.value).endswith("give a grid")


def test_a_placed_batch_larger_than_a_sizes_tokens_needs_a_grid() -> None:
    spec = unplaced()
    step = spec.proxies[0].tokens // spec.data.sequence_length
    recorded = (recorded_at(spec, 1e-3, step),)
    with pytest.raises(InvalidSpec) as refused:
        place_sizes(spec, recorded)
    assert str(refused.value).startswith("spec.proxies[0].grid: is absent, and no first points")
    assert "last for 0 steps of the largest placed batch" in str(refused.value)
    assert str(refused.value).endswith("at least 1 are needed; give a grid")


def test_a_checked_design_is_placed_only_where_a_run_has_a_hundred_steps() -> None:
    """As the rule of the API says of grids that are given: it is checked again with the placed ones."""
    spec = unplaced().model_copy(update={"design": "Checked"})
    step = spec.proxies[0].tokens // spec.data.sequence_length // 50
    with pytest.raises(InvalidSpec, match="at least 100 are needed; give a grid"):
        place_sizes(spec, (recorded_at(spec, 1e-3, step),))


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        ({"batchSizeFactor": "10"}, r"lines \(9\) and batchSizeFactor \(10\) give batch size \d+"),
        (
            {"learningRateFactor": "10"},
            r"lines \(9\) and learningRateFactor \(10\) give learning rate \S+, which must .* at most 10",
        ),
    ],
    ids=["batch sizes", "learning rates"],
)
def test_a_lattice_beyond_what_a_grid_may_have_names_the_fields_that_made_it(
    factors: dict[str, str], says: str
) -> None:
    found = parse_sweep_spec(
        sweep_spec(
            grid=None,
            search={"strategy": "Sequential", "placement": {"lines": 9, **factors}},
            proxies=[
                {
                    "name": "a",
                    "model": {"config": example_model("dense-100m")},
                    "tokens": 20_000_000_000,
                }
            ],
        )
    )
    with pytest.raises(InvalidSpec, match=says) as refused:
        place_sizes(found)
    absent = "spec.proxies[0].grid: is absent, and no first points can be placed"
    assert str(refused.value).startswith(absent)
    assert str(refused.value).endswith("lower these, or give a grid")


# ------------------------------------------------------------------ where the law and the lattice put them


def test_the_centre_is_the_published_optimum_at_two_digits() -> None:
    """1.797 N^-0.713 D^0.307 is 2.26e-3, 0.581 D^0.571 tokens are 80 sequences of 8192, for 4.29e8 and 4e10."""
    assert placed_by_law(4.29e8, 4e10, 8192) == (2.3e-3, 80)


def test_sequences_of_half_the_length_are_twice_as_many() -> None:
    assert placed_by_law(4.29e8, 4e10, 4096)[1] == 160


def test_a_lattice_is_about_its_centre_with_two_digits_everywhere() -> None:
    rates, batch_sizes = lattice((1.1e-3, 130), 3, 2.0, 2.0)
    assert rates == (5.5e-4, 1.1e-3, 2.2e-3)
    assert batch_sizes == (65, 130, 260)


def test_an_even_number_of_lines_leaves_the_centre_between_two() -> None:
    assert lattice((2e-3, 100), 4, 4.0, 4.0)[0] == (2.5e-4, 1e-3, 4e-3, 1.6e-2)


def test_about_a_small_batch_the_lattice_begins_at_one_sequence() -> None:
    assert lattice((1e-3, 1), 3, 2.0, 2.0)[1] == (1, 2, 4)


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
