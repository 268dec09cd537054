"""What a sequential search is expected to cost: as measured by grid size, never more than grid and additions."""

import re
from pathlib import Path

import pytest

from isoloss.design import Target
from isoloss.formatting import number
from isoloss.search.plan import TARGET
from isoloss_operator.planning.points import PlannedPoint, plan_points
from isoloss_operator.planning.search_cost import (
    MEASURED,
    MEASURED_TARGET,
    PARALLELISM,
    MeasuredShare,
    SearchEstimate,
    search_estimate,
)
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.builders import sweep_spec

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "search.md"


def estimate(lines: int, added: int = 4) -> tuple[SearchEstimate, tuple[PlannedPoint, ...]]:
    grid = {
        "batchSizes": [4 * 2**n for n in range(lines)],
        "learningRates": [f"{n + 1}e-3" for n in range(lines)],
    }
    points = plan_points(parse_sweep_spec(sweep_spec(grid=grid)))
    return search_estimate(points, added), points


def test_the_measured_shares_are_those_of_the_page() -> None:
    rows = re.findall(
        r"^\| (?:(\d) x \d)(?: grids)? \((\d+)\) \| ([\d.]+) / ([\d.]+) \|",
        PAGE.read_text(),
        re.MULTILINE,
    )
    assert [(int(a), int(b), float(c), float(d)) for a, b, c, d in rows] == [
        (each.lines, each.sweeps, each.mean, each.worst) for each in MEASURED
    ]


def test_the_jobs_at_work_are_those_of_the_page() -> None:
    text = PAGE.read_text()
    (header,) = re.findall(r"^\| Jobs at work, of at most \|(.*)\|$", text, re.MULTILINE)
    assert [int(each) for each in header.split("|")] == list(PARALLELISM)
    rows = re.findall(r"^\| (\d) x \d(?: grids)? \|((?: [\d.]+ \|){5})$", text, re.MULTILINE)
    assert [(int(a), tuple(float(x) for x in b.split("|")[:-1])) for a, b in rows] == [
        (each.lines, each.at_work) for each in MEASURED
    ]


@pytest.mark.parametrize("measured", MEASURED)
def test_jobs_at_work_between_and_beyond_what_was_measured(measured: MeasuredShare) -> None:
    """One Job is always at work; more than the most that was measured keep no more of them busy."""
    assert measured.jobs_at_work(1) == 1.0
    assert measured.at_work[2] < measured.jobs_at_work(6) < measured.at_work[3]
    assert measured.jobs_at_work(1000) == measured.at_work[-1]


def test_a_search_takes_what_its_jobs_at_work_leave_of_each_size() -> None:
    found, _ = estimate(3)
    hours = {size.name: 10.0 * (k + 1) for k, size in enumerate(found.sizes)}
    one, four = found.elapsed(hours, 1), found.elapsed(hours, 4)
    assert one == pytest.approx(MEASURED[0].mean * sum(hours.values()))
    assert four == pytest.approx(one / MEASURED[0].jobs_at_work(4))


@pytest.mark.parametrize("measured", MEASURED)
def test_a_grid_is_expected_to_cost_what_grids_of_its_size_did(measured: MeasuredShare) -> None:
    found, points = estimate(measured.lines)
    whole = sum(point.flops for point in points)
    assert found.grid_flops == pytest.approx(whole)
    assert found.expected_flops == pytest.approx(measured.mean * whole)
    assert f"{measured.lines} x {measured.lines}" in found.basis
    assert "nearest" not in found.basis


def test_at_worst_every_point_is_trained_and_all_that_may_be_added_at_the_dearest_size() -> None:
    found, points = estimate(4, added=3)
    dearest = max(point.flops for point in points)
    assert found.worst_flops == pytest.approx(found.grid_flops + 3 * dearest)


@pytest.mark.parametrize("lines", [2, 6])
def test_a_grid_of_a_size_that_was_not_measured_says_so(lines: int) -> None:
    assert "the nearest grids to these" in estimate(lines)[0].basis


@pytest.mark.parametrize(
    ("times", "of_measured"),
    [(None, 1.0), (200.0, 1.0), (1000.0, 1.95), (316.23, 1.29), (1e6, 3.6), (1.0, 0.45)],
)
def test_the_larger_the_target_the_more_is_expected_to_be_trained(times, of_measured) -> None:
    assert MEASURED_TARGET == TARGET
    default, points = estimate(5)
    dearest = max(point.flops for point in points)
    found = search_estimate(points, 4, times and Target(1e9, times * dearest / 6e9))
    of_default = found.expected_flops / default.expected_flops
    assert of_default == pytest.approx(of_measured, abs=0.01)
    one_by_one = {size.name: 1.0 for size in found.sizes}
    assert found.elapsed(one_by_one, 4) == pytest.approx(
        of_default * default.elapsed(one_by_one, 4)
    )
    assert f"this one is {number(times or 200.0, 2)} times" in found.basis


def test_no_search_is_expected_to_cost_more_than_at_worst() -> None:
    _, points = estimate(3)
    found = search_estimate(points, 0, Target(1e12, 1e14))
    assert found.expected_flops == pytest.approx(found.worst_flops)
