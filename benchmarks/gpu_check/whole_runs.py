"""Checks that run the trainer as a pod does, from a prepared corpus."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from isoloss_contract import layout, records
from isoloss_contract.store import Store, parse_record_lines
from isoloss_trainer.model import build_network
from isoloss_trainer.prepare import prepare
from isoloss_trainer.termination import Interruption
from tests.isoloss_trainer import builders
from tests.isoloss_trainer.block_codes import save_pair
from tests.support.models import example_model
from tests.support.published_configs import LLAMA_3_2_1B

LENGTH = 128
TOKENS, TOY_TOKENS = 1_000_000, 60_000
LLAMA_1B: dict[str, Any] = {
    **LLAMA_3_2_1B,
    "vocab_size": 131_072,
    "num_attention_heads": 16,
    "head_dim": 128,
}


def prepared(folder: Path, sequence_length: int) -> tuple[records.DataManifest, str]:
    """The manifest of a small corpus in a fresh store in `folder`, and the store's URI."""
    shutil.rmtree(folder, ignore_errors=True)
    corpus, store = builders.make_corpus(folder / "corpus"), f"file://{folder}/store"
    task = builders.prepare_task(f"file://{corpus}", store, sequence_length=sequence_length)
    prepare(task, folder, Interruption(), builders.quiet())
    path = layout.data_manifest(task.config.key)
    return Store(store).read_record(path, records.DataManifest), store


def interrupted_run(folder: Path, *, toy: bool) -> dict[str, Any]:
    """Deterministic kernels: the trajectories must have equal bytes, also on a GPU."""
    manifest, store = prepared(folder, LENGTH)
    task = builders.train_task(
        manifest,
        store,
        tokens=TOY_TOKENS if toy else TOKENS,
        model=example_model("dense-tiny", builders.VOCABULARY),
        sequence_length=LENGTH,
        evaluation=records.EvaluationConfig(
            first_tokens=512, per_decade=8, sequences_per_domain=8
        ),
        precision="bf16",
        task={"deterministic": True},
    )
    log = folder / "log"
    process = _start(task, log)
    _wait_for(log, '"event": "evaluation"', process)
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    codes = [process.wait()]
    stopped = time.monotonic() - asked
    codes.append(_start(task, log).wait())
    path = layout.point_trajectory(task.point.key)
    resumed = Store(store).read(path)
    Store(store).remove(layout.point_folder(task.point.key))
    codes.append(_start(task, log).wait())
    return {
        "exit codes of interrupted, resumed and uninterrupted run": codes,
        "exit codes as they should be": codes == [records.ExitCode.INTERRUPTED, 0, 0],
        "from SIGTERM to the end, s": stopped,
        "trajectories": "equal" if Store(store).read(path) == resumed else "different",
        "resumed": '"event": "resume"' in log.read_text(),
    }


def run_on_several(folder: Path, *, toy: bool) -> dict[str, Any]:
    """The same run on one GPU and on all of them; at toy size in one process and in two, without a GPU."""
    processes = 2 if toy else torch.cuda.device_count()
    if processes < 2:
        return {"GPUs": processes, "compared": "nothing: it takes two"}
    manifest, store = prepared(folder, LENGTH)
    found: dict[str, Any] = {"processes": processes}
    # A mixture has all that a dense model has.
    for model in ("moe-tiny",) if toy else ("dense-tiny", "moe-tiny"):
        task = builders.train_task(
            manifest,
            store,
            tokens=TOY_TOKENS // 4 if toy else TOKENS,
            model=example_model(model, builders.VOCABULARY),
            sequence_length=LENGTH,
            batch_size=2 * processes,
            evaluation=records.EvaluationConfig(
                first_tokens=512, per_decade=8, sequences_per_domain=8
            ),
            precision="bf16",
        )
        losses = []
        for number in (1, processes):
            log = folder / f"{model}-{number}.log"
            _run(task, log, number)
            rows = parse_record_lines(
                Store(store).read(layout.point_trajectory(task.point.key)),
                records.TrajectoryRow,
                model,
            )
            losses.append([row.loss or math.nan for row in rows])
            Store(store).remove(layout.point_folder(task.point.key))
        apart = [abs(one - other) for one, other in zip(*losses, strict=True)]
        found[f"{model}, losses apart by at most, nats"] = max(apart)
    return found


def _start(
    task: records.TrainTask | records.EvaluateTask, log: Path, processes: int = 1
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "ISOLOSS_TASK": task.model_dump_json(),
        "ISOLOSS_PROCESSES": str(processes),
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "isoloss_trainer", task.kind],
            env=environment,
            stdout=output,
            stderr=output,
        )


def _run(
    task: records.TrainTask | records.EvaluateTask, log: Path, processes: int = 1
) -> list[str]:
    """The lines that it logged. Raises RuntimeError where it failed."""
    code, text = _start(task, log, processes).wait(), log.read_text()
    if code:
        raise RuntimeError(f"exit code {code}: {text[-800:]}")
    return text.splitlines()


def _wait_for(log: Path, words: str, process: subprocess.Popen[bytes]) -> None:
    """Raises RuntimeError where the process ends before it has logged `words`."""
    while words not in log.read_text():
        if process.poll() is not None:
            raise RuntimeError(f"the run ended too early: {log.read_text()[-800:]}")
        time.sleep(0.02)


def random_checkpoint_loss(folder: Path, *, toy: bool) -> dict[str, Any]:
    """Time to load and to score, tokens per second, and the loss, which should be about that of random
    weights: the log of the vocabulary."""
    length = LENGTH if toy else 8192
    manifest, store = prepared(folder, length)
    config = example_model("dense-tiny", builders.VOCABULARY) if toy else LLAMA_1B
    build_network(config, seed=0).to(torch.bfloat16).save_pretrained(folder / "model")
    result, events = _evaluated(manifest, store, folder / "model", length, toy=toy)
    loading = next(event["seconds"] for event in events if event["event"] == "loaded")
    return {
        "loss, nats": result.loss,
        "log of the vocabulary": math.log(config["vocab_size"]),
        "tokens": result.evaluated_tokens,
        "to load, s": loading,
        "tokens/s": result.evaluated_tokens / max(1e-9, result.accelerator_seconds - loading),
    }


def quantized_loss(folder: Path, *, toy: bool) -> dict[str, Any]:
    """The loss of a checkpoint in 8 bits, and of the numbers that its codes stand for: equal, whether or not the device
    computes with such codes."""
    manifest, store = prepared(folder, LENGTH)
    config = example_model("dense-tiny", builders.VOCABULARY)
    losses = []
    for saved in save_pair(folder, config):
        result, _ = _evaluated(manifest, store, saved, LENGTH, toy=toy)
        losses.append(result.loss)
    return {
        "loss of the numbers, nats": losses[0],
        "codes off by, nats": abs(losses[1] - losses[0]),
    }


def _evaluated(
    manifest: records.DataManifest, store: str, checkpoint: Path, length: int, *, toy: bool
) -> tuple[records.EvaluationResult, list[dict[str, Any]]]:
    """The result of an evaluation, in bfloat16 on a GPU, and what it logged. Raises RuntimeError where it failed."""
    precision = "float32" if toy else "bf16"
    options = {"sequence_length": length, "precision": precision}
    task = builders.evaluate_task(manifest, store, f"file://{checkpoint}", **options)
    lines = _run(task, checkpoint.with_suffix(".log"))
    path = layout.evaluation_result(task.config.key)
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return Store(store).read_record(path, records.EvaluationResult), events
