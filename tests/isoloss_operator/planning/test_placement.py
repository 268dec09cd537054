"""Sweeps that leave their grid to the search: where their points go, and what is refused."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from isoloss_contract.ledger import Placement
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.planning import placement
from isoloss_operator.planning.points import plan_points
from isoloss_operator.planning.specs import InvalidSpec, parse_sweep_spec
from tests.support.builders import manifest, sweep_spec
from tests.support.models import example_model

SEQUENTIAL = {"strategy": "Sequential"}
PROXIES = [
    {"name": "tiny", "model": {"config": example_model("dense-tiny")}, "tokens": 4_000_000},
    {"name": "small", "model": {"config": example_model("dense-small")}, "tokens": 8_000_000},
]
OWN = {"batchSizes": [4, 8], "learningRates": ["1e-3", "2e-3"]}


def unplaced(**changes: Any) -> ScalingSweepSpec:
    """Two sizes without a grid."""
    return parse_sweep_spec(
        sweep_spec(**{"proxies": PROXIES, "grid": None, "search": SEQUENTIAL, **changes})
    )


def placed(spec: ScalingSweepSpec) -> ScalingSweepSpec:
    return placement.place_sizes(spec).spec


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
    assert placement.place_sizes(spec).places == placement.place_sizes(spec).places
    assert placed(placed(spec)) == placed(spec)


def recorded_at(spec: ScalingSweepSpec, learning_rate: float, batch_size: int) -> Placement:
    proxy = spec.proxies[0]
    return Placement(
        proxy.name, learning_rate, batch_size, placement.SOURCE, placement.model_key(proxy)
    )


def test_a_recorded_place_stands_when_tokens_are_raised() -> None:
    """The published law would move it, and every point trained so far would be dropped."""
    spec = unplaced()
    recorded = placement.place_sizes(spec).places
    assert placement.place_sizes(raised(spec)).places != recorded
    assert placement.place_sizes(raised(spec), recorded).places == recorded


def test_a_renamed_size_keeps_its_place() -> None:
    """It is known by its model: under another name its points are the same, wherever the law would put them now."""
    spec = raised(unplaced())
    recorded = placement.place_sizes(unplaced()).places
    renamed = renaming(spec, "tiny", "least")
    assert [place.proxy for place in placement.place_sizes(renamed, recorded).places] == [
        "least",
        "small",
    ]
    assert centres(placement.place_sizes(renamed, recorded).places) == centres(recorded)


def test_two_sizes_that_exchange_their_names_keep_nothing_of_each_other() -> None:
    """Their models are others: a name alone places nothing."""
    recorded = placement.place_sizes(unplaced()).places
    swapped = renaming(renaming(renaming(unplaced(), "tiny", "x"), "small", "tiny"), "x", "small")
    assert placement.place_sizes(swapped, recorded).places == placement.place_sizes(swapped).places


def test_two_sizes_of_one_model_keep_a_place_each() -> None:
    """Though a search refuses them with its spec."""
    small = unplaced().proxies[1]
    longer = small.model_copy(update={"name": "longer", "tokens": 40_000_000})
    spec = unplaced().model_copy(update={"proxies": (small, longer)})
    recorded = placement.place_sizes(spec).places
    assert recorded[0].learning_rate != recorded[1].learning_rate
    assert placement.place_sizes(raised(spec), recorded).places == recorded


def test_what_is_kept_of_former_places_is_bounded_and_has_no_present_one() -> None:
    spec = unplaced()
    recorded = placement.place_sizes(spec).places
    assert placement.former_places(recorded, recorded, {}) == ()
    assert placement.former_places(recorded, recorded[:1], {}) == recorded[1:]
    many = tuple(replace(recorded[0], proxy=f"p{n}") for n in range(150))
    assert placement.former_places(many, (), {}) == many[-100:]


def renaming(spec: ScalingSweepSpec, old: str, new: str) -> ScalingSweepSpec:
    proxies = (p.model_copy(update={"name": new}) if p.name == old else p for p in spec.proxies)
    return spec.model_copy(update={"proxies": tuple(proxies)})


def centres(places: Iterable[Placement]) -> list[tuple[float, int]]:
    return [(place.learning_rate, place.batch_size) for place in places]


def test_the_lattice_about_a_recorded_place_is_the_specs() -> None:
    spec = unplaced(search={**SEQUENTIAL, "placement": {"lines": 4, "batchSizeFactor": "3"}})
    recorded = (recorded_at(spec, 1e-3, 100),)
    grid = placement.place_sizes(spec, recorded).spec.proxies[0].grid
    assert grid is not None
    assert grid.batch_sizes == (19, 58, 170, 520)
    assert grid.learning_rates == ("0.00035", "0.00071", "0.0014", "0.0028")


def test_a_size_with_a_grid_keeps_it() -> None:
    small, large = PROXIES
    spec = unplaced(proxies=[{**small, "grid": OWN}, large])
    assert [proxy.name for proxy in placement.sizes_to_place(spec)] == [large["name"]]
    assert placed(spec).proxies[0].grid == spec.proxies[0].grid


@pytest.mark.parametrize("search", [{}, SEQUENTIAL])
def test_a_sweep_with_a_grid_is_left_as_it_is(search: dict[str, Any]) -> None:
    spec = parse_sweep_spec(sweep_spec(search=search))
    assert placement.place_sizes(spec).places == ()
    assert placement.place_sizes(spec, ()).spec is spec


def test_an_exhaustive_sweep_without_a_grid_is_refused() -> None:
    with pytest.raises(InvalidSpec) as refused:
        unplaced(search={})
    assert str(refused.value) == (
        "spec: set spec.grid, or a grid for every proxy: only search.strategy Sequential begins without one"
    )


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
    (found,) = placement.place_sizes(unplaced(proxies=[proxy], evaluation={})).places
    assert found.learning_rate == 1.4e-3


def test_a_size_for_which_the_law_gives_no_usable_values_needs_a_grid() -> None:
    spec = raised(unplaced(), 10**6)
    with pytest.raises(InvalidSpec) as refused:
        placement.place_sizes(spec)
    assert str(refused.value).startswith(
        "spec.proxies[0].grid: is absent, and no first points can be placed: step-law gives learning rate"
    )
    assert str(refused.value).endswith("give a grid")


def test_a_placed_batch_larger_than_a_sizes_tokens_needs_a_grid() -> None:
    spec = unplaced()
    step = spec.proxies[0].tokens // spec.data.sequence_length
    recorded = (recorded_at(spec, 1e-3, step),)
    with pytest.raises(InvalidSpec) as refused:
        placement.place_sizes(spec, recorded)
    assert str(refused.value).startswith("spec.proxies[0].grid: is absent, and no first points")
    assert "last for 0 steps of the largest placed batch" in str(refused.value)
    assert str(refused.value).endswith("at least 1 are needed; give a grid")


def test_a_checked_design_is_placed_only_where_a_run_has_a_hundred_steps() -> None:
    """As the rule of the API says of grids that are given: it is checked again with the placed ones."""
    spec = unplaced().model_copy(update={"design": "Checked"})
    step = spec.proxies[0].tokens // spec.data.sequence_length // 50
    with pytest.raises(InvalidSpec, match="at least 100 are needed; give a grid"):
        placement.place_sizes(spec, (recorded_at(spec, 1e-3, step),))


def test_a_lattice_beyond_what_a_grid_may_have_needs_a_grid() -> None:
    spec = unplaced(search={**SEQUENTIAL, "placement": {"lines": 9, "learningRateFactor": "10"}})
    with pytest.raises(InvalidSpec) as refused:
        placed(spec)
    assert "a learning rate above 0 and at most 10" in str(refused.value)
    assert str(refused.value).startswith(
        "spec.proxies[0].grid: is absent, and no first points can be placed"
    )


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        ({"batchSizeFactor": "10"}, r"lines \(9\) and batchSizeFactor \(10\) give batch size \d+"),
        (
            {"learningRateFactor": "10"},
            r"lines \(9\) and learningRateFactor \(10\) give learning rate \S+",
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
        placement.place_sizes(found)
    assert str(refused.value).endswith("lower these, or give a grid")
