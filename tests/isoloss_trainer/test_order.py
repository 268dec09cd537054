"""The data order is a function of seed and sequence number, and of nothing else."""

import numpy as np
import pytest

from isoloss_trainer.shards import DataOrder, domain_of, permutation

SIZES = {"a": 7, "b": 50, "c": 11}
MIXTURE = {"a": 0.09, "b": 0.82, "c": 0.09}


def order(seed: int = 0) -> DataOrder:
    return DataOrder(SIZES, MIXTURE, seed)


@pytest.mark.parametrize("batch", [1, 3, 8, 40])
def test_batches_of_any_size_read_the_same_stream(batch: int) -> None:
    whole = order().take(0, 120)
    pieces = order()
    assert [x for start in range(0, 120, batch) for x in pieces.take(start, batch)][:120] == whole


def test_resuming_needs_only_the_count() -> None:
    assert order().take(77, 20) == order().take(0, 97)[77:]


def test_the_order_of_calls_does_not_matter() -> None:
    one = order()
    later = one.take(60, 10)
    assert one.take(10, 5) == order().take(10, 5)
    assert one.take(60, 10) == later


def test_each_pass_reads_every_sequence_once_and_in_another_order() -> None:
    read = [number for domain, number in order().take(0, 400) if domain == "b"]
    first, second = read[:50], read[50:100]
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


def test_passes_over_the_data_are_counted() -> None:
    epochs = order().epochs(1000)
    assert epochs["a"] == pytest.approx(1000 * 0.09 / 7, rel=0.05)


@pytest.mark.parametrize("start", [0, 1, 12345])
@pytest.mark.parametrize("count", [50, 500, 5000])
def test_any_stretch_contains_the_mixture(start: int, count: int) -> None:
    shares = np.array([0.09, 0.82, 0.09])
    counts = np.bincount(domain_of(start, count, shares, seed=3), minlength=3)
    assert np.abs(counts - shares * count).max() <= 4


def test_seeds_give_different_orders() -> None:
    assert order(0).take(0, 50) != order(1).take(0, 50)


def test_a_permutation_never_changes() -> None:
    assert permutation(8, seed=1, domain=0, epoch=0).tolist() == [3, 0, 5, 1, 2, 7, 4, 6]


def test_a_single_domain_gets_all_sequences() -> None:
    assert set(domain_of(0, 100, np.array([1.0]), seed=0).tolist()) == {0}
