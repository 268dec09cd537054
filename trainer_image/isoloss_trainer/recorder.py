"""Curves of a run at Weights & Biases, for those who watch it.

Nothing here may slow or fail a run: the recorder works in a thread of its own, and if it fails, the log
says so once and the run goes on without it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from isoloss_contract.records import TrajectoryRow
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.figures import Figures
from isoloss_trainer.log import Log

WANDB_VARIABLES = ("WANDB_API_KEY", "WANDB_MODE")
"""Either of them set: record at Weights & Biases; WANDB_MODE=disabled: do not."""
CLOSE_SECONDS = 20.0
"""How long the end of a run waits for its recorder."""
WAITING = 1000
"""Entries that wait for a slow recorder; what comes while so many do is left out."""

Values = Mapping[str, float]


class Recorder:
    """Hands values to what keeps them, which is begun, too, in a thread: that imports much and asks a server."""

    def __init__(self, begin: Callable[[], WeightsAndBiases] | None, log: Log) -> None:
        self._log = log
        self._queue: queue.Queue[tuple[int, Values] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        if begin is not None:
            work = threading.Thread(target=self._work, args=(begin,), name="recorder", daemon=True)
            self._thread = work
            work.start()

    def record(self, tokens: int, values: Values) -> None:
        """Note the `values` of curves after `tokens`; never blocks."""
        if self._thread is not None and self._thread.is_alive():
            with suppress(queue.Full):
                self._queue.put_nowait((tokens, dict(values)))

    def close(self) -> None:
        """Finish what was noted, for twice CLOSE_SECONDS at most."""
        thread, self._thread = self._thread, None
        if thread is None or not thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        thread.join(CLOSE_SECONDS)

    def _work(self, begin: Callable[[], WeightsAndBiases]) -> None:
        with self._log.survived("recorder-dropped"):
            curves = begin()
            while (entry := self._queue.get()) is not None:
                curves.record(*entry)
            curves.close()


def wanted_curves(attempt: Attempt) -> Callable[[], WeightsAndBiases] | None:
    """What begins the curves that the environment asks for; None if it asks for none, and in all ranks but 0."""
    asked = any(map(os.environ.get, WANDB_VARIABLES))
    if not asked or os.environ.get("WANDB_MODE") == "disabled" or not attempt.world.is_first:
        return None
    return lambda: WeightsAndBiases(attempt)


def curves_of_training(found: Figures) -> dict[str, float]:
    """Figures by the names of their curves."""
    return {f"train/{name}": value for name, value in found.facts().items()}


def curves_of_evaluation(row: TrajectoryRow, further: Values) -> dict[str, float]:
    """Validation losses, of the mixture and of each domain, and `further` values by their curves' names."""
    losses = {"loss": row.loss, "averaged_loss": row.averaged_loss}
    losses |= {f"loss/{name}": domain.loss for name, domain in row.domains.items()}
    found = {f"validation/{name}": loss for name, loss in losses.items() if loss is not None}
    return {**found, **{f"train/{name}": value for name, value in further.items()}}


class WeightsAndBiases:
    """A run whose id is the point's key, continued by later attempts, with curves over tokens, so that points of other
    batch sizes can be laid over each other. Project, entity and the rest are the package's own variables
    (WANDB_PROJECT, WANDB_ENTITY, …)."""

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
        """Add a value to each of the named curves."""
        self._run.log({"tokens": tokens, **values})

    def close(self) -> None:
        """Finish."""
        self._run.finish()
