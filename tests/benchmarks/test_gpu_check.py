"""`make gpu-check` works on the day: all of it, at toy size, on a CPU."""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytest.importorskip("torch")

import benchmarks.gpu_check.__main__ as command
from benchmarks.gpu_check.__main__ import OtherMachine, Results, main, run_all
from benchmarks.gpu_check.checks import CHECKS, run_check
from benchmarks.gpu_check.packages import SMALL, STACK, advice

# One worker for all of them: what the checks find takes minutes, and each worker would look for it.
pytestmark = pytest.mark.xdist_group("gpu check")
TOY = {"machine": "this machine", "toy": True}


RUN = [name for name in CHECKS if not name.endswith("-500m")]
"""Those that differ at toy size."""


class Findings(dict[str, Any]):
    """What the checks find at toy size, each run when it is asked for: all of them take minutes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Any:
        self[name] = run_check(name, self._folder, toy=True)
        return self[name]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """In this process: starting one for each check would take a minute."""
    return Findings(tmp_path_factory.mktemp("gpu-check"))


@pytest.mark.slow
@pytest.mark.whole
def test_losses_and_gradients_agree_with_the_reference(found) -> None:
    for name, row in found["agreement"].items():
        assert row["loss off by, nats"] < (1e-6 if "float32" in name else 0.02)
        assert row["worst gradient off by, relative"] < (1e-4 if "float32" in name else 0.2)
    assert set(found["deterministic"].values()) == {"equal"}


@pytest.mark.slow
@pytest.mark.whole
def test_families_train_two_compiled_steps(found) -> None:
    for row in found["families"].values():
        assert row["second loss, nats"] < row["first loss, nats"]
        assert row["graph breaks"] == 0
        assert row["graphs"] > 0


@pytest.mark.slow
@pytest.mark.whole
def test_a_checkpoint_in_eight_bits_has_the_loss_of_its_numbers(found) -> None:
    assert found["eight-bits"]["codes off by, nats"] < 1e-6


@pytest.mark.slow
@pytest.mark.whole
def test_attention_is_timed_with_each_kernel(found) -> None:
    """A CPU has flash attention alone."""
    for row in found["attention"].values():
        assert row["FLASH_ATTENTION, ms"] > 0
        assert "No" in row["CUDNN_ATTENTION, ms"]


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("check", ["training-dense-100m", "training-moe-100m"])
def test_one_compilation_serves_every_batch_size(found, check: str) -> None:
    (row,) = found[check].values()
    assert row["tokens/s"] > 0
    assert row["evaluation, tokens/s"] > row["tokens/s"]
    assert row["graph breaks"] == 0
    assert row["graphs of a step and an evaluation"] > 0
    assert row["graphs more for another batch size"] == 0
    assert any("attention" in name for name in row["attention that ran"])


@pytest.mark.slow
@pytest.mark.whole
def test_a_checkpoint_is_written_while_steps_go_on(found) -> None:
    (row,) = found["training-dense-100m"].values()
    assert row["state, GiB"] > 0
    assert row["planned peak, GiB"] > 0
    assert 0 < row["longest such step, s"] <= row["checkpoint until it is written, s"]


@pytest.mark.slow
@pytest.mark.whole
def test_a_run_resumes_where_sigterm_ended_it(found) -> None:
    row = found["interruption"]
    assert row["exit codes as they should be"]
    assert row["resumed"]
    assert row["trajectories"] == "equal"


@pytest.mark.slow
@pytest.mark.whole
def test_every_rival_is_measured(found) -> None:
    rows = found["speed-dense-100m"]
    wanted = {"ours", "transformers loop", "Hugging Face Trainer"}
    assert wanted <= set(rows)
    assert wanted == set(found["speed-moe-100m"])
    assert all(row["tokens/s"] > 0 for row in rows.values())
    for row in list(rows.values())[1:]:
        low, median, high = row["ours is faster by (lowest, median, highest)"]
        assert low <= median <= high


@pytest.mark.whole
def test_a_random_checkpoint_knows_nothing(found) -> None:
    row = found["initial-loss"]
    assert row["loss, nats"] == pytest.approx(row["log of the vocabulary"], abs=0.5)


@pytest.mark.slow
@pytest.mark.whole
def test_several_processes_learn_what_one_does(found) -> None:
    row = found["several-gpus"]
    assert row["processes"] == 2
    assert row["moe-tiny, losses apart by at most, nats"] < 0.1


@pytest.mark.slow
@pytest.mark.whole
def test_every_check_runs_and_its_findings_can_be_written(found, tmp_path: Path) -> None:
    results = Results(tmp_path, TOY)
    for name in RUN:
        results.add(name, {"status": "done", "seconds": 1.0, "found": found[name]})
    assert json.loads((tmp_path / "results.json").read_text())["checks"].keys() == set(RUN)
    text = (tmp_path / "results.md").read_text()
    assert all(f"## {name}\n" in text for name in RUN)
    assert results.left(RUN, again=False) == []


@pytest.mark.slow
def test_the_command_runs_a_check_in_a_process_of_its_own_and_does_not_repeat_it(
    tmp_path: Path, capsys
) -> None:
    arguments = ["--toy", "--folder", str(tmp_path), "--only", "environment"]
    assert main(arguments) == 0
    assert "environment (1 of 1)" in capsys.readouterr().out
    text = (tmp_path / "results.json").read_text()
    assert main(arguments) == 0
    assert "==>" not in capsys.readouterr().out
    assert (tmp_path / "results.json").read_text() == text


def test_a_check_that_fails_says_why_and_is_left_for_the_next_call(tmp_path: Path) -> None:
    failed = {"status": "failed", "seconds": 3.0, "reason": "exit code 1", "end_of_log": "assert"}
    results = Results(tmp_path, TOY)
    run_all(results, ["a", "b"], 100, lambda name, _: failed if name == "a" else {**failed})
    assert "exit code 1:\n\n```\nassert\n```" in results.page.read_text()
    assert Results(tmp_path, TOY).left(["a", "b", "c"], again=False) == ["a", "b", "c"]


def test_what_a_budget_stops_is_not_recorded(tmp_path: Path, capsys) -> None:
    results, asked = Results(tmp_path, TOY), []
    run_all(results, ["a", "b"], 50, lambda _, seconds: asked.append(seconds))
    assert results.left(["a", "b"], again=False) == ["a", "b"]
    assert len(asked) == 1
    assert asked[0] <= 50
    run_all(results, ["a"], 1, lambda _, __: pytest.fail("there is no time"))
    assert "the next call goes on from there" in capsys.readouterr().out


def test_a_check_that_hangs_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    script = f"import subprocess, time; p = subprocess.Popen(['sleep', '600']); open({str(pids)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    log = tmp_path / "log"
    code = command._run_for([sys.executable, "-c", script], log, dict(os.environ), 3)
    assert code is None
    stat = Path(f"/proc/{pids.read_text()}/stat")
    for _ in range(100):
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the grandchild lives on")


def test_results_of_another_machine_are_not_overwritten(tmp_path: Path) -> None:
    Results(tmp_path, TOY)
    with pytest.raises(OtherMachine, match="name another --folder"):
        Results(tmp_path, {"machine": "NVIDIA H200", "toy": False})


def test_missing_packages_are_told_apart_from_the_stack() -> None:
    words = advice(["torch", "pydantic"])
    assert "torch must come with the machine" in words
    assert "how to bring along pydantic," in words


def test_the_packages_to_bring_are_all_that_is_needed_beside_the_stack() -> None:
    brought = _with_requirements(SMALL) - _with_requirements(STACK)
    assert brought <= set(SMALL)


def _with_requirements(names: Iterable[str]) -> set[str]:
    """Names of installed packages with all that they require here, extras left out."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = canonicalize_name(left.pop())
        if name in found:
            continue
        found.add(name)
        wanted = map(Requirement, importlib.metadata.requires(name) or ())
        left += [r.name for r in wanted if not r.marker or r.marker.evaluate({"extra": ""})]
    return found
