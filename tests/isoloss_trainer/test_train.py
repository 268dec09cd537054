"""A point's trajectory depends on the point alone: not on attempts, interruptions or other writers."""

import errno
import hashlib
import io
import itertools
import json
import math
import platform
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import isoloss_trainer.attempt as attempt_module
import isoloss_trainer.checkpoint as checkpoint_module
import isoloss_trainer.run as run_module
import isoloss_trainer.train as train_module
from isoloss_contract import layout, records
from isoloss_contract.store import Store, StoreRefused, StoreUnavailable
from isoloss_contract.store.folder import FolderBackend
from isoloss_operator.planning.models import checkpoint_model, parameter_counts
from isoloss_trainer.attempt import Attempt, Claim, Fence, MicroBatch, TrainingState
from isoloss_trainer.attention import deterministic_kernels
from isoloss_trainer.checkpoint import Checkpoints, OtherLayout, persist, write_tensors
from isoloss_trainer.evaluation import ValidationSet
from isoloss_trainer.learner import Learner, StepFacts, take_into_average
from isoloss_trainer.log import Log
from isoloss_trainer.model import LanguageModel, build_network
from isoloss_trainer.run import PointRun
from isoloss_trainer.shards import DataOrder
from isoloss_trainer.termination import (
    BadConfiguration,
    BadData,
    ClaimedElsewhere,
    Diverged,
    Interrupted,
    Interruption,
    TrainerError,
    explain,
)
from isoloss_trainer.train import train
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import (
    DEEPSEEK,
    LLAMA,
    MIXTURE,
    QWEN3_MOE,
    SEQUENCE_LENGTH,
    Gone,
    at_write,
    attempt,
    documents,
    is_lost,
    make_tokenizer,
    part_of,
    quiet,
    run_of,
    spoil_weights,
    stop_during_step,
    uri,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.families import FAMILIES
from tests.isoloss_trainer.trained import forget, rows, run, trajectory, undisturbed

ALONE = World()


def stop_at(task: records.TrainTask, step: int) -> None:
    """Request a stop during the `step`-th step of this attempt."""
    with stop_during_step(step) as interruption, pytest.raises(Interrupted):
        run(task, interruption)


# --------------------------------------------------------------------------------- a whole run


def test_a_run_ends_with_everything_in_the_store(prepared: Prepared) -> None:
    task = prepared.train_task()
    result = run(task)
    store = prepared.store
    assert result.outcome is records.Outcome.SUCCEEDED
    assert result.tokens == 2048
    assert result.evaluations == len(rows(task)) == 4
    assert [row.tokens for row in rows(task)] == [512, 1024, 1664, 2048]
    last = rows(task)[-1]
    mixed = sum(MIXTURE[name] * (domain.loss or 0) for name, domain in last.domains.items())
    assert last.loss == pytest.approx(mixed)
    point = store.read_record(layout.point_config(task.point.key), records.PointConfig)
    assert point == task.point
    assert store.names(layout.point_folder(task.point.key)) == [
        "checkpoints",
        "config.json",
        "result.json",
        "trajectories",
        "trajectory.jsonl",
    ], "and no claim"
    assert result.versions == {
        "python": platform.python_version(),
        **{name: version(name) for name in ("isoloss", "torch", "transformers")},
    }


def test_deterministic_kernels_are_in_force_during_the_run_alone(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the bytes are those of any run: its kernels are all deterministic."""
    task = prepared.train_task(tokens=512)
    wanted = undisturbed(task).trajectory
    original, in_force = Learner.step, []

    def step(self: Learner, batch: torch.Tensor, tokens: int) -> StepFacts:
        in_force.append(torch.are_deterministic_algorithms_enabled())
        return original(self, batch, tokens)

    monkeypatch.setattr(Learner, "step", step)
    run(task.model_copy(update={"deterministic": True}))
    assert all(in_force)
    assert in_force
    assert not torch.are_deterministic_algorithms_enabled()
    assert trajectory(task) == wanted


def test_a_kernel_that_cannot_be_deterministic_is_a_refusal() -> None:
    message = "cumsum_cuda_kernel does not have a deterministic implementation"
    with pytest.raises(BadConfiguration, match="cumsum") as caught, deterministic_kernels(True):
        raise RuntimeError(message)
    assert caught.value.field == "deterministic"
    with pytest.raises(RuntimeError), deterministic_kernels(False):
        raise RuntimeError(message)


def test_rows_state_how_the_gradients_were_since_the_last_one(prepared: Prepared) -> None:
    clipped = prepared.train_task(optimizer=records.OptimizerConfig(gradient_clip=1e-3))
    run(clipped)
    for row in rows(clipped):
        assert row.clipped_share == 1.0
        assert row.gradient_norm is not None
        assert row.gradient_norm > 1e-3
        assert row.logit_offset == pytest.approx(math.log(384), abs=1.5)
    never = prepared.train_task(optimizer=records.OptimizerConfig(gradient_clip=1e3))
    result = run(never)
    assert [row.clipped_share for row in rows(never)] == [0.0] * 4
    assert result.time_constants.weight_decay_tokens == pytest.approx(
        128 / (3e-3 * 0.01), rel=1e-4
    )


def test_weights_that_a_few_steps_would_forget_are_refused(prepared: Prepared) -> None:
    fast = records.OptimizerConfig(weight_decay_tokens=1279)
    with pytest.raises(BadConfiguration, match="a batch has 128") as caught:
        run(prepared.train_task(optimizer=fast))
    assert caught.value.field == "optimizer.weightDecayTokens"


def test_seeds_differ(prepared: Prepared) -> None:
    """In the weights that a run begins with, and in what it reads."""
    runs = [run_of(attempt(prepared.train_task(seed=s), prepared.data)) for s in (0, 1)]
    assert not torch.equal(*(each.sequences.read(0, 4) for each in runs))
    assert not torch.equal(*(part_of(each.learner) for each in runs))
    for each in runs:
        each.close()


# ----------------------------------------------------------------------- from given weights


def test_a_run_can_start_from_a_checkpoints_weights(prepared: Prepared, tmp_path: Path) -> None:
    """The first loss is the checkpoint's, not that of random weights; the optimizer is fresh."""
    network = build_network(LLAMA, seed=7)
    with torch.no_grad():
        network.get_output_embeddings().weight.mul_(20)
    network.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    given = {"initial_weights": uri(tmp_path / "model"), "learning_rate": 1e-9, "tokens": 512}
    task = prepared.train_task(**given)
    run(task)
    data = prepared.data
    model = LanguageModel(network, SEQUENCE_LENGTH)
    loss, _ = ValidationSet(data, MIXTURE, 8).evaluate(model.token_losses, ALONE, 8)
    assert rows(task)[-1].loss == pytest.approx(loss.value, abs=1e-4)


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=lambda m: m["model_type"])
def test_a_checkpoint_is_continued_by_the_config_json_that_its_checkpoint_was_saved_with(
    prepared: Prepared, tmp_path: Path, model: dict[str, Any]
) -> None:
    """What transformers writes there is a model that the operator counts and the trainer builds."""
    build_network(model, seed=7).save_pretrained(tmp_path / "model")
    saved = json.loads((tmp_path / "model" / "config.json").read_text())
    counts = parameter_counts(saved)
    given = {"initial_weights": uri(tmp_path / "model"), "model": checkpoint_model(saved)}
    result = run(prepared.train_task(tokens=512, **given))
    assert result.parameters.active == counts.active


@pytest.mark.parametrize(("weights", "patience"), [("s3://b/m", timedelta(hours=6)), (None, None)])
def test_processes_wait_for_the_one_that_fetches_initial_weights(
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    weights: str | None,
    patience: timedelta | None,
) -> None:
    """In a run without, one that has died is not waited for so long."""

    def joined(_: World, found: timedelta | None = None, *_rest: Any, **_meet: Any) -> World:
        assert found == patience
        raise Interrupted("Interrupted", "seen")

    monkeypatch.setattr(World, "joined", joined)
    with pytest.raises(Interrupted, match="seen"):
        run(prepared.train_task(initial_weights=weights, seed=612))


def other_tokenizer(folder: Path) -> None:
    theirs = make_tokenizer(folder.parent / "tokenizer", documents(10), vocabulary=300)
    shutil.copy(theirs / "tokenizer.json", folder)


def unread_setting(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "sliding_window": 8}))


@pytest.mark.parametrize(
    ("saved", "change", "point", "code", "words"),
    [
        pytest.param(
            {"hidden_size": 64}, None, {}, "WeightsDiffer", "shapes of weights", id="shape"
        ),
        pytest.param({}, other_tokenizer, {}, "TokenizerDiffers", "other tokens", id="tokens"),
        pytest.param({}, unread_setting, {}, "NotACheckpoint", "sliding_window is 8", id="unread"),
        # By the point's config alone: a run would start with one of two matrices alone.
        pytest.param(
            {},
            None,
            {"tie_word_embeddings": True},
            "WeightsDiffer",
            r"lm_head.weight .* tie_word_embeddings",
            id="tied",
        ),
    ],
)
def test_weights_that_would_start_another_run_are_refused(
    prepared: Prepared,
    tmp_path: Path,
    saved: dict[str, Any],
    change: Callable[[Path], None] | None,
    point: dict[str, Any],
    code: str,
    words: str,
) -> None:
    folder = tmp_path / "model"
    build_network({**LLAMA, **saved}, seed=7).save_pretrained(folder)
    if change is not None:
        change(folder)
    task = prepared.train_task(model={**LLAMA, **point}, initial_weights=uri(folder))
    with pytest.raises(BadData, match=words) as caught:
        run(task)
    assert caught.value.code == code


# --------------------------------------------------------------------------------- stop and go


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK, QWEN3_MOE], ids=lambda m: m["model_type"])
@pytest.mark.parametrize("step", [1, 6, 13])
def test_an_interrupted_run_ends_with_the_same_bytes(
    prepared: Prepared, model: dict[str, Any], step: int
) -> None:
    config = records.OptimizerConfig(warmup_tokens=512)
    task = prepared.train_task(model=model, optimizer=config)
    wanted = undisturbed(task).trajectory
    stop_at(task, step)
    again = run(task)
    assert trajectory(task) == wanted
    assert again.trajectory_sha256 == hashlib.sha256(wanted).hexdigest()
    assert again.attempts == 2


@pytest.mark.parametrize("release", [False, True])
def test_a_store_that_deletes_nothing_ends_no_run(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, release: bool
) -> None:
    saving = {"keep_checkpoints": 1, "release_checkpoints_when_done": release}
    task = prepared.train_task(tokens=1024, task=saving)

    def refused(_store: Store, path: str) -> None:
        raise StoreRefused(f"{path}: AccessDenied")

    stop_at(task, 4)
    monkeypatch.setattr(Store, "remove", refused)
    assert run(task).outcome is records.Outcome.SUCCEEDED


@pytest.mark.parametrize("released", [False, True])
def test_more_tokens_continue_the_trajectory_as_if_wanted_from_the_start(
    prepared: Prepared, released: bool
) -> None:
    """Without a checkpoint from the start."""
    hasty = {"checkpoint_seconds": 0, "release_checkpoints_when_done": released}
    shorter, task = (
        prepared.train_task(tokens=tokens).model_copy(update=hasty) for tokens in (1300, 2048)
    )
    run(shorter)
    assert run(task).attempts == (1 if released else 2)
    continued = trajectory(task)
    assert prepared.store.exists(layout.point_checkpoints(task.point.key)) is not released
    forget(task)
    assert run(task).attempts == 1
    assert trajectory(task) == continued


@pytest.mark.parametrize("tokens", [2048, 1000])
def test_a_trained_point_is_not_trained_again(
    prepared: Prepared, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(prepared.train_task())
    monkeypatch.setattr(PointRun, "__init__", None)
    assert run(prepared.train_task(tokens=tokens)).tokens == 2048


@pytest.mark.parametrize("spoil", ["no manifest", "a wrong hash"])
def test_unusable_checkpoints_of_later_steps_push_no_usable_one_out(
    prepared: Prepared, spoil: str
) -> None:
    """Such as a killed attempt leaves."""
    task = prepared.train_task(task={"keep_checkpoints": 1})
    stop_at(task, 5)
    folder = prepared.folder / layout.point_checkpoints(task.point.key)
    for step in (90, 91):
        shutil.copytree(folder / "step-0000000005", folder / f"step-00000000{step}")
        if spoil == "no manifest":
            (folder / f"step-00000000{step}" / "manifest.json").unlink()
        else:
            _flip(_part_file(folder / f"step-00000000{step}"))
    stop_at(task, 1)
    assert [path.name for path in folder.iterdir()] == ["step-0000000006"]
    assert run(task).attempts == 3


def test_a_broken_checkpoint_of_the_step_that_is_saved_again_pushes_none_out(
    prepared: Prepared,
) -> None:
    task = prepared.train_task(task={"keep_checkpoints": 2})
    stop_at(task, 5)
    stop_at(task, 1)
    folder = prepared.folder / layout.point_checkpoints(task.point.key)
    _flip(_part_file(folder / "step-0000000006"))
    stop_at(task, 1)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["step-0000000005", "step-0000000006"]
    assert len(list((folder / "step-0000000006").iterdir())) == 3, "and none of the broken one"
    stop_at(task, 1)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["step-0000000006", "step-0000000007"]


@pytest.mark.parametrize("read", ["data", "checkpoint", "result"])
def test_what_a_run_reads_is_waited_for_as_long_as_what_it_writes(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """For four and a half minutes, by a clock of the test's."""
    task = prepared.train_task()
    stop_at(task, 2)
    slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds

    original = FolderBackend.read

    def unavailable(self: FolderBackend, path: str, max_bytes: int) -> tuple[bytes, str]:
        at_fault = {"data": path == "manifest.json", "checkpoint": "checkpoints/" in path}
        if at_fault.get(read, "result" in path) and slept < 270:
            raise OSError(errno.EIO, "the volume does not answer")
        return original(self, path, max_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(FolderBackend, "read", unavailable)
        patch.setattr("tenacity.nap.time", SimpleNamespace(sleep=sleep))
        run(task)
    assert slept >= 270
    result = prepared.result(task)
    assert result.attempts == 2


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        pytest.param(Learner, "__init__", id="the run is being built"),
        pytest.param(Checkpoints, "_write", id="its last checkpoint is being written"),
    ],
)
def test_the_claim_is_renewed_while(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    """Or another sweep would take over a point whose weights take a minute to load, or one that is trained."""
    task = prepared.train_task(tokens=512)
    monkeypatch.setattr(attempt_module, "ROUND_SECONDS", 0.01)
    monkeypatch.setattr(attempt_module, "HEARTBEAT_SECONDS", 0.01)
    beaten, beat, original = threading.Event(), Fence.beat, getattr(owner, method)

    def noted(self: Fence) -> None:
        beat(self)
        beaten.set()

    def slow(self: Any, *rest: Any) -> None:
        beaten.clear()
        assert beaten.wait(20), "no heartbeat"
        original(self, *rest)

    monkeypatch.setattr(Fence, "beat", noted)
    monkeypatch.setattr(owner, method, slow)
    assert run(task).tokens == 512


def test_a_slow_store_holds_up_no_step(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is due after every step, and the first is still being written during the last one."""
    task = prepared.train_task(tokens=1024)
    last_step, written = threading.Event(), []
    step, write = Learner.step, Checkpoints._write

    def counted(self: Learner, batch: torch.Tensor, tokens: int) -> StepFacts:
        if tokens == 1024:
            last_step.set()
        return step(self, batch, tokens)

    def slow(self: Checkpoints, state: TrainingState, *rest: Any) -> None:
        reached = last_step.wait(20)
        written.append((state.step, reached))
        write(self, state, *rest)

    monkeypatch.setattr(Learner, "step", counted)
    monkeypatch.setattr(Checkpoints, "_write", slow)
    run(task.model_copy(update={"checkpoint_seconds": 0}))
    assert written == [(1, True), (8, True)]


def test_an_attempt_knows_the_grace_of_its_pod(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(records.GRACE_VARIABLE, "15")
    known = []

    def begin(begun: Attempt) -> None:
        known.append(begun.grace_seconds)
        raise Interrupted("Interrupted", "enough")

    monkeypatch.setattr(train_module, "_claim_and_run", begin)
    with pytest.raises(Interrupted, match="enough"):
        run(prepared.train_task())
    assert known == [15.0]


@pytest.mark.parametrize(
    ("preemptions", "grace", "first", "interval"),
    [
        pytest.param(6, 15.0, 60.0, 120.0, id="too little grace"),  # sqrt(2 * 0.5 s * 4 h)
        pytest.param(6, 120.0, 60.0, 600.0, id="grace enough"),
        pytest.param(0, 15.0, 600.0, 600.0, id="no rate"),
    ],
)
def test_a_run_measures_its_first_checkpoint_and_chooses_when_to_write_the_next(
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    preemptions: int,
    grace: float,
    first: float,
    interval: float,
) -> None:
    """By a clock of its own, on which a copy takes half a second and writing it ten."""
    now, output = [0.0], io.StringIO()

    def taking(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*rest: Any) -> Any:
            now[0] += seconds
            return call(*rest)

        return taken

    monkeypatch.setattr(Learner, "copied", taking(0.5, Learner.copied))
    monkeypatch.setattr(checkpoint_module, "write_tensors", taking(10, write_tensors))
    task = prepared.train_task().model_copy(
        update={"preemptions_per_day": preemptions, "checkpoint_seconds": 600}
    )
    began = attempt(task, prepared.data)
    began = replace(began, clock=lambda: now[0], grace_seconds=grace, log=Log(output))
    began.fence.acquire()
    saving, state = run_of(began).saving, TrainingState(step=1)
    saved_at = 0.0
    for wait in (first, interval, interval):
        for seconds, is_due in ((wait - 1, False), (wait, True)):
            now[0] = saved_at + seconds
            saving.save_if_due(state)
            assert saving.checkpoints._pending is not None or not is_due
            saving.checkpoints.wait()
            assert (now[0] > saved_at + seconds) is is_due
        saved_at += wait + 0.5
    events = [json.loads(line) for line in output.getvalue().splitlines()]
    reported = {"copy_seconds": 0.5, "write_seconds": 10.0, "interval_seconds": interval}
    assert [event for event in events if event["event"] == "checkpoint"] == [
        {**events[-1], **reported, "grace_seconds": grace}
    ]


def test_a_checkpoint_names_its_tensors_and_who_wrote_it(prepared: Prepared) -> None:
    task = prepared.train_task(model=DEEPSEEK)
    stop_at(task, 2)
    learner = run_of(attempt(task, prepared.data)).learner
    kept = Checkpoints(prepared.store, task.point.key, 2, lambda: None, quiet())
    manifest = kept.restore(learner.on_host())
    assert manifest is not None
    assert manifest.versions["torch"] == version("torch")
    folder = prepared.folder / layout.point_checkpoints(task.point.key) / "step-0000000002"
    found = load_file(_part_file(folder))
    names = {name for name, _ in build_network(DEEPSEEK).named_parameters()}
    parts = ("weights", "averaged_weights", "first_moment", "second_moment")
    assert set(found) == {
        *(f"{part}.{name}" for part in parts for name in names),
        "optimizer_steps",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "averaged.model.layers.1.mlp.gate.e_score_correction_bias",
    }
    assert all(torch.equal(found[name], tensor) for name, tensor in learner.on_host().items())


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("bytes", 8, "a part is not one of a tensor"),
        ("offsets", [4096] * 2, "a part is not one of a tensor"),
        ("file", "../../elsewhere.safetensors", "file"),
        ("sizes", [-1, 32], "sizes"),
    ],
)
def test_an_index_that_says_what_cannot_be_is_not_followed(
    prepared: Prepared, field: str, value: Any, words: str
) -> None:
    """Whoever can write to the store may write any index: the checkpoint is skipped, and its bytes are not read."""
    task = prepared.train_task()
    stop_at(task, 2)
    folder = prepared.folder / layout.point_checkpoints(task.point.key) / "step-0000000002"
    index = json.loads(_index_file(folder).read_text())
    index["tensors"]["weights.lm_head.weight"]["parts"][0][field] = value
    content = json.dumps(index).encode()
    digest = hashlib.sha256(content).hexdigest()
    (folder / f"index-{digest}.json").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"index_bytes": len(content), "index_sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    output = io.StringIO()
    kept = Checkpoints(prepared.store, task.point.key, 2, lambda: None, Log(output))
    assert kept.restore({}) is None
    assert words in output.getvalue()
    assert run(task).attempts == 1


@pytest.mark.parametrize("version", [3, 5, None])
def test_a_checkpoint_of_another_version_is_refused_and_not_lost(
    prepared: Prepared, version: int | None
) -> None:
    task = prepared.train_task()
    stop_at(task, 2)
    folder = prepared.folder / layout.point_checkpoints(task.point.key) / "step-0000000002"
    manifest = json.loads((folder / "manifest.json").read_text())
    other = {**manifest, "checkpoint_version": version}
    (folder / "manifest.json").write_text(json.dumps(other))
    with pytest.raises(OtherLayout, match=f"version {version}, this image reads version 4"):
        run(task)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert run(task).attempts == 2


def test_a_micro_batch_once_halved_stays_so_after_a_resume(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of other parts round differently: the bytes would depend on when the run was stopped."""
    task = prepared.train_task()
    with monkeypatch.context() as patch:
        patch.setenv("ISOLOSS_REFUSALS", "1")
        run(task)
        wanted = trajectory(task)
        forget(task)
        stop_at(task, 5)
    assert run(task).micro_batch == 2
    assert trajectory(task) == wanted


def test_a_micro_batch_of_another_place_is_forgotten(prepared: Prepared) -> None:
    """One for an accelerator, or for more processes, says nothing about this one."""
    task = prepared.train_task()
    data = prepared.data
    for processes, accelerated, wanted in ((1, False, 1), (8, False, 4), (1, True, 4)):
        point_run = run_of(attempt(task, data))
        point_run.state.micro_batch = MicroBatch(
            sequences=1, processes=processes, accelerated=accelerated
        )
        point_run.saving.keep_micro_batch(point_run.state)
        assert point_run.learner.micro_batch == wanted


def _part_file(folder: Path) -> Path:
    (found,) = folder.glob("rank-00000-00000-*.safetensors")
    return found


def _index_file(folder: Path) -> Path:
    (found,) = folder.glob("index-*.json")
    return found


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: _truncate(folder / "manifest.json"),
        lambda folder: _truncate(_part_file(folder)),
        lambda folder: _flip(_part_file(folder)),
        lambda folder: _part_file(folder).unlink(),
        lambda folder: _flip(_index_file(folder)),
        lambda folder: _index_file(folder).unlink(),
    ],
    ids=[
        "no manifest",
        "half a manifest",
        "half a file",
        "a flipped bit",
        "a file gone",
        "a flipped bit in the index",
        "no index",
    ],
)
def test_a_broken_checkpoint_is_skipped_for_the_one_before(
    prepared: Prepared, spoil: Callable[[Path], None]
) -> None:
    task = prepared.train_task()
    wanted = undisturbed(task).trajectory
    stop_at(task, 5)
    stop_at(task, 3)
    folder = prepared.folder / layout.point_checkpoints(task.point.key)
    spoil(folder / "step-0000000008")
    run(task)
    assert trajectory(task) == wanted


@pytest.mark.parametrize("call", range(1, 9))
def test_a_stop_during_an_evaluation_is_heeded_and_changes_nothing(
    prepared: Prepared, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every micro-batch of the first evaluation: of two domains, two halves, raw and averaged."""
    monkeypatch.setattr(run_module, "CPU_TOKENS", 0)
    task = prepared.train_task()
    wanted = undisturbed(task).trajectory
    interruption = Interruption()
    original, calls = LanguageModel.token_losses, itertools.count(1)

    def counted(self: LanguageModel, *batch: torch.Tensor) -> torch.Tensor:
        number = next(calls)
        assert number <= call, "evaluation continued after the stop request"
        interruption.requested = number == call
        return original(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "token_losses", counted)
        with pytest.raises(Interrupted):
            run(task, interruption)
    store = prepared.store
    assert store.names(layout.point_checkpoints(task.point.key)) == ["step-0000000004"]
    run(task)
    assert trajectory(task) == wanted


# ------------------------------------------------------------------------------------ outcomes


def test_divergence_is_a_result(prepared: Prepared) -> None:
    task = prepared.train_task(tokens=200_000, learning_rate=1e12)
    with pytest.raises(Diverged) as caught:
        run(task)
    assert caught.value.exit_code == records.ExitCode.DIVERGED
    result = prepared.result(task)
    assert result.outcome is records.Outcome.DIVERGED
    assert result.diverged_at_tokens is not None
    assert result.tokens <= result.diverged_at_tokens < 200_000
    with pytest.raises(Diverged):
        run(task)


def test_weights_that_are_not_finite_after_the_last_step_are_divergence(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step's own loss is that of the weights before it, so that it does not show them."""
    original = Learner.step

    def step(self: Learner, batch: torch.Tensor, tokens: int) -> StepFacts:
        facts = original(self, batch, tokens)
        if tokens == 1920:
            spoil_weights(self)
        return facts

    monkeypatch.setattr(Learner, "step", step)
    task = prepared.train_task(tokens=1920)
    with pytest.raises(Diverged, match="1920 tokens"):
        run(task)
    result = prepared.result(task)
    assert (result.outcome, result.diverged_at_tokens) == (records.Outcome.DIVERGED, 1920)
    assert (result.loss, rows(task)[-1].loss) == (None, None)


def test_a_run_over_many_domains_read_more_than_once_names_the_most_read(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many domains with names as long as the API takes."""
    passes = {f"{number:02}-".ljust(63, "x"): 1.0 + number / 10 for number in range(64)}
    monkeypatch.setattr(DataOrder, "epochs", lambda _order, _sequences: passes)
    message = run(prepared.train_task(tokens=512)).message
    assert [part[:10] for part in message.split("; ")[1:4]] == [
        f"domain {number}-" for number in (63, 62, 61)
    ]
    assert message.endswith("times; and 60 more were read more than once")


MIXTRAL = {"model_type": "mixtral", **FAMILIES["mixtral"]}
OPT = {"model_type": "opt", **FAMILIES["opt"], "dropout": 0.0}
BAD_MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": ({"model_type": "no_such"}, "BadModel"),
    "no type": ({"vocab_size": 8}, "BadModel"),
    "remote code": ({**LLAMA, "auto_map": {"AutoModel": "x.y"}}, "BadModel"),
    "vocabulary too small": ({**LLAMA, "vocab_size": 100}, "VocabularyTooSmall"),
    "positions too few": ({**LLAMA, "max_position_embeddings": 16}, "SequenceTooLong"),
    "dropout": ({**LLAMA, "attention_dropout": 0.1}, "DropoutRefused"),
    "all dropped out": ({**LLAMA, "attention_dropout": 1}, "DropoutRefused"),
    "a router with noise": ({**MIXTRAL, "router_jitter_noise": 0.05}, "DropoutRefused"),
    "layers left out": ({**OPT, "layerdrop": 0.1}, "DropoutRefused"),
    "heads that do not divide": ({**LLAMA, "num_key_value_heads": 3}, "BadModel"),
    "wrong type": ({**LLAMA, "hidden_size": "wide"}, "BadModel"),
}


OTHERWISE: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in ("vaultgemma", "xlstm")},
    "gemma2": {"final_logit_softcapping": 30.0},
    "recurrent_gemma": {"logits_soft_cap": 30.0},
    "gptj": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "phi": {},
    "phimoe": {"router_jitter_noise": 0.0, "lm_head_bias": True},
    "gemma3": {},
    "mamba": {},
}
"""Families that cap or shift their logits, that cannot be balanced, and that cannot be counted."""


def _skip_unless_known(kind: str) -> None:
    from transformers import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        pytest.skip("not in this version of transformers")


@pytest.mark.parametrize("kind", OTHERWISE)
def test_families_that_would_train_as_another_model_are_refused_by_name(
    prepared: Prepared, kind: str
) -> None:
    """Also by a bias or a cap that random weights do not show."""
    _skip_unless_known(kind)
    model = {"model_type": kind, **FAMILIES[kind], **OTHERWISE[kind]}
    with pytest.raises(BadConfiguration, match=f"of type {kind} cannot be trained") as caught:
        run(prepared.train_task(model=model))
    assert (caught.value.code, caught.value.field) == ("BadModel", "model.model_type")


@pytest.mark.parametrize("kind", ["cohere", "gemma", "olmoe", "qwen3_next"])
def test_other_families_with_plain_logits_are_trained(prepared: Prepared, kind: str) -> None:
    """And start with the weights that they would start with unprobed."""
    _skip_unless_known(kind)
    model = {"model_type": kind, **FAMILIES[kind]}
    task = prepared.train_task(model=model, learning_rate=1e-9, tokens=512)
    run(task)
    network = build_network(model, seed=0)
    data = prepared.data
    unprobed = LanguageModel(network, SEQUENCE_LENGTH).eval()
    loss, _ = ValidationSet(data, MIXTURE, 8).evaluate(unprobed.token_losses, ALONE, 8)
    assert rows(task)[-1].loss == pytest.approx(loss.value, abs=1e-4)


@pytest.mark.parametrize("case", BAD_MODELS)
def test_models_that_cannot_be_trained_are_refused(prepared: Prepared, case: str) -> None:
    model, code = BAD_MODELS[case]
    with pytest.raises(BadConfiguration) as caught:
        run(prepared.train_task(model=model))
    assert caught.value.code == code
    assert caught.value.field.startswith("model")


def test_data_other_than_the_points_are_refused(prepared: Prepared) -> None:
    with pytest.raises(BadData, match="digest"):
        run(prepared.train_task(data_digest="0" * 32))
    with pytest.raises(BadData, match="no domain 'law'"):
        run(prepared.train_task(mixture={"law": 1.0}))
    with pytest.raises(BadConfiguration, match="sequences of 32"):
        run(prepared.train_task(sequence_length=64))


def test_a_broken_result_is_ignored(prepared: Prepared) -> None:
    task = prepared.train_task(tokens=512)
    run(task)
    path = prepared.folder / layout.point_result(task.point.key)
    _truncate(path)
    assert run(task).tokens == 512


# ------------------------------------------------------------------------------ at any write


@pytest.mark.parametrize("keep", [1, 2])
def test_an_attempt_killed_at_any_write_loses_nothing_that_was_saved(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    """Where the last step is saved again, as after a run whose result was not written."""
    task = prepared.train_task(tokens=512, task={"keep_checkpoints": keep})
    run(task)
    wanted, written = trajectory(task), [""]
    result = layout.point_result(task.point.key)
    for number in itertools.count(1):
        prepared.store.remove(result)
        with monkeypatch.context() as patch, suppress(Gone):
            written = at_write(patch, number, is_lost)
            run(task)
        if len(written) < number:
            break
        prepared.store.remove(result)
        with stop_during_step(100) as interruption:
            run(task, interruption)
        assert (interruption.steps, trajectory(task)) == (0, wanted), written
    assert number > 8


@pytest.mark.parametrize("tries", [6, 10**9], ids=["for a while", "for good"])
def test_a_store_that_is_away_at_any_write_changes_nothing(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """Where the attempt ends with it, the next one goes on."""
    task = prepared.train_task(tokens=512)
    wanted, written = undisturbed(task).trajectory, [""]
    monkeypatch.setattr(checkpoint_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(checkpoint_module, "PATIENCE_SECONDS", 1.0 if tries == 6 else 0.05)

    def away(times: int) -> None:
        if times < tries:
            raise StoreUnavailable("away")

    for number in itertools.count(1):
        # The claim and the point's configuration are not tried again.
        ends = suppress(StoreUnavailable) if number <= 2 or tries > 6 else nullcontext()
        with monkeypatch.context() as patch, ends:
            written = at_write(patch, number, away)
            run(task.model_copy(update={"checkpoint_seconds": 0}))
        run(task)
        assert trajectory(task) == wanted, written
        if len(written) < number:
            break
        forget(task)
    assert number > 8


def test_an_attempt_superseded_at_any_write_spoils_nothing_of_its_successor(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a node that is cut off and comes back: meanwhile a later attempt trains the point for longer, and ends."""
    later = {"claimant": records.Claimant(sweep_uid="sweep", attempt=2)}
    task, further, longest = (
        prepared.train_task(tokens=tokens, task=given)
        for tokens, given in ((512, {}), (1024, later), (1536, later))
    )
    store, key = prepared.store, task.point.key
    wanted, written = undisturbed(further).trajectory, [""]
    monkeypatch.setattr(checkpoint_module, "RETRY_SECONDS", 0.01)
    for number in itertools.count(1):
        patch = pytest.MonkeyPatch()

        def cut_off(_: int, patch: pytest.MonkeyPatch = patch) -> None:
            patch.undo()
            run(further)
            raise StoreUnavailable("away")

        written = at_write(patch, number, cut_off)
        with suppress(Interrupted, *((StoreUnavailable,) if number <= 2 else ())):
            run(task.model_copy(update={"checkpoint_seconds": 0}))
        patch.undo()
        if len(written) < number:
            break
        assert trajectory(task) == wanted, written
        result = store.read_record(layout.point_result(key), records.PointResult)
        assert (result.tokens, result.claimant.attempt) == (1024, 2), written
        assert result.trajectory_sha256 == hashlib.sha256(wanted).hexdigest()
        with stop_during_step(100) as interruption:
            run(longest, interruption)
        assert interruption.steps == 4, written
        forget(task)
    assert number > 8


# ------------------------------------------------------------------------------------- fencing


def claim(task: records.TrainTask, **changes: Any) -> None:
    claimant = task.claimant.model_copy(update=changes)
    Fence(Store(task.store_uri), task.point.key, claimant).acquire()


def test_a_point_that_another_sweep_trains_is_left_alone(prepared: Prepared) -> None:
    task = prepared.train_task()
    claim(task, sweep_uid="other")
    with pytest.raises(ClaimedElsewhere) as caught:
        run(task)
    assert caught.value.exit_code == records.ExitCode.CLAIMED_ELSEWHERE
    assert not prepared.store.exists(layout.point_config(task.point.key))


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (-366 * 86_400, None),
        (-90, None),
        (-30, r"heartbeat [123]\d s in the future"),
        (30, r"heartbeat [345]\d s ago"),
        (90, None),
    ],
)
def test_a_claim_lasts_as_long_whatever_the_clock_of_who_holds_it(
    prepared: Prepared, age: float, words: str | None
) -> None:
    task = prepared.train_task()
    store, path = prepared.store, layout.point_claim(task.point.key)
    at = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    claimant = records.Claimant(sweep_uid="other", attempt=1)
    store.write_record(path, Claim(claimant=claimant, holder="x", updated_at=at))
    if words is None:
        claim(task)
        assert store.read_record(path, Claim).claimant == task.claimant
    else:
        with pytest.raises(ClaimedElsewhere, match=words):
            claim(task)


def test_an_earlier_attempt_yields_to_a_later_one_and_not_the_reverse(prepared: Prepared) -> None:
    task = prepared.train_task(tokens=512)
    claim(task, attempt=2)
    with pytest.raises(ClaimedElsewhere):
        run(task)
    later = task.model_copy(update={"claimant": records.Claimant(sweep_uid="sweep", attempt=3)})
    assert run(later).tokens == 512


@pytest.mark.parametrize("writer", [1, 0], ids=["a successor", "itself, late"])
def test_a_heartbeat_takes_no_claim_back_from_who_took_it_over_meanwhile(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, writer: int
) -> None:
    """As one that is sent again and again to a store that is away; the next one would end the successor."""
    task = prepared.train_task()
    store, key = prepared.store, task.point.key
    later = task.claimant.model_copy(update={"attempt": 2})
    fences = [Fence(store, key, claimant) for claimant in (task.claimant, later)]
    read = Store.read_versioned

    def overtaken(self: Store, path: str, **limits: int) -> tuple[bytes, str]:
        found = read(self, path, **limits)
        monkeypatch.setattr(Store, "read_versioned", read)
        fences[writer].acquire()
        return found

    fences[0].acquire()
    monkeypatch.setattr(Store, "read_versioned", overtaken)
    with pytest.raises(Interrupted, match="took over") if writer else nullcontext():
        fences[0].beat()
    fences[writer].check()


@pytest.mark.parametrize("moment", ["a checkpoint", "the result"])
def test_a_superseded_attempt_writes_nothing_more(
    prepared: Prepared, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = prepared.train_task(tokens=512)
    original = Checkpoints.save

    def take_over(self: Checkpoints, *state: Any) -> None:
        claim(task, attempt=2)
        original(self, *state)

    monkeypatch.setattr(Checkpoints, "save", take_over)
    step = 2 if moment == "a checkpoint" else 1000
    with stop_during_step(step) as interruption, pytest.raises(Interrupted) as caught:
        run(task, interruption)
    assert caught.value.code == "Superseded"
    store = prepared.store
    assert not store.exists(layout.point_result(task.point.key))
    assert not list(prepared.folder.glob("points/*/checkpoints/*/manifest.json"))
    held = store.read_record(layout.point_claim(task.point.key), Claim)
    assert held.claimant.attempt == 2


# --------------------------------------------------------------------------------- a bad store


def test_a_claim_that_the_store_does_not_take_back_changes_no_ending(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, output = prepared.train_task(model={**LLAMA, "vocab_size": 2}), io.StringIO()
    monkeypatch.setattr(Fence, "release", raise_away)
    with pytest.raises(BadConfiguration) as caught:
        train(task, Path("/nonexistent"), Interruption(), Log(output))
    assert caught.value.code == "VocabularyTooSmall"
    (event,) = [json.loads(line) for line in output.getvalue().splitlines()]
    assert (event["event"], event["reason"]) == ("claim-not-released", "away")


@pytest.mark.parametrize("last", ["SIGTERM", "the end"])
def test_a_store_that_is_back_gets_the_next_checkpoint_after_one_that_failed(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """One is due after every step: that of the first fails."""
    task = prepared.train_task(tokens=512)
    task = task.model_copy(update={"checkpoint_seconds": 0})
    original, failed = Checkpoints._write, []

    def away_once(self: Checkpoints, state: TrainingState, *rest: Any) -> None:
        if not failed:
            failed.append(state.step)
            raise StoreUnavailable("away")
        original(self, state, *rest)

    monkeypatch.setattr(Checkpoints, "_write", away_once)
    with stop_during_step(2 if last == "SIGTERM" else 100) as interruption:
        if last == "SIGTERM":
            with pytest.raises(Interrupted, match="saved at 256 tokens"):
                run(task, interruption)
        run(task)
    assert failed == [1]
    assert interruption.steps == 4


def test_a_stop_writes_a_failed_checkpoint_of_where_the_run_stands_again(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = prepared.train_task()
    current = run_of(attempt(task, prepared.data))
    saving, state = current.saving, TrainingState(step=3)
    folder = layout.point_checkpoints(task.point.key)
    current.attempt.fence.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(saving.checkpoints, "_write", raise_away)
        saving.save(state)
        assert saving.checkpoints._pending is not None
        assert saving.checkpoints._pending.exception(10)
    wanted = part_of(current.learner).clone()
    saving.save_what_is_new(state)
    saving.checkpoints.wait()
    assert prepared.store.names(folder) == ["step-0000000003"]
    spoil_weights(current.learner)
    saving.restore()
    assert torch.equal(part_of(current.learner), wanted)
    current.close()


def raise_away(*_: Any) -> None:
    raise StoreUnavailable("away")


def test_a_write_that_the_store_refuses_is_not_repeated() -> None:
    """Waiting for five minutes would only delay what the user has to read."""
    writes = []

    def denied() -> None:
        writes.append(1)
        raise StoreRefused("s3://lab/a: access denied")

    with pytest.raises(StoreRefused, match="access denied"):
        persist(denied)
    assert writes == [1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "No space left on device"), "DiskFull"),
        (StoreUnavailable("no answer"), "StoreUnavailable"),
        (StoreRefused("403"), "StoreRefused"),
    ],
)
def test_storage_failures_say_whether_waiting_helps(error: Exception, code: str) -> None:
    """The operator charges what the store refused, and not that it was away."""
    reported = explain(error)
    assert (reported[0], reported[1].code) == (records.ExitCode.STORAGE, code)


# ------------------------------------------------------------------------------------- numerics


def test_the_average_means_the_same_at_every_batch_size() -> None:
    def averaged(batch_tokens: int) -> float:
        average = torch.zeros(1)
        for tokens in range(batch_tokens, 100_001, batch_tokens):
            take_into_average([average], [torch.tensor([tokens / 1e5])], tokens, batch_tokens)
        return float(average)

    assert averaged(100) == pytest.approx(averaged(1000), abs=0.01)
    assert averaged(100) == pytest.approx(1 - 1 / 11, abs=0.005)


def test_every_error_has_an_exit_code() -> None:
    for kind in TrainerError.__subclasses__():
        assert kind("Code", "words").exit_code in set(records.ExitCode)
    assert explain(ZeroDivisionError("oops"))[0] == 1
