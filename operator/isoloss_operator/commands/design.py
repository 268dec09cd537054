"""Which proxies of a checkpoint are worth training for a planned run, for how long and on how much. Pure.

Chosen is the design whose expected cost and expected regret are least together, both as shares of the planned run's compute. What an
answer is expected to lose is the covariance that the law engine's own model gives these runs (isoloss.design). What its own
prediction would be refused for is not designed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from isoloss import design, formatting
from isoloss.design.setting import FIRST_SHARE
from isoloss.laws import Array, size_refusal
from isoloss.numbers import to_significant_digits
from isoloss_contract.footprint import fit
from isoloss_contract.memory import DEVICES
from isoloss_contract.records import WARMUP_MULTIPLE
from isoloss_operator.api.sweep import MAX_PARALLELISM
from isoloss_operator.commands.derived_proxies import NoDerivedProxy, derive_proxy
from isoloss_operator.planning.flops import PEAK_FLOPS, assumed_utilisation, executed_flops
from isoloss_operator.planning.models import model_shape, parameter_counts
from isoloss_operator.planning.search_cost import MEASURED_TARGET, expected_share

LARGEST_SHARE: Final = 0.25
"""Share of the checkpoint's active parameters that the largest proxy may have."""
TOKENS_PER_PARAMETER: Final = (5, 10, 20, 40, 80, 160, 320)
"""Lengths of runs that are compared; runs of the published sweep of mixtures begin at 1.6."""
SPACINGS: Final = (1.8, 2.5, 3.5, 5.0, 7.0, 10.0, 14.0)
"""Factors between the smallest and the largest size that are compared."""
FEWEST_TOKENS_PER_PARAMETER: Final = WARMUP_MULTIPLE
"""Evaluations within twice the warm-up, usually one token per parameter, are not fitted (planning/specs.py)."""
LINES_OF_SEARCH: Final = 3
LINES_OF_GRID: Final = (4, 5)
"""Learning rates, and batch sizes, that are compared: a search adds lines if the optimum lies beyond, a grid cannot."""
FEWEST_LAYERS: Final = 4
SMALLEST_BODY: Final = 0.25
"""Share of a proxy's active parameters that its layers must have: the rest is the output head."""
LADDER_STEP: Final = 1.25
FEWEST_PARAMETERS: Final = 30_000_000
"""Active ones of a proxy: what smaller models tell of large ones was not measured."""
SMALLEST_OF_CHECKPOINT: Final = 1e-3
"""Share of the checkpoint's active parameters below which nothing is tried."""
NEAR: Final = 1.15
"""Factor by which a size may miss what is wanted."""
SHOWN: Final = 5
DEAREST: Final = 10.0
"""Designs that are shown, and the cost of the dearest at most, over that of the chosen one."""

GPU_BYTES: Final = 80e9
STATE_SHARE: Final = 0.6
"""Share of an accelerator's memory that all but activations may take (docs/reference/memory.md)."""
NODE: Final = 8
"""Accelerators of a usual node."""
ACCELERATORS_OF_JOB: Final = (1, 2, 4, NODE, 2 * NODE, 4 * NODE, 8 * NODE)
JOBS_OF_SEARCH: Final = 4
"""At a time: a search keeps two to three at work on average."""

FIRST_TOKENS = 100_000_000
"""The API's evaluation.firstTokens, at most FIRST_SHARE of the shortest run."""


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
    hours_per_token: float
    """Accelerator hours, at the pace that is assumed."""
    accelerators: int | None
    """Of a Job, enough to hold its training state; None: the most that are usual do not."""

    @property
    def is_sound(self) -> bool:
        """Whether it is large enough to tell anything, has layers enough to be a model of the checkpoint's kind, and is no head alone."""
        is_large = self.active >= FEWEST_PARAMETERS
        return (
            is_large and self.layers >= FEWEST_LAYERS and self.body >= SMALLEST_BODY * self.active
        )

    @property
    def nodes(self) -> int:
        """Of a Job, if they are usual ones."""
        return -(-(self.accelerators or 1) // NODE)


@dataclass(frozen=True)
class SizedRun:
    """A size and the tokens of each of its runs."""

    size: ProxySize
    tokens: int

    @property
    def flops(self) -> float:
        """Of one run."""
        return 6.0 * self.size.active * self.tokens


@dataclass(frozen=True)
class Design:
    """What a manifest trains, and what it is expected to be worth."""

    runs: tuple[SizedRun, ...]
    lines: int
    """Learning rates, and batch sizes, of each grid."""
    expected_flops: float
    """Of the search, or of the whole grids."""
    expected_hours: float
    """Accelerator hours of that."""
    target: design.Target
    outlook: design.Outlook

    @property
    def cost(self) -> float:
        """Expected FLOPs as a share of the planned run's."""
        return self.expected_flops / self.target.flops

    @property
    def total(self) -> float:
        """Cost and expected regret, as a share of the planned run's compute."""
        return self.cost + self.outlook.wasted

    @property
    def extrapolation(self) -> float:
        """FLOPs of the planned run over those of a run of the largest proxy: what the laws have to bridge at least."""
        return self.target.flops / max(run.flops for run in self.runs)

    @property
    def searched_target(self) -> design.Target | None:
        """That a search is told; None: the one that it has of its own, of which a nearer run would let it train too little."""
        return self.target if self.extrapolation > MEASURED_TARGET else None

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens of the shortest run for its size, over its active parameters."""
        return min(run.tokens / run.size.active for run in self.runs)

    @property
    def first_tokens(self) -> int:
        """Tokens at the first evaluation."""
        return first_tokens(min(run.tokens for run in self.runs))

    def accelerators(self, at_most: int, smallest_batch: int | None, *, searches: bool) -> int:
        """Of each Job at most: what its training state needs, and more of a node for a search, which keeps few Jobs at work.

        No more than `smallest_batch` has sequences, as far as memory allows it: sequences are not split, and an accelerator
        without one waits for the others in every step.
        """
        needed = max(run.size.accelerators or 0 for run in self.runs)
        useful = _most(min(at_most // JOBS_OF_SEARCH, NODE)) if searches else 1
        if smallest_batch is not None:
            useful = min(useful, _most(smallest_batch))
        return max(needed, useful)


@dataclass(frozen=True)
class Spend:
    """The most that a sweep may be expected to cost; infinite without a cap."""

    share: float = math.inf
    """Of the planned run's FLOPs."""
    hours: float = math.inf
    """Accelerator hours."""

    def allows(self, found: Design) -> bool:
        """Whether its expected cost is within this."""
        return found.cost <= self.share and found.expected_hours <= self.hours


def parallelism(accelerators: int, of_each_job: int) -> int:
    """Jobs at a time."""
    return min(accelerators // of_each_job, MAX_PARALLELISM)


def first_tokens(shortest: int) -> int:
    """Tokens at the first evaluation of runs of which the shortest takes so many."""
    return min(FIRST_TOKENS, _rounded_down(FIRST_SHARE * shortest))


# ------------------------------------------------------------------------------------- the choice


def designs(
    config: Mapping[str, Any],
    tokens: int,
    accelerators: int,
    sequence_length: int,
    *,
    searches: bool,
) -> list[Design]:
    """Every design that is compared, for `tokens` of continued pre-training of the checkpoint with this `config`.

    Raises NoDesign if there is none, and UnsupportedModel for a config whose parameters cannot be counted.
    """
    active = parameter_counts(config).active
    target = design.Target(float(active), float(tokens))
    every = tuple(_ladder(config, active, sequence_length))
    fitting = [size for size in every if (size.accelerators or 0) <= accelerators]
    found = list(layouts(fitting, tokens))
    if not found:
        _refuse_none(every, fitting, active, tokens)
    reaching = [
        runs for runs in found if size_refusal(active, [run.size.active for run in runs]) is None
    ]
    if not reaching:
        raise NoDesign(
            "--accelerators" if len(fitting) < len(every) else "--checkpoint",
            f"predictions for its {active:,} active parameters are refused if no proxy is larger than "
            f"{max(size.active for size in fitting):,}, the most that {accelerators} hold",
        )
    lines = (LINES_OF_SEARCH,) if searches else LINES_OF_GRID
    return compared(reaching, target, lines, searches=searches)


def compared(
    layouts: Iterable[Sequence[SizedRun]],
    target: design.Target,
    lines: Sequence[int],
    *,
    searches: bool,
) -> list[Design]:
    """Every design of these runs."""
    comparison = _Comparison(target, searches)
    return [comparison.design(runs, count) for runs in layouts for count in lines]


def choose(compared: Sequence[Design], spend: Spend) -> Design:
    """The least in cost and expected regret together, of those within the cap. Raises NoDesign if none is."""
    allowed = [each for each in compared if spend.allows(each)]
    if not allowed:
        cheapest = min(compared, key=lambda each: each.expected_flops)
        raise NoDesign(
            "--spend",
            f"no sweep of this checkpoint is expected to cost less than {formatting.number(100.0 * cheapest.cost, 2)}% of the planned run, "
            f"{cheapest.expected_hours:.3g} accelerator hours",
        )
    return min(allowed, key=lambda each: each.total)


def curve(compared: Sequence[Design], chosen: Design) -> list[Design]:
    """Up to SHOWN designs from cheap to dear, the chosen one among them: each loses less than all that cost no more, and is as many times
    as dear as the one before as there are such."""
    ends = _frontier(compared, chosen, DEAREST * chosen.expected_flops)
    below = [each for each in ends if each.expected_flops < chosen.expected_flops]
    above = [each for each in ends if each.expected_flops > chosen.expected_flops]
    of_below = min(len(below), max(SHOWN // 2, SHOWN - 1 - len(above)))
    of_above = min(len(above), SHOWN - 1 - of_below)
    return [*_spread(below[::-1], of_below)[::-1], chosen, *_spread(above, of_above)]


def _frontier(compared: Sequence[Design], chosen: Design, most: float) -> list[Design]:
    """Designs that lose less than all that cost no more, ascending; dearer ones than the chosen also less than that."""
    found: list[Design] = []
    for each in sorted(compared, key=lambda each: (each.expected_flops, each.outlook.wasted)):
        is_dearer = each.expected_flops > chosen.expected_flops
        least = [other.outlook.wasted for other in (*found[-1:], *([chosen] if is_dearer else []))]
        if each.expected_flops <= most and all(each.outlook.wasted < other for other in least):
            found.append(each)
    return [each for each in found if each is not chosen]


def _spread(ordered: Sequence[Design], count: int) -> list[Design]:
    """So many, the last among them, evenly over the logarithm of the cost."""
    if not count:
        return []
    logs = [math.log(each.expected_flops) for each in ordered]
    step = (logs[-1] - logs[0]) / count
    found: list[Design] = []
    for at in range(1, count + 1):
        free = [k for k, each in enumerate(ordered) if each not in found]
        nearest = min(free, key=lambda k: abs(logs[k] - logs[0] - at * step))
        found.append(ordered[nearest])
    return sorted(found, key=ordered.index)


class _Comparison:
    """Expected costs and regrets of many designs for one target, with what each size would tell worked out once."""

    def __init__(self, target: design.Target, searches: bool) -> None:
        self.target = target
        self.searches = searches
        self.setting = design.Setting.usual()
        self.centre = design.centre_below(target)
        self._evidence: dict[tuple[int, int, int], Array] = {}

    def design(self, runs: Sequence[SizedRun], lines: int) -> Design:
        """With this cost and outlook."""
        sizes = [(float(run.size.active), float(run.tokens)) for run in runs]
        shown = [self._of_size(run, lines) for run in runs]
        known = design.Knowledge.of(self.setting, sizes, shown, self.centre)
        factor = self.target.flops / max(run.flops for run in runs)
        share = expected_share(lines, max(factor, MEASURED_TARGET)) if self.searches else 1.0
        points = share * lines**2
        return Design(
            runs=tuple(runs),
            lines=lines,
            expected_flops=points * sum(run.flops for run in runs),
            expected_hours=points * sum(run.size.hours_per_token * run.tokens for run in runs),
            target=self.target,
            outlook=known.outlook(self.target),
        )

    def _of_size(self, run: SizedRun, lines: int) -> Array:
        """By evaluations from a share of its own tokens on. The manifest has earlier ones, of the shortest run: designs that counted on them
        took shorter runs, and lost 3.2 thousandths of a nat where these lose 2.3 (synthetic surfaces of `make bench-economy`)."""
        key = run.size.active, run.tokens, lines
        if key not in self._evidence:
            params, tokens = float(run.size.active), float(run.tokens)
            first = float(first_tokens(run.tokens))
            grid = design.grid_about(self.setting, params, tokens, lines, first_tokens=first)
            self._evidence[key] = design.evidence(self.setting, grid, tokens, self.centre)
        return self._evidence[key]


# ------------------------------------------------------------------------------- what is compared


def _ladder(config: Mapping[str, Any], active: int, sequence_length: int) -> Iterator[ProxySize]:
    """Sound sizes whose training fits a usual number of accelerators, ascending."""
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
        per_token = executed_flops(proxy, sequence_length)
        size = ProxySize(
            config=proxy,
            parameters=wanted,
            active=counts.active,
            total=counts.total,
            body=counts.body_active,
            layers=int(proxy["num_hidden_layers"]),
            hours_per_token=per_token / (assumed_utilisation(counts) * PEAK_FLOPS) / 3600.0,
            accelerators=training_accelerators(proxy, sequence_length),
        )
        if size.is_sound and size.accelerators is not None:
            yield size


def training_accelerators(
    config: Mapping[str, Any], sequence_length: int, counts: Sequence[int] = ACCELERATORS_OF_JOB
) -> int | None:
    """The least usual number that hold a model's training state, divided among them, and a sequence; None if none does."""
    shape = model_shape(config)
    for count in counts:
        needed = shape.footprint("bf16", count)
        fits = fit(needed, sequence_length, DEVICES["80 GB"]) is not None
        if fits and needed.fixed <= STATE_SHARE * GPU_BYTES:
            return count
    return None


def layouts(sizes: Sequence[ProxySize], most_tokens: int) -> Iterator[tuple[SizedRun, ...]]:
    """Two or three sizes and the tokens of their runs, no longer than the planned one: beyond that they show nothing that it asks for."""
    for largest, spacing in product(reversed(sizes), SPACINGS):
        smallest = _nearest(sizes, largest.active / spacing)
        if smallest is None or smallest is largest:
            continue
        middle = _nearest(sizes, math.sqrt(smallest.active * largest.active))
        together: list[tuple[ProxySize, ...]] = [(smallest, largest)]
        if middle is not None and middle not in together[0]:
            together.append((smallest, middle, largest))
        for chosen in together:
            yield from _lengths(chosen, most_tokens)


def _nearest(sizes: Iterable[ProxySize], active: float) -> ProxySize | None:
    """None if none is near."""
    found = min(sizes, key=lambda size: abs(math.log(size.active / active)), default=None)
    is_near = found is not None and 1 / NEAR <= found.active / active <= NEAR
    return found if is_near else None


def _lengths(sizes: Sequence[ProxySize], most_tokens: int) -> Iterator[tuple[SizedRun, ...]]:
    """The smallest and the largest size at every length, those between on a line over ln N."""
    first, last = sizes[0], sizes[-1]
    seen = set()
    for short, long in product(TOKENS_PER_PARAMETER, TOKENS_PER_PARAMETER):
        if short < long:  # the smaller size also has to reach losses of the larger one
            continue
        runs = []
        for size in sizes:
            share = math.log(size.active / first.active) / math.log(last.active / first.active)
            ratio = short ** (1.0 - share) * long**share
            wanted = int(to_significant_digits(ratio * size.active, 2))
            runs.append(SizedRun(size, min(wanted, most_tokens)))
        key = tuple(run.tokens for run in runs)
        if key not in seen:
            seen.add(key)
            yield tuple(runs)


def _refuse_none(
    every: Sequence[ProxySize], fitting: Sequence[ProxySize], active: int, tokens: int
) -> None:
    """Raises NoDesign."""
    if len(fitting) < len(every) and any(layouts(every, tokens)):
        needed = max(size.accelerators or 0 for size in every)
        raise NoDesign(
            "--accelerators",
            f"the largest proxy, of {max(size.total for size in every):,} parameters in all, needs {needed}",
        )
    raise NoDesign(
        "--checkpoint",
        f"no two proxies of its shape with {FEWEST_LAYERS} layers, a quarter of their parameters in layers, and at most "
        f"{LARGEST_SHARE:.0%} of its {active:,} active parameters: continue the checkpoint itself on a grid, by proxies[].checkpoint of a sweep, or write the proxies by hand",
    )


def _most(accelerators: int) -> int:
    """The largest usual number of accelerators of a Job among so many, at least 1."""
    return max(count for count in ACCELERATORS_OF_JOB if count <= max(1, accelerators))


def _rounded_down(value: float) -> int:
    """To one significant digit, at least 1."""
    digit = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return int(max(value, 1.0) // digit * digit)
