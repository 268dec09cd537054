"""How training data reach a process: sequence by sequence, verified, ahead of their use, once per node."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isoloss_trainer.shards as shards_module
from isoloss_contract.store import Store
from isoloss_trainer.shards import DomainTokens, PreparedData, TrainingSequences
from isoloss_trainer.termination import BadData, Interruption
from isoloss_trainer.train import train
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import MIXTURE, SEQUENCE_LENGTH, quiet
from tests.isoloss_trainer.conftest import Prepared

SEQUENCE_BYTES = 4 * (SEQUENCE_LENGTH + 1)


class Requests:
    """What is asked of the store from now on, as if it were in object storage and of a large corpus,
    or of a small one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, large: bool = True) -> None:
        self.ranges: Counter[tuple[str, int]] = Counter()
        self.whole: Counter[str] = Counter()
        read, read_range = Store.read, Store.read_range

        def counted(store: Store, path: str, **options: int) -> bytes:
            self.whole[path] += 1
            return read(store, path, **options)

        def counted_range(store: Store, path: str, start: int, size: int) -> bytes:
            assert size == SEQUENCE_BYTES
            self.ranges[path, start] += 1
            return read_range(store, path, start, size)

        monkeypatch.setattr(Store, "read", counted)
        monkeypatch.setattr(Store, "read_range", counted_range)
        monkeypatch.setattr(shards_module, "LOCAL", "nothing is local://")
        if large:
            monkeypatch.setattr(shards_module, "COPIED_BYTES", 0)


def sequences(prepared: Prepared, scratch: Path, world: World | None = None) -> TrainingSequences:
    data = PreparedData(prepared.data_uri, scratch)
    return TrainingSequences(data, MIXTURE, seed=3, world=world)


def read_all(stream: TrainingSequences, steps: int, size: int = 6) -> torch.Tensor:
    """The first `steps` batches; nothing more is asked for when this returns."""
    found = torch.cat([stream.read(step * size, size) for step in range(steps)])
    stream.close()
    return found


@pytest.mark.parametrize("large", [True, False])
def test_a_batch_is_the_same_from_a_volume_and_from_object_storage(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    local = read_all(sequences(prepared, tmp_path / "a"), 4)
    Requests(monkeypatch, large=large)
    assert torch.equal(read_all(sequences(prepared, tmp_path / "b"), 4), local)


def test_the_shards_of_a_small_corpus_are_copied_once_per_node(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(monkeypatch, large=False)
    for _process in range(2):
        read_all(sequences(prepared, tmp_path / "node"), 4)
    assert not requests.ranges
    shards = [shard.path for domain in prepared.manifest.domains for shard in domain.training]
    assert {requests.whole[path] for path in shards} == {1}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-8], "bytes, expected"),
        (lambda content: content[:64] + b"?" + content[65:], "SHA-256 differs"),
    ],
)
def test_a_damaged_copy_is_refused(
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes],
    words: str,
) -> None:
    domain = prepared.manifest.domains[0]
    path = prepared.data_folder / domain.training[0].path
    path.write_bytes(damage(path.read_bytes()))
    Requests(monkeypatch, large=False)
    with pytest.raises(BadData, match=words) as caught:
        PreparedData(prepared.data_uri, tmp_path).training(domain.name).window(0)
    assert caught.value.code == "ShardCorrupt"


def test_object_storage_is_asked_for_single_sequences_and_no_shard(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(monkeypatch)
    stream = sequences(prepared, tmp_path)
    read_all(stream, 4)
    assert max(requests.ranges.values()) == 1
    assert 24 <= len(requests.ranges) <= 30
    shards = {shard.path for domain in prepared.manifest.domains for shard in domain.training}
    assert not shards & requests.whole.keys()


def test_the_next_batch_is_asked_for_while_this_one_is_used(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(monkeypatch)
    stream = sequences(prepared, tmp_path)
    stream.read(0, 6)
    assert stream._ahead is not None
    (start, count), asked = stream._ahead
    assert (start, count) == (6, 6)
    asked.result()
    assert len(requests.ranges) == 12
    before = Counter(requests.ranges)
    stream.read(6, 6)
    assert all(requests.ranges[place] == times for place, times in before.items())
    stream.close()


def test_reading_ahead_gives_the_same_sequences_whatever_is_asked_for(
    prepared: Prepared, tmp_path: Path
) -> None:
    """Also by steps back and by other batch sizes, for which what was read ahead is of no use."""
    stream = sequences(prepared, tmp_path)
    for start, count in ((0, 4), (4, 4), (8, 4), (4, 4), (0, 3), (3, 5), (8, 4)):
        domains = stream.order.take(start, count)
        wanted = [stream._domains[name].window(number) for name, number in domains]
        assert torch.equal(stream.read(start, count), torch.tensor(np.stack(wanted).astype(int)))
    stream.close()


@pytest.mark.parametrize("remote", [False, True])
def test_damage_that_the_readers_thread_finds_ends_the_run_by_its_own_name(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    """It comes with the batch that has the sequence, and not before."""
    if remote:
        Requests(monkeypatch)
    stream = sequences(prepared, tmp_path)
    original = DomainTokens.window

    def damaged(self: DomainTokens, number: int) -> Any:
        if (self, number) == third:
            raise BadData("ShardCorrupt", "tokens from 64 on differ from their hash")
        return original(self, number)

    name, number = stream.order.take(2, 1)[0]
    third = (stream._domains[name], number)
    monkeypatch.setattr(DomainTokens, "window", damaged)
    stream.read(0, 1)
    stream.read(1, 1)
    with pytest.raises(BadData, match="tokens from 64 on"):
        stream.read(2, 1)
    stream.close()


def test_the_readers_thread_ends_with_the_run(prepared: Prepared, tmp_path: Path) -> None:
    def readers() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("batches")]

    before = len(readers())
    stream = sequences(prepared, tmp_path)
    stream.read(0, 4)
    assert len(readers()) == before + 1
    stream.close()
    assert len(readers()) == before
    train(prepared.train_task(), tmp_path, Interruption(), quiet())
    assert len(readers()) == before


def test_processes_read_their_own_share_and_what_all_need_once(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_all(sequences(prepared, tmp_path / "local"), 3)
    requests = Requests(monkeypatch)
    found = torch.zeros_like(whole)
    for rank in range(2):
        world = World(rank=rank, size=2)
        mine = read_all(sequences(prepared, tmp_path / "node", world), 3)
        own = torch.zeros(len(whole), dtype=torch.bool)
        for step in range(3):
            share = world.share(6)
            own[step * 6 + share.start : step * 6 + share.stop] = True
        assert not mine[~own].any()
        found += mine
    assert torch.equal(found, whole)
    assert max(requests.ranges.values()) == 1
    hashes = [path for path in requests.whole if path.endswith(".windows")]
    assert hashes
    assert all(requests.whole[path] == 1 for path in hashes)


def test_a_damaged_sequence_is_refused_and_a_sound_one_read(
    prepared: Prepared, tmp_path: Path
) -> None:
    domain = prepared.manifest.domains[0]
    path = prepared.data_folder / domain.training[0].path
    content = bytearray(path.read_bytes())
    content[5 * 4 * SEQUENCE_LENGTH + 8] ^= 1
    path.write_bytes(content)
    training = PreparedData(prepared.data_uri, tmp_path).training(domain.name)
    assert len(training.window(4)) == SEQUENCE_LENGTH + 1
    with pytest.raises(BadData) as caught:
        training.window(5)
    assert caught.value.code == "ShardCorrupt"


def test_a_shard_that_ends_too_early_is_refused(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = prepared.manifest.domains[0]
    path = prepared.data_folder / domain.training[0].path
    path.write_bytes(path.read_bytes()[: -2 * SEQUENCE_BYTES])
    with pytest.raises(BadData):
        PreparedData(prepared.data_uri, tmp_path).training(domain.name).window(0)
    Requests(monkeypatch)
    training = PreparedData(prepared.data_uri, tmp_path).training(domain.name)
    with pytest.raises(BadData, match="ends before"):
        training.window(training.sequences - 1)
