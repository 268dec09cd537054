"""Curves of a run for those who watch it: TensorBoard event files in the store, and Weights & Biases.

Nothing here may slow or fail a run: recorders work in a thread of their own, and one that fails is named
in the log once and then dropped.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from isoloss_contract import layout
from isoloss_contract.records import TrajectoryRow
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.figures import Figures
from isoloss_trainer.log import Log

TENSORBOARD_VARIABLE = "ISOLOSS_TENSORBOARD"
"""Set to 1: write TensorBoard event files."""
WANDB_VARIABLES = ("WANDB_API_KEY", "WANDB_MODE")
"""Either of them set: record at Weights & Biases; WANDB_MODE=disabled: do not."""
UPLOAD_SECONDS = 60.0
"""Between two writes of an event file to the store …"""
UPLOAD_SHARE = 0.02
"""… which may take this share of the time at most: a file is written whole each time."""
CLOSE_SECONDS = 20.0
"""How long the end of a run waits for its recorders."""
WAITING = 1000
"""Entries that wait for slow recorders; what comes while so many do is left out."""

Values = Mapping[str, float]


class Recorder(Protocol):
    """Draws curves over tokens, so that points of other batch sizes can be laid over each other."""

    def record(self, tokens: int, values: Values) -> None:
        """Add a value to each of the named curves."""

    def close(self) -> None:
        """Finish."""


class Recorders:
    """Hands values to recorders, which are made, too, in a thread: they import much and ask servers."""

    def __init__(self, makers: Mapping[str, Callable[[], Recorder]], log: Log) -> None:
        self._log = log
        self._queue: queue.Queue[tuple[int, Values] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        if makers:
            work = threading.Thread(
                target=self._work, args=(dict(makers),), name="recorders", daemon=True
            )
            self._thread = work
            work.start()

    def record(self, tokens: int, values: Values) -> None:
        """Note the `values` of curves after `tokens`; never blocks."""
        if self._thread is None:
            return
        with suppress(queue.Full):
            self._queue.put_nowait((tokens, dict(values)))

    def close(self) -> None:
        """Finish what was noted, for CLOSE_SECONDS at most."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        thread.join(CLOSE_SECONDS)

    def _work(self, makers: Mapping[str, Callable[[], Recorder]]) -> None:
        recorders: dict[str, Recorder] = {}
        for name, make in makers.items():
            with self._dropping(recorders, name):
                recorders[name] = make()
        while (entry := self._queue.get()) is not None:
            for name, recorder in list(recorders.items()):
                with self._dropping(recorders, name):
                    recorder.record(*entry)
        for name, recorder in list(recorders.items()):
            with self._dropping(recorders, name):
                recorder.close()

    @contextmanager
    def _dropping(self, recorders: dict[str, Recorder], name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 (whatever a recorder does, the run goes on)
            recorders.pop(name, None)
            reason = f"{type(error).__name__}: {error}"[:300]
            self._log.event("recorder-dropped", recorder=name, reason=reason)


def wanted_recorders(attempt: Attempt, tokens: int) -> dict[str, Callable[[], Recorder]]:
    """Those that the environment asks for, by name, for a run that has seen `tokens`; none but in rank 0."""
    if not attempt.world.is_first:
        return {}
    makers: dict[str, Callable[[], Recorder]] = {}
    if os.environ.get(TENSORBOARD_VARIABLE, "0") not in ("", "0"):
        makers["TensorBoard"] = lambda: TensorBoard(attempt, tokens)
    if any(map(os.environ.get, WANDB_VARIABLES)) and os.environ.get("WANDB_MODE") != "disabled":
        makers["Weights & Biases"] = lambda: WeightsAndBiases(attempt)
    return makers


def curves_of_training(found: Figures) -> dict[str, float]:
    """Figures by the names of their curves."""
    return {f"train/{name}": value for name, value in found.facts().items()}


def curves_of_evaluation(row: TrajectoryRow, further: Values) -> dict[str, float]:
    """Validation losses, of the mixture and of each domain, and `further` values by their curves' names."""
    losses = {"loss": row.loss, "averaged_loss": row.averaged_loss}
    losses |= {f"loss/{name}": domain.loss for name, domain in row.domains.items()}
    found = {f"validation/{name}": loss for name, loss in losses.items() if loss is not None}
    return {**found, **{f"train/{name}": value for name, value in further.items()}}


class TensorBoard:
    """An event file for each attempt, in the point's folder in the store."""

    def __init__(self, attempt: Attempt, tokens: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._attempt = attempt
        self._folder = attempt.scratch / f"tensorboard-{attempt.task.point.key}"
        # Where an attempt that was killed went further than its last checkpoint, this one's values count.
        self._writer = SummaryWriter(str(self._folder), purge_step=tokens)
        self._due = time.monotonic() + UPLOAD_SECONDS

    def record(self, tokens: int, values: Values) -> None:
        """As Recorder."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, tokens)
        if time.monotonic() >= self._due:
            self._upload()

    def close(self) -> None:
        """As Recorder."""
        self._writer.close()
        self._upload()

    def _upload(self) -> None:
        self._writer.flush()
        began = time.monotonic()
        self._attempt.fence.check()
        for file in self._files():
            path = f"{layout.point_tensorboard(self._attempt.task.point.key)}/{file.name}"
            self._attempt.store.write(path, file.read_bytes())
        now = time.monotonic()
        self._due = now + max(UPLOAD_SECONDS, (now - began) / UPLOAD_SHARE)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*tfevents*"))


class WeightsAndBiases:
    """A run whose id is the point's key, continued by later attempts. Project, entity and the rest are the
    package's own variables (WANDB_PROJECT, WANDB_ENTITY, …)."""

    def __init__(self, attempt: Attempt) -> None:
        if find_spec("wandb") is None:
            names = " or ".join(WANDB_VARIABLES)
            raise ModuleNotFoundError(
                f"{names} is set, but the package wandb is not installed: add it to the image, or "
                "take the variable away"
            )
        import wandb

        point = attempt.task.point
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "isoloss"),
            id=point.key,
            resume="allow",
            config=point.model_dump(mode="json"),
            dir=str(attempt.scratch),
            # The log is ours: wandb would put itself between it and the pod's.
            settings={"console": "off", "silent": True},
        )
        self._run.define_metric("*", step_metric="tokens")

    def record(self, tokens: int, values: Values) -> None:
        """As Recorder."""
        self._run.log({"tokens": tokens, **values})

    def close(self) -> None:
        """As Recorder."""
        self._run.finish()
