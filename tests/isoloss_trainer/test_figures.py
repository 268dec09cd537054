"""What people see of a run: a line of figures, curves, and that neither can slow or fail it."""

import io
import json
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from isoloss_contract import layout
from isoloss_contract.records import TrainTask
from isoloss_contract.store import Store
from isoloss_operator.planning.flops import executed_flops, six_nd
from isoloss_operator.planning.models import attention_shapes, parameter_counts
from isoloss_trainer import run_log
from isoloss_trainer.log import Log
from isoloss_trainer.model import build_network, count_parameters
from isoloss_trainer.termination import BadConfiguration, Interruption
from isoloss_trainer.train import train
from isoloss_trainer.world import World
from tests.isoloss_trainer.conftest import Prepared
from tests.support.models import SHAPES, TOYS, example_model

GPU = World(device="cuda:0", size=2)


@pytest.fixture(autouse=True)
def _no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*run_log.WANDB_VARIABLES, run_log.PEAK_FLOPS_VARIABLE):
        monkeypatch.delenv(name, raising=False)


# ------------------------------------------------------------------------------- utilisation


@pytest.mark.parametrize("name", SHAPES + TOYS)
def test_flops_of_a_token_are_the_planned_ones_in_both_conventions(name: str) -> None:
    config = example_model(name, 32_000)
    with torch.device("meta"):
        network = build_network(config)
    found = run_log.flops_per_token(network.config, count_parameters(network), 2048)
    unmasked = sum(shape.pair_flops for shape in attention_shapes(config)) * 2048
    assert found.palm == pytest.approx(six_nd(parameter_counts(config), 1) + unmasked)
    assert found.executed == pytest.approx(executed_flops(config, 2048))


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA H20", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla T4", None),
    ],
)
def test_a_devices_peak_is_that_of_its_very_name(name: str, peak: float | None) -> None:
    assert run_log.peak_of(name) == peak


def test_all_devices_count_and_the_cpu_and_float32_have_no_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    assert run_log.peak_flops(GPU, "bf16") == 2 * 989e12
    assert run_log.peak_flops(GPU, "float32") is None
    assert run_log.peak_flops(World(), "bf16") is None
    monkeypatch.setenv(run_log.PEAK_FLOPS_VARIABLE, "1e12")
    assert run_log.peak_flops(World(), "float32") == 1e12


@pytest.mark.parametrize("text", ["fast", "-1", "0", "nan"])
def test_a_peak_that_is_none_is_refused_by_name(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_log.PEAK_FLOPS_VARIABLE, text)
    with pytest.raises(BadConfiguration, match=run_log.PEAK_FLOPS_VARIABLE):
        run_log.peak_flops(World(), "bf16")


# ------------------------------------------------------------------------------- the line


def test_figures_are_of_the_steps_since_the_last_ones() -> None:
    meter = run_log.Meter(
        run_log.TokenFlops(palm=6.0, executed=4.5), peak_flops=600.0, world=World()
    )
    meter.start(tokens=100, seconds=1.0)
    meter.take_step(4.0, 1.0)
    meter.take_step(2.0, 3.0)
    first = meter.figures(2, 200, 1e-3, seconds=3.0)
    assert (first["loss"], first["gradient_norm"]) == (3.0, 2.0)
    assert (first["tokens_per_second"], first["mfu"], first["utilisation"]) == (50.0, 0.5, 0.375)
    alone = run_log.Meter(run_log.TokenFlops(palm=6.0, executed=4.5), None, World())
    assert "mfu" not in alone.figures(1, 100, 1e-3, seconds=3.0)
    again = meter.figures(3, 240, 1e-3, seconds=4.0)
    assert (again["loss"], again["gradient_norm"]) == (3.0, 2.0), "no step was read meanwhile"
    assert again["tokens_per_second"] == 40.0


def test_a_line_for_people_has_what_is_known_and_leaves_out_the_rest() -> None:
    found: run_log.Figures = {
        "step": 1234,
        "loss": 3.14159,
        "gradient_norm": 0.5,
        "learning_rate": 3e-4,
        "tokens_per_second": 123_456.7,
        "mfu": 0.412,
        "utilisation": 0.31,
        "peak_memory_bytes": 3 * 2**30,
    }
    words = run_log.in_words(found, 50, 100)
    for part in (
        "step 1,234", "50.0% of 100 tokens", "loss 3.1416", "gradient norm 0.5",
        "learning rate 0.0003", "123,457 tokens/s", "MFU 41.2%", "executed 31.0%", "peak memory 3.00 GiB",
    ):  # fmt: skip
        assert part in words
    known = {name: found[name] for name in ("step", "peak_memory_bytes")}
    assert (
        run_log.in_words(known, 50, 100) == "step 1,234  50.0% of 100 tokens  peak memory 3.00 GiB"
    )


def run(task: TrainTask, scratch: Path, people: Any = None) -> list[dict[str, Any]]:
    """The events of a run, which logs progress at every step."""
    stream = io.StringIO()
    train(task, scratch, Interruption(), Log(stream, seconds=0.0, people=people))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_machines_get_json_lines_alone_and_people_a_line_of_their_own(
    prepared: Prepared, tmp_path: Path
) -> None:
    people = io.StringIO()
    events = run(prepared.train_task(), tmp_path, people)
    steps = [event for event in events if event["event"] == "train"]
    assert {"step", "loss", "gradient_norm", "learning_rate", "tokens_per_second"} < set(steps[0])
    assert len(people.getvalue().splitlines()) == len(steps)
    rates = [event["learning_rate"] for event in steps]
    assert rates[:5] == pytest.approx([3e-3 * share for share in (0.25, 0.5, 0.75, 1, 1)])


class Gone(io.StringIO):
    """A stream that nobody reads any more."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError


def test_a_run_goes_on_when_nobody_reads_its_lines(prepared: Prepared, tmp_path: Path) -> None:
    events = run(prepared.train_task(), tmp_path, Gone())
    assert events[-1]["event"] == "evaluation"


# ------------------------------------------------------------------------------- recorder


class Collected:
    """A recorder that keeps what it gets, and fails at the `fails_at`-th value."""

    def __init__(self, fails_at: int = 0) -> None:
        self.entries: list[int] = []
        self.closed = False
        self._fails_at = fails_at

    def record(self, tokens: int, values: run_log.Values) -> None:
        if len(self.entries) + 1 == self._fails_at:
            raise ValueError("no more")
        self.entries.append(tokens)

    def close(self) -> None:
        self.closed = True


def unusable() -> Collected:
    raise OSError("no such server")


@pytest.mark.parametrize(
    ("fails_at", "begins", "entries", "reasons"),
    [
        (0, True, [1, 2, 3, 4, 5], []),
        (2, True, [1], ["ValueError: no more"]),
        (0, False, [], ["OSError: no such server"]),
    ],
    ids=["works", "fails", "cannot begin"],
)
def test_a_recorder_gets_every_value_and_if_it_fails_is_told_of_once(
    fails_at: int, begins: bool, entries: list[int], reasons: list[str]
) -> None:
    stream, collected = io.StringIO(), Collected(fails_at)
    tried = run_log.Recorder((lambda: collected) if begins else unusable, Log(stream))  # type: ignore[arg-type, return-value]
    for tokens in range(1, 6):
        tried.record(tokens, {"loss": 1.0})
    tried.close()
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["reason"] for event in events] == reasons
    assert all(event["event"] == "recorder-dropped" for event in events)
    assert (collected.entries, collected.closed) == (entries, not reasons)


def test_a_recorder_that_hangs_holds_up_neither_steps_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has taken the first value and never comes back."""
    monkeypatch.setattr(run_log, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(run_log, "WAITING", 3)
    released = threading.Event()

    class Hanging(Collected):
        def record(self, tokens: int, values: run_log.Values) -> None:
            released.wait(60)

    hanging = run_log.Recorder(Hanging, Log(io.StringIO()))
    for tokens in range(100):
        hanging.record(tokens, {"loss": 1.0})
    hanging.close()
    assert not released.is_set()
    released.set()


def trajectory(task: TrainTask) -> bytes:
    return Store(task.store_uri).read(layout.point_trajectory(task.point.key))


def test_wandb_without_its_package_is_said_once_and_changes_nothing(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = prepared.train_task()
    run(task, tmp_path)
    without = trajectory(task)
    Store(task.store_uri).remove(layout.point_folder(task.point.key))
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setattr(run_log, "find_spec", lambda _: None)
    events = run(task, tmp_path)
    (dropped,) = [event for event in events if event["event"] == "recorder-dropped"]
    assert "wandb is not installed" in dropped["reason"]
    assert "secret" not in json.dumps(events)
    assert trajectory(task) == without


def test_wandb_gets_a_run_of_the_points_key_and_its_curves(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played by a module of the calls that are made."""
    logged: list[dict[str, float]] = []
    finished: list[bool] = []
    begun: dict[str, Any] = {}
    played = types.SimpleNamespace(
        define_metric=lambda *_args, **_options: None,
        log=logged.append,
        finish=lambda: finished.append(True),
    )

    def init(**options: Any) -> Any:
        begun.update(options)
        return played

    module = types.ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(run_log, "find_spec", lambda _: object())
    monkeypatch.setenv("WANDB_MODE", "offline")
    task = prepared.train_task()
    run(task, tmp_path)
    assert begun["id"] == task.point.key
    assert begun["config"]["learning_rate"] == task.point.learning_rate
    assert any("train/loss" in values for values in logged)
    assert any("validation/loss" in values for values in logged)
    assert finished == [True]


@pytest.mark.parametrize(
    ("variables", "first", "wanted"),
    [
        ({}, True, False),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, True, False),
        ({"WANDB_API_KEY": "k"}, True, True),
        ({"WANDB_MODE": "offline"}, True, True),
        ({"WANDB_API_KEY": "k"}, False, False),
    ],
)
def test_curves_are_recorded_where_the_environment_asks_for_them(
    variables: dict[str, str], first: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    attempt: Any = types.SimpleNamespace(world=World(rank=0 if first else 1, size=2))
    assert (run_log.wanted_curves(attempt) is not None) is wanted
