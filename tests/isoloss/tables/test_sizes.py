"""A whole size in another unit than the others is found, in one table and in several, and no sweep is suspected wrongly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.science.tables import DENSE, MOE, data_folder, load
from isoloss import datasets
from isoloss.laws import Run
from isoloss.tables import BadTable, read_tables
from isoloss.tables.sizes import mismatches
from tests.support.planted import Grid, Planted, planted_runs
from tests.support.planted_runs import SIZES, write_runs
from tests.support.planted_runs import planted_runs as reported_runs

Change = Callable[[Run], Run]
BIT = 0.6931


def losses_times(factor: float) -> Change:
    return lambda run: replace(run, losses=run.losses * factor)


def tokens_times(factor: float) -> Change:
    return lambda run: replace(run, tokens=run.tokens * factor)


def final(run: Run) -> Run:
    """Its last evaluation alone, as where a table has final losses."""
    return replace(run, tokens=run.tokens[-1:], losses=run.losses[-1:])


def with_size(size: float, change: Change, runs: Sequence[Run] = ()) -> list[Run]:
    """The runs of one size changed."""
    return [change(run) if run.params == size else run for run in runs or reported_runs()]


def table_of(folder: Path, runs: Sequence[Run]) -> str:
    return str(write_runs(folder / "runs.csv", runs))


@pytest.mark.parametrize("factor", [1 / BIT, BIT])
@pytest.mark.parametrize("size", SIZES)
def test_losses_of_one_size_in_bits_are_refused_at_its_first_row(
    size: float, factor: float, tmp_path: Path
) -> None:
    runs = with_size(size, losses_times(factor))
    with pytest.raises(BadTable, match=r"in another unit \(1 bit = 0.6931 nats\)") as caught:
        read_tables([table_of(tmp_path, runs)])
    before = [len(run.tokens) for run in runs if run.params < size]
    assert (caught.value.row, caught.value.column) == (2 + sum(before), "loss")
    assert f"the size of {size:.3g} parameters" in caught.value.message


@pytest.mark.parametrize("factor", [1 / BIT, BIT])
@pytest.mark.parametrize("size", SIZES[:2])
def test_losses_of_one_of_two_sizes_in_bits_are_suspected(size: float, factor: float) -> None:
    two = reported_runs(sizes=SIZES[:2])
    (found,) = mismatches(with_size(size, losses_times(factor), two))
    assert not found.is_certain
    assert found.column == "loss"
    assert "1 bit = 0.6931 nats" in found.message


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e-3])
@pytest.mark.parametrize("size", SIZES)
def test_tokens_of_one_size_in_another_unit_are_refused(size: float, factor: float) -> None:
    assert any(
        found.is_certain and found.column == "tokens"
        for found in mismatches(with_size(size, tokens_times(factor)))
    )


@pytest.mark.parametrize("size", SIZES)
def test_tokens_of_one_size_in_another_unit_are_at_least_suspected_in_final_losses(
    size: float,
) -> None:
    runs = [final(run) for run in with_size(size, tokens_times(1000))]
    found = mismatches(runs)
    assert found
    assert {each.column for each in found} == {"tokens"}
    assert found[0].run.params == size


def params_times(factor: float) -> Change:
    return lambda run: replace(run, params=run.params * factor)


@pytest.mark.parametrize("last", [False, True], ids=["trajectories", "final losses"])
@pytest.mark.parametrize(
    ("size", "factor", "hint"),
    [
        (3e7, 1e-3, "of the size of 3e+04 are in thousands, write 3e+07 in place of 3e+04"),
        (1e8, 1e-3, "of the size of 1e+05 are in thousands, write 1e+08 in place of 1e+05"),
        (3e7, 1e3, "of the size of 3e+10 are a thousand times too large, write 3e+07"),
        (1e8, 1e6, "of the size of 1e+14 are a million times too large, write 1e+08"),
    ],
)
def test_parameters_of_one_of_two_sizes_in_another_unit_are_suspected_with_the_likely_one(
    size: float, factor: float, hint: str, last: bool
) -> None:
    runs = with_size(size, params_times(factor), reported_runs(sizes=SIZES[:2]))
    (found,) = mismatches([final(run) for run in runs] if last else runs)
    assert (found.column, found.is_certain) == ("params", False)
    assert f"check the column params. If the parameters {hint}" in found.message


@pytest.mark.parametrize(
    ("size", "factor", "in_bits"),
    [(3e7, 1 / BIT, "3e+07"), (3e7, BIT, "1e+08"), (1e8, 1 / BIT, "1e+08"), (1e8, BIT, "3e+07")],
)
def test_a_suspicion_of_bits_names_the_column_and_the_size_that_has_them(
    size: float, factor: float, in_bits: str
) -> None:
    (found,) = mismatches(with_size(size, losses_times(factor), reported_runs(sizes=SIZES[:2])))
    assert f"check the column loss. Those of the size of {in_bits} may be in bits" in found.message


@pytest.mark.parametrize(
    ("size", "factor", "hint"),
    [
        (3e7, 1e-3, "of the size of 3e+07 are in thousands, write 4.8e+09 in place of 4.8e+06"),
        (1e8, 1e3, "of the size of 1e+08 are a thousand times too large, write 9e+09"),
    ],
)
def test_a_suspicion_of_tokens_names_the_column_and_the_likely_unit(
    size: float, factor: float, hint: str
) -> None:
    runs = with_size(size, tokens_times(factor), reported_runs(sizes=SIZES[:2]))
    (found,) = mismatches([final(run) for run in runs])
    assert not found.is_certain
    assert f"check the column tokens. If the tokens {hint}" in found.message


def test_sizes_that_are_far_apart_and_differ_as_such_sizes_do_are_not_suspected() -> None:
    grid = Grid(sizes=(1e7, 2e9), tokens=(1e10, 1e10))
    assert mismatches(planted_runs(Planted(), grid, np.random.default_rng(0))) == []


def test_sizes_are_compared_across_tables(tmp_path: Path) -> None:
    sources = []
    for size in SIZES:
        runs = [run for run in with_size(SIZES[1], losses_times(BIT)) if run.params == size]
        sources.append(write_runs(tmp_path / f"{size:g}.csv", runs))
    with pytest.raises(BadTable, match="in another unit") as caught:
        read_tables([str(path) for path in sources])
    assert (caught.value.source, caught.value.row) == (str(sources[1]), 2)


def test_a_suspicion_is_a_warning_that_names_the_table(tmp_path: Path) -> None:
    two = reported_runs(sizes=SIZES[:2])
    source = table_of(tmp_path, with_size(SIZES[1], losses_times(1 / BIT), two))
    (warning,) = read_tables([source]).warnings
    assert warning.startswith(f"{source}: at ")
    assert "which sizes do not explain" in warning


def test_a_small_model_trained_far_longer_than_a_large_one_is_suspected_and_not_refused() -> None:
    grid = Grid(sizes=(1e7, 1e8), tokens=(1e11, 2e8))
    runs = planted_runs(Planted(), grid, np.random.default_rng(0))
    (found,) = mismatches(runs)
    assert (found.column, found.is_certain) == ("tokens", False)


PLANTED = {
    "two": Grid(),
    "three": Grid(sizes=(1e8, 2e8, 4e8), tokens=(1e10, 1.5e10, 2e10), rates=4, batches=4),
    "far apart": Grid(sizes=(1e6, 1e7, 1e8, 1e9), tokens=(1e8, 1e9, 1e10, 1e11)),
    "as far as tokens": Grid(sizes=(1e6, 1e7), tokens=(2e7, 1.9e9)),
    "the smallest longest": Grid(sizes=(1e7, 3e7, 1e8), tokens=(1e10, 5e9, 2e9)),
    "off the optimum": Grid(sizes=(1e8, 3e8, 1e9), tokens=(1e10, 2e10, 3e10), shift=(2.0, -1.5)),
}


@pytest.mark.parametrize("last", [False, True], ids=["trajectories", "final losses"])
@pytest.mark.parametrize("name", PLANTED)
def test_planted_sweeps_are_not_suspected(name: str, last: bool) -> None:
    runs = planted_runs(Planted(), PLANTED[name], np.random.default_rng(1), 0.002, 0.003)
    assert mismatches([final(run) for run in runs] if last else runs) == []


def test_the_sample_runs_are_not_suspected() -> None:
    assert mismatches(datasets.load_sample_runs().runs) == []
    assert mismatches([final(run) for run in reported_runs()]) == []


@pytest.mark.skipif(
    not (data_folder() / DENSE).exists(), reason="the published sweeps are not at hand"
)
@pytest.mark.parametrize("name", [DENSE, MOE])
def test_published_sweeps_are_not_suspected_and_their_sizes_in_bits_are(name: str) -> None:
    table = load(data_folder() / name)
    assert mismatches(table.runs) == []
    for size in table.sizes:
        assert mismatches(with_size(size, losses_times(1 / BIT), table.runs))
        assert mismatches(with_size(size, losses_times(BIT), table.runs))
