"""Where a run stands, as people ask for it: a line in the log, and curves for those who draw them."""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass

import torch

from isoloss_trainer.utilisation import TokenFlops
from isoloss_trainer.world import World


@dataclass(frozen=True)
class Figures:
    """Figures of the steps since the last ones; None: unknown."""

    step: int
    tokens: int
    wanted_tokens: int
    loss: float | None
    """Mean over these steps, nats per token."""
    gradient_norm: float | None
    """Mean over these steps, before clipping."""
    learning_rate: float
    tokens_per_second: float
    """Throughput of all processes together, excluding evaluations."""
    mfu: float | None
    """Model FLOPs utilisation in the PaLM convention (utilisation.py)."""
    utilisation: float | None
    """Based on the FLOPs that are executed, without what the causal mask hides: as `isoloss plan --utilisation` takes
    it."""
    peak_memory_bytes: int
    """Most that this process has had allocated: on its accelerator, else in the host's memory."""

    def facts(self) -> dict[str, float]:
        """All that is known, by name, but the tokens."""
        found = asdict(self).items()
        return {k: v for k, v in found if v is not None and not k.endswith("tokens")}

    def words(self) -> str:
        """One line for people; what is unknown is left out."""
        share = min(1.0, self.tokens / self.wanted_tokens)
        parts = [
            f"step {self.step:,}",
            f"{share:.1%} of {self.wanted_tokens:,} tokens",
            _words("loss", self.loss, ".4f"),
            _words("gradient norm", self.gradient_norm, ".3g"),
            f"learning rate {self.learning_rate:.3g}",
            f"{self.tokens_per_second:,.0f} tokens/s",
            _words("MFU", self.mfu, ".1%"),
            _words("executed", self.utilisation, ".1%"),
            f"peak memory {self.peak_memory_bytes / 2**30:.2f} GiB",
        ]
        return "  ".join(part for part in parts if part)


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

    def figures(
        self, step: int, tokens: int, wanted: int, learning_rate: float, seconds: float
    ) -> Figures:
        """Since the last call, after `seconds` of the run's time. If no step has been read since, as
        on an accelerator that is asked for many at once, loss and norm are those of the call before."""
        self._loss = _mean(self._losses, self._loss)
        self._norm = _mean(self._norms, self._norm)
        self._losses, self._norms = [], []
        rate = (tokens - self._tokens) / max(seconds - self._seconds, 1e-9)
        self.start(tokens, seconds)
        return Figures(
            step=step,
            tokens=tokens,
            wanted_tokens=wanted,
            loss=self._loss,
            gradient_norm=self._norm,
            learning_rate=learning_rate,
            tokens_per_second=rate,
            mfu=self._share(rate, self._flops.palm),
            utilisation=self._share(rate, self._flops.executed),
            peak_memory_bytes=peak_memory_bytes(self._world),
        )

    def _share(self, rate: float, flops: float | None) -> float | None:
        return None if self._peak is None or flops is None else rate * flops / self._peak


def peak_memory_bytes(world: World) -> int:
    """Most that this process has had allocated: on its accelerator, else in the host's memory."""
    if world.on_cpu:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return torch.cuda.max_memory_allocated(world.device)


def _mean(values: list[float], default: float | None) -> float | None:
    return sum(values) / len(values) if values else default


def _words(name: str, value: float | None, form: str) -> str:
    return "" if value is None else f"{name} {value:{form}}"
