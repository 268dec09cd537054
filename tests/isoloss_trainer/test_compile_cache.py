"""Compiled code in the store: loaded where all that it depends on is the same, and never needed."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import isoloss_trainer.compile_cache as compile_cache
from isoloss_contract import layout
from isoloss_contract.records import EvaluationConfig, OptimizerConfig, PointConfig, content_key
from isoloss_contract.store import Store
from isoloss_trainer.compile_cache import (
    CACHE_VARIABLE,
    CompileCache,
    facts_of_run,
    load_artifacts,
    save_artifacts,
)
from isoloss_trainer.log import Log
from tests.isoloss_trainer.builders import LLAMA, QWEN3, SEQUENCE_LENGTH, uri
from tests.support.compilers import needs_cxx_compiler
from tests.support.warm_python import WarmPython

KEY = "0" * 32
POINT = PointConfig(
    data_digest="0" * 32,
    mixture={"all": 1.0},
    model=LLAMA,
    optimizer=OptimizerConfig(),
    learning_rate=1e-3,
    batch_size=4,
    sequence_length=SEQUENCE_LENGTH,
    evaluation=EvaluationConfig(),
)
RUN: dict[str, Any] = {
    "micro_batch": 4, "recompute": False, "processes": 1, "deterministic": False,
}  # fmt: skip


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def compiled_in_a_new_process(python: WarmPython, store: Path, folder: Path) -> dict[str, int]:
    """How often inductor found code, in a process whose own caches are empty."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    program = ["-m", "tests.isoloss_trainer.test_compile_cache", uri(store)]
    done = python.run(program, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def compile_something(store: Store) -> None:
    """In a process of its own: load, compile, save, and print how often inductor found code."""
    log = Log(io.StringIO())
    loaded = load_artifacts(store, KEY, log)
    weight = torch.ones(8, 8, requires_grad=True)

    def network(numbers: torch.Tensor) -> torch.Tensor:
        return torch.tanh(numbers @ weight).square().mean()

    torch.compile(network)(torch.ones(4, 8)).backward()
    save_artifacts(store, KEY, log)
    from torch._dynamo.utils import counters

    counted = counters["inductor"]
    hits, misses = counted["fxgraph_cache_hit"], counted["fxgraph_cache_miss"]
    autograd = counters["aot_autograd"]["autograd_cache_hit"]
    print(json.dumps({"loaded": int(loaded), "hits": hits + autograd, "misses": misses}))


@pytest.mark.slow
@pytest.mark.whole
@needs_cxx_compiler
def test_what_one_process_compiles_another_finds_in_the_store(
    tmp_path: Path, python: WarmPython
) -> None:
    """By the compiler for the CPU, in two processes that share nothing but the store."""
    first = compiled_in_a_new_process(python, tmp_path / "store", tmp_path / "a")
    second = compiled_in_a_new_process(python, tmp_path / "store", tmp_path / "b")
    assert (first["loaded"], first["hits"]) == (0, 0)
    assert first["misses"] > 0
    assert second["loaded"] == 1
    assert second["hits"] > 0
    assert second["misses"] == 0


@pytest.mark.parametrize(
    ("point", "run"),
    [
        ({"model": QWEN3}, {}),
        ({"sequence_length": 16}, {}),
        ({"precision": "float32"}, {}),
        ({"optimizer": OptimizerConfig(z_loss=1e-4)}, {}),
        ({}, {"micro_batch": 2}),
        ({}, {"recompute": True}),
        ({}, {"processes": 2}),
        ({}, {"deterministic": True}),
    ],
)
def test_another_shape_has_another_key(point: dict[str, Any], run: dict[str, Any]) -> None:
    other = facts_of_run(POINT.model_copy(update=point), **{**RUN, **run})
    assert content_key(other) != content_key(facts_of_run(POINT, **RUN))


def test_points_that_differ_in_numbers_alone_share_their_code() -> None:
    other = POINT.model_copy(update={"learning_rate": 3e-3, "batch_size": 64, "seed": 5})
    assert facts_of_run(other, **RUN) == facts_of_run(POINT, **RUN)


def test_another_torch_device_or_trainer_has_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [content_key(facts_of_run(POINT, **RUN))]
    for name, value in (
        ("__version__", "3.0"),
        ("version.cuda", "99"),
        ("version.git_version", "x"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"torch.{name}", value)
            keys.append(content_key(facts_of_run(POINT, **RUN)))
    with monkeypatch.context() as patch:
        patch.setattr(compile_cache.platform, "machine", lambda: "another")
        keys.append(content_key(facts_of_run(POINT, **RUN)))
    with monkeypatch.context() as patch:
        (tmp_path / "code.py").write_text("pass")
        patch.setattr(compile_cache, "__file__", str(tmp_path / "code.py"))
        keys.append(content_key(facts_of_run(POINT, **RUN)))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 100])
def test_a_damaged_file_is_named_and_not_loaded(content: bytes, tmp_path: Path) -> None:
    store, stream = Store(uri(tmp_path)), io.StringIO()
    store.write(layout.compile_cache(KEY), content)
    assert not load_artifacts(store, KEY, Log(stream))
    (refused,) = events(stream)
    assert "SHA-256" in refused["reason"]


def test_nothing_larger_than_the_bound_is_written_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stream = Store(uri(tmp_path)), io.StringIO()
    monkeypatch.setattr(compile_cache, "MAX_BYTES", 10)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"x" * 11, None))
    save_artifacts(store, KEY, Log(stream))
    assert not store.exists(layout.compile_cache(KEY))
    store.write(layout.compile_cache(KEY), b"x" * 100)
    assert not load_artifacts(store, KEY, Log(stream))
    assert [event["doing"] for event in events(stream)] == ["save", "load"]


@pytest.mark.parametrize(("variable", "cpu"), [("0", False), ("", False), ("1", True)])
def test_nothing_is_asked_of_the_store_unless_wanted_and_compiled(
    variable: str, cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, variable)
    attempt: Any = _attempt(on_cpu=cpu)
    cache = CompileCache(attempt, dict)
    cache.load()
    cache.save()


def test_code_is_left_in_the_store_once_and_not_where_it_was_loaded_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By rank 0 alone; after a micro-batch that was halved the code is another."""
    monkeypatch.setenv(CACHE_VARIABLE, "1")
    saved: list[str] = []
    monkeypatch.setattr(
        compile_cache, "save_artifacts", lambda _store, key, _log: saved.append(key)
    )
    monkeypatch.setattr(compile_cache, "load_artifacts", lambda *_: True)
    facts = {"micro_batch": 4}
    for rank, halved in ((0, False), (1, True), (0, True)):
        facts["micro_batch"] = 4
        cache = CompileCache(_attempt(rank=rank), lambda: dict(facts))
        cache.load()
        facts["micro_batch"] = 2 if halved else 4
        cache.save()
        cache.save()
        for thread in compile_cache.threading.enumerate():
            if thread.name == "compile-cache":
                thread.join()
    assert saved == [content_key({"micro_batch": 2})]


def _attempt(*, on_cpu: bool = False, rank: int = 0) -> Any:
    from types import SimpleNamespace

    world = SimpleNamespace(on_cpu=on_cpu, is_first=rank == 0)
    return SimpleNamespace(store=None, log=None, world=world)


if __name__ == "__main__":
    compile_something(Store(sys.argv[1]))
