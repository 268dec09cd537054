"""Which proxies of a checkpoint are worth training for a planned run, for how long and on how much. Pure.

Rules of thumb, written into the manifest for its owner to change: three sizes, each 2.5 times the one before, their
tokens such that their losses overlap, and grids that cost half of the planned run if they are trained as a whole. What
its own prediction would be refused for is not designed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from isoloss import formatting
from isoloss.laws import FitOptions, size_refusal
from isoloss.significant_digits import to_significant_digits
from isoloss_contract.records import WARMUP_MULTIPLE
from isoloss_operator.api.sweep import MAX_PARALLELISM
from isoloss_operator.commands.derived_proxies import NoDerivedProxy, derive_proxy
from isoloss_operator.planning.parameters import parameter_counts

COST_SHARE: Final = 0.5
"""Share of the planned run's FLOPs that all grids may cost. A search of 3 x 3 takes half of its grids on average."""
LARGEST_SHARE: Final = 0.25
"""Share of the checkpoint's active parameters that the largest proxy may have."""
TOKENS_PER_PARAMETER: Final = {3: (100, 60, 40), 2: (80, 40)}
"""Keyed by number of sizes, the smallest size first: trained longer, it also reaches losses of the larger ones."""
FEWEST_TOKENS_PER_PARAMETER: Final = WARMUP_MULTIPLE
"""Evaluations within twice the warm-up, usually one token per parameter, are not fitted (planning/specs.py)."""
LAYOUTS: Final[tuple[tuple[int, float], ...]] = ((3, 2.5), (2, 3.0), (2, 2.5), (2, 2.0))
"""Number of sizes and the factor between two of them, the preferred first."""
FEWEST_LAYERS: Final = 4
SMALLEST_BODY: Final = 0.25
"""Share of a proxy's active parameters that its layers must have: the rest is the output head."""
LADDER_STEP: Final = 1.1
SMALLEST_OF_CHECKPOINT: Final = 1e-3
"""Share of the checkpoint's active parameters below which nothing is tried."""
NEAR: Final = 1.2
"""Factor by which a size may miss the layout."""

GPU_BYTES: Final = 80e9
STATE_SHARE: Final = 0.6
"""Share of an accelerator's memory that weights, gradients and optimizer may take; activations have the rest."""
KEPT_BYTES, SPLIT_BYTES = 8, 16
"""Per parameter: on every accelerator, and divided among those of a Job (docs/reference/memory.md)."""
ACCELERATORS_OF_JOB: Final = (1, 2, 4, 8)
JOBS_OF_SEARCH: Final = 4
"""At a time: a search keeps two to three at work on average."""

FIRST_TOKENS, FIRST_SHARE = 100_000_000, 0.05
"""The API's evaluation.firstTokens, and the share of the shortest run that it may be at most."""


class NoDesign(ValueError):
    """No proxies serve; `option` is what to change."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option


@dataclass(frozen=True)
class ProxySize:
    """A size that can be derived from the checkpoint."""

    config: Mapping[str, Any]
    """Its transformers configuration."""
    parameters: int
    """Active ones that it was derived for; it has about as many."""
    active: int
    total: int
    body: int
    """Active, in the layers."""
    layers: int

    @property
    def is_sound(self) -> bool:
        """Whether it has layers enough to be a model of the checkpoint's kind, and not a head alone."""
        return self.layers >= FEWEST_LAYERS and self.body >= SMALLEST_BODY * self.active

    @property
    def accelerators(self) -> int | None:
        """Accelerators of a Job, enough to hold its training state; None: those of a node do not."""
        for count in ACCELERATORS_OF_JOB:
            state = self.total * (KEPT_BYTES + SPLIT_BYTES / count)
            if state <= STATE_SHARE * GPU_BYTES:
                return count
        return None


@dataclass(frozen=True)
class SizedRun:
    """A size and the tokens of each of its runs."""

    size: ProxySize
    tokens: int


@dataclass(frozen=True)
class Design:
    """What the manifest trains."""

    runs: tuple[SizedRun, ...]
    first_tokens: int
    """Tokens at the first evaluation."""
    accelerators: int
    """Accelerators of each Job."""
    parallelism: int
    """Jobs at a time."""
    cost_share: float
    """FLOPs of the whole grids over those of the planned run; more than COST_SHARE if no smaller sizes serve."""
    extrapolation: float
    """FLOPs of the planned run over those of a run of the largest proxy: what the laws have to bridge at least."""

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens of the shortest run for its size, over its active parameters."""
        return min(run.tokens / run.size.active for run in self.runs)


def design(
    config: Mapping[str, Any], tokens: int, accelerators: int, lines: int, *, searches: bool
) -> Design:
    """The proxies for `tokens` of continued pre-training with so many accelerators.

    `config` is the checkpoint's, `lines` the learning rates (and batch sizes) of each grid. Raises NoDesign, and
    UnsupportedModel for a config whose parameters cannot be counted.
    """
    active = parameter_counts(config).active
    sizes = tuple(_ladder(config, active))
    # Of grids of lines x lines runs and of the planned run, both at 6 FLOPs a parameter and token.
    planned_run = float(active) * tokens / lines**2
    chosen = _chosen(sizes, active, tokens, COST_SHARE * planned_run)
    needed = max(size.accelerators or 0 for size in chosen)
    if needed > accelerators:
        raise NoDesign(
            "--accelerators",
            f"the largest proxy, of {chosen[-1].total:,} parameters in all, needs {needed}",
        )
    runs = tuple(_runs(chosen, tokens))
    extrapolation = active * tokens / max(run.size.active * run.tokens for run in runs)
    if extrapolation > FitOptions.max_extrapolation:
        raise NoDesign(
            "--tokens",
            f"this run takes {formatting.number(extrapolation, 2)} times the compute of the largest proxy's, and a prediction "
            f"is refused beyond {FitOptions.max_extrapolation:g}: write the manifest by hand, with larger proxies on "
            "several nodes, or spec.maxExtrapolation in the prediction",
        )
    each = max(needed, _most(accelerators // JOBS_OF_SEARCH) if searches else 1)
    shortest = min(run.tokens for run in runs)
    return Design(
        runs=runs,
        first_tokens=min(FIRST_TOKENS, _rounded_down(FIRST_SHARE * shortest)),
        accelerators=each,
        parallelism=_parallelism(accelerators, each),
        cost_share=_cost(chosen, tokens) / planned_run,
        extrapolation=extrapolation,
    )


def without_idle_accelerators(found: Design, smallest_batch: int, accelerators: int) -> Design:
    """The same with no more accelerators of a Job than `smallest_batch` has sequences, as far as memory allows it.

    Sequences are not split: an accelerator without one waits for the others in every step.
    """
    needed = max(run.size.accelerators or 0 for run in found.runs)
    each = max(needed, min(found.accelerators, _most(smallest_batch)))
    return replace(found, accelerators=each, parallelism=_parallelism(accelerators, each))


def _parallelism(accelerators: int, of_each_job: int) -> int:
    return min(accelerators // of_each_job, MAX_PARALLELISM)


def _why_none(active: int) -> str:
    return (
        f"no two proxies of its shape with {FEWEST_LAYERS} layers, a quarter of their parameters in layers, and at most "
        f"{LARGEST_SHARE:.0%} of its {active:,} active parameters: write the manifest by hand"
    )


def _ladder(config: Mapping[str, Any], active: int) -> Iterator[ProxySize]:
    """Sound sizes that fit a node, ascending."""
    steps = math.floor(math.log(LARGEST_SHARE / SMALLEST_OF_CHECKPOINT, LADDER_STEP))
    for step in range(steps, -1, -1):
        wanted = int(to_significant_digits(LARGEST_SHARE * active / LADDER_STEP**step, 2))
        try:
            proxy = derive_proxy(config, wanted)
        except NoDerivedProxy as error:
            if error.field == "checkpoint":
                raise NoDesign("--checkpoint", error.message) from error
            continue
        counts = parameter_counts(proxy)
        layers = int(proxy["num_hidden_layers"])
        size = ProxySize(proxy, wanted, counts.active, counts.total, counts.body_active, layers)
        if size.is_sound and size.accelerators is not None:
            yield size


def _chosen(
    sizes: Sequence[ProxySize], active: int, tokens: int, affordable: float
) -> tuple[ProxySize, ...]:
    """The largest affordable sizes of the first layout that has any, else the cheapest; only of those whose laws reach
    the checkpoint's `active` parameters."""
    every = (
        _laid_out(sizes, largest, layout) for layout in LAYOUTS for largest in reversed(sizes)
    )
    sound = [found for found in every if found is not None]
    if not sound:
        raise NoDesign("--checkpoint", _why_none(active))
    reaching = [
        found for found in sound if size_refusal(active, [size.active for size in found]) is None
    ]
    if not reaching:
        raise NoDesign(
            "--checkpoint",
            f"predictions for its {active:,} active parameters are refused if no proxy is larger than {sizes[-1].active:,}, "
            "the most that fits a node: write the manifest by hand, with larger ones on several",
        )
    affordable_ones = (found for found in reaching if _cost(found, tokens) <= affordable)
    return next(affordable_ones, None) or min(reaching, key=lambda found: _cost(found, tokens))


def _laid_out(
    sizes: Sequence[ProxySize], largest: ProxySize, layout: tuple[int, float]
) -> tuple[ProxySize, ...] | None:
    count, factor = layout
    found = []
    for step in range(count - 1, 0, -1):
        wanted = largest.active / factor**step
        nearest = min(sizes, key=lambda size: abs(math.log(size.active / wanted)))
        if not 1 / NEAR <= nearest.active / wanted <= NEAR:
            return None
        found.append(nearest)
    return (*found, largest)


def _cost(sizes: Sequence[ProxySize], most_tokens: int) -> float:
    """Parameters times tokens of one run of each size."""
    return sum(float(run.size.active) * run.tokens for run in _runs(sizes, most_tokens))


def _runs(sizes: Sequence[ProxySize], most_tokens: int) -> Iterator[SizedRun]:
    """No longer than the planned run: beyond that they show nothing that it asks for."""
    for size, ratio in zip(sizes, TOKENS_PER_PARAMETER[len(sizes)], strict=True):
        wanted = int(to_significant_digits(float(ratio) * size.active, 2))
        yield SizedRun(size, min(wanted, most_tokens))


def _most(accelerators: int) -> int:
    """The largest usual number of accelerators of a Job among so many, at least 1."""
    return max(count for count in ACCELERATORS_OF_JOB if count <= max(1, accelerators))


def _rounded_down(value: float) -> int:
    """To one significant digit, at least 1."""
    digit = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return int(max(value, 1.0) // digit * digit)
