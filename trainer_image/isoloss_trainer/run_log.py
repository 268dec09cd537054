"""What a run reports to those who watch it: lines in the log, and curves at Weights & Biases.

Nothing of the curves may slow or fail a run: they are drawn in a thread of its own, and if that fails, the log
says so once and the run goes on without them.
"""

from __future__ import annotations

import math
import os
import queue
import resource
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch

from isoloss_contract.records import ParameterCounts, TrajectoryRow
from isoloss_trainer import attention
from isoloss_trainer.attempt import Attempt, Stopwatch, TrainingState
from isoloss_trainer.learner import Learner
from isoloss_trainer.log import Log
from isoloss_trainer.termination import BadConfiguration
from isoloss_trainer.world import World

# ------------------------------------------------------------- how much of its accelerators it uses


PEAK_FLOPS_VARIABLE = "ISOLOSS_PEAK_FLOPS"
"""FLOP/s of one device without sparsity, for devices that are not in PEAK_FLOPS, or at another limit."""
PEAK_FLOPS = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
}
"""FLOP/s of dense bfloat16 products as the makers give them, keyed by words of the name that torch reports for the
device."""


class TokenFlops(NamedTuple):
    """Training FLOPs of a token: 6 per active matrix parameter, head included, and those of attention."""

    palm: float
    """12 * layers * width * sequence length, nothing masked (Chowdhery et al. 2204.02311, appendix B)."""
    executed: float | None
    """Under the causal mask; None for a family whose attention is not counted."""


def flops_per_token(config: Any, parameters: ParameterCounts, sequence_length: int) -> TokenFlops:
    """Training FLOPs per token of a transformers `config`."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    query, value = attention.head_sizes(config)
    matrices, shapes = 6.0 * parameters.active, attention.attention_shapes(config)
    return TokenFlops(
        palm=matrices + 6.0 * int(layers * heads * (query + value)) * sequence_length,
        executed=None
        if shapes is None
        else matrices + sum(shape.flops_per_token(sequence_length) for shape in shapes),
    )


def peak_flops(world: World, precision: Literal["bf16", "float32"]) -> float | None:
    """FLOP/s of all devices together; None if the device is unknown, or computes in float32.

    Raises BadConfiguration if PEAK_FLOPS_VARIABLE is not a positive number.
    """
    if given := os.environ.get(PEAK_FLOPS_VARIABLE):
        return world.size * _number(given)
    if world.on_cpu or precision != "bf16":
        return None
    found = peak_of(torch.cuda.get_device_name(world.device))
    return None if found is None else world.size * found


def peak_of(device: str) -> float | None:
    """FLOP/s of a device by its name, such as "NVIDIA H100 80GB HBM3"; None if it is unknown."""
    words = set(device.split())
    # Names that are longer come first: "H100 NVL" is another device than "H100".
    known = sorted(PEAK_FLOPS, key=len, reverse=True)
    if "MIG" in words:  # a part of it
        return None
    # "NVIDIA A100-SXM4-80GB" is one word.
    words |= {word.split("-")[0] for word in words}
    return next((PEAK_FLOPS[name] for name in known if set(name.split()) <= words), None)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise BadConfiguration(
            "BadVariable",
            f"{PEAK_FLOPS_VARIABLE} is {text!r}: give the FLOP/s of one device, such as 989e12",
            "podTemplate",
        )
    return number


# ------------------------------------------------------------------------------------------ figures


Figures = dict[str, float]
"""Of the steps since the last ones, by name, without what is unknown. Loss and gradient norm (before clipping) are means
over these steps, tokens_per_second is of all processes together without evaluations, mfu in the PaLM convention,
utilisation of what is executed, without what the causal mask hides (as `isoloss plan --utilisation` takes it),
peak_memory_bytes of this process."""


def in_words(figures: Figures, tokens: int, wanted: int) -> str:
    """One line for people; what is unknown is left out."""
    forms = {
        "step": "step {:,}",
        "share": "{:.1%} of " + f"{wanted:,} tokens",
        "loss": "loss {:.4f}",
        "gradient_norm": "gradient norm {:.3g}",
        "learning_rate": "learning rate {:.3g}",
        "tokens_per_second": "{:,.0f} tokens/s",
        "mfu": "MFU {:.1%}",
        "utilisation": "executed {:.1%}",
        "peak_gib": "peak memory {:.2f} GiB",
    }
    peak = figures["peak_memory_bytes"] / 2**30
    found = {**figures, "share": min(1.0, tokens / wanted), "peak_gib": peak}
    return "  ".join(form.format(found[name]) for name, form in forms.items() if name in found)


class Meter:
    """Gathers what steps found out until figures are asked for."""

    def __init__(self, flops: TokenFlops, peak_flops: float | None, world: World) -> None:
        self._flops, self._peak, self._world = flops, peak_flops, world
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._loss: float | None = None
        self._norm: float | None = None
        self._tokens, self._seconds = 0, 0.0

    def start(self, tokens: int, seconds: float) -> None:
        """Begin with a run that has seen `tokens`, after so many `seconds` of its time."""
        self._tokens, self._seconds = tokens, seconds

    def take_step(self, loss: float, gradient_norm: float) -> None:
        """Note what a step found out."""
        self._losses.append(loss)
        self._norms.append(gradient_norm)

    def figures(self, step: int, tokens: int, learning_rate: float, seconds: float) -> Figures:
        """Since the last call, after `seconds` of the run's time. If no step has been read since, as
        on an accelerator that is asked for many at once, loss and norm are those of the call before."""
        self._loss = _mean(self._losses, self._loss)
        self._norm = _mean(self._norms, self._norm)
        self._losses, self._norms = [], []
        rate = (tokens - self._tokens) / max(seconds - self._seconds, 1e-9)
        self.start(tokens, seconds)
        found = {
            "step": step,
            "loss": self._loss,
            "gradient_norm": self._norm,
            "learning_rate": learning_rate,
            "tokens_per_second": rate,
            "mfu": self._share(rate, self._flops.palm),
            "utilisation": self._share(rate, self._flops.executed),
            "peak_memory_bytes": peak_memory_bytes(self._world),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _share(self, rate: float, flops: float | None) -> float | None:
        return None if self._peak is None or flops is None else rate * flops / self._peak


def peak_memory_bytes(world: World) -> int:
    """Most that this process has had allocated: on its accelerator, else in the host's memory."""
    if world.on_cpu:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return torch.cuda.max_memory_allocated(world.device)


def _mean(values: list[float], default: float | None) -> float | None:
    return sum(values) / len(values) if values else default


# ------------------------------------------------------------------------------------------- curves


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


# ------------------------------------------------------------------------ lines and curves of a run


class RunLog:
    """Writes them; `active_parameters` are the model's that take part in a token."""

    def __init__(
        self,
        attempt: Attempt,
        learner: Learner,
        meter: Meter,
        stopwatch: Stopwatch,
        active_parameters: int,
    ) -> None:
        self._attempt, self._log, self._learner = attempt, attempt.log, learner
        self._meter, self._stopwatch = meter, stopwatch
        self._active_parameters = active_parameters
        self._recorder = Recorder(None, self._log)

    def start(self, tokens: int, *, resumed: bool, written_by: dict[str, str] | None) -> None:
        """A run that has seen `tokens` begins, or resumes from a checkpoint `written_by` these versions."""
        task, world = self._attempt.task, self._attempt.world
        self._recorder = Recorder(wanted_curves(self._attempt), self._log)
        self._meter.start(tokens, self._stopwatch.seconds)
        kernels = attention.describe_kernels(
            self._learner.model.network,
            task.point.sequence_length,
            attention.computing_type(task.point.precision),
        )
        self._log.event(
            "resume" if resumed else "start",
            tokens=tokens,
            key=task.point.key,
            wanted=task.tokens,
            device=world.device,
            processes=world.size,
            deterministic=task.deterministic,
            written_by=written_by,
            micro_batch=self._learner.micro_batch,
            recompute=self._learner.recompute,
            parameters=self._active_parameters,
            **kernels,
        )

    def progress(self, state: TrainingState, tokens: int) -> None:
        """Where the run stands, if it is time to say so."""
        if not self._log.is_due:
            return
        task = self._attempt.task
        figures = self._meter.figures(
            state.step,
            tokens,
            self._learner.learning_rate(tokens),
            self._stopwatch.seconds_without("evaluation"),
        )
        words = in_words(figures, tokens, task.tokens)
        self._log.progress("train", tokens, task.tokens, words=words, **figures)
        curves = {f"train/{name}": value for name, value in figures.items()}
        self._recorder.record(tokens, curves)

    def evaluation(self, row: TrajectoryRow) -> None:
        """What one found, with the experts' load since the one before."""
        facts = row.model_dump(exclude={"domains"})
        load = self._learner.balance.take_load()
        experts = {} if load is None else {"expert_load": load}
        self._log.event("evaluation", **facts, **self._stopwatch.shares(), **experts)
        self._recorder.record(row.tokens, curves_of_evaluation(row, experts))

    def close(self) -> None:
        """Finish the curves."""
        self._recorder.close()
