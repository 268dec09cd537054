"""The spec of a ScalingSweep: what to train, on what, and how to fit the laws."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from isoloss_contract.records import WARMUP_MULTIPLE
from isoloss_operator.api import fields
from isoloss_operator.api.corpus import Data, Storage
from isoloss_operator.api.proxies import MAX_NEIGHBOURHOOD, Grid, Proxy
from isoloss_operator.api.search import Search
from isoloss_operator.api.training import Evaluation, Optimizer, Training

MAX_PARALLELISM = 1000
"""Jobs of a sweep at a time."""
MAX_POINTS = 10_000
"""Points of one sweep, over all proxies."""


class Fit(fields.ApiType):
    """How the laws are fitted."""

    weights: Literal["Averaged", "Raw"] = "Averaged"
    """Which loss is fitted: that of the averaged weights or of the raw ones."""
    irreducible_loss: fields.IrreducibleLoss | None = None
    """Irreducible loss L0 in nats per token. Fitted when absent."""
    form: Literal["PowerLawOfLoss", "LinearInLogCompute"] = "PowerLawOfLoss"
    """Form of the iso-loss laws. With LinearInLogCompute they answer even if the target's size is known, because the
    joint surface has power laws only."""


class SweepBudget(fields.ApiType):
    """Limits on what the sweep may spend. A point that does not fit is not started; once a limit is
    exceeded, running points are stopped with a checkpoint, and go on when the limit is raised."""

    rules: ClassVar = (
        fields.Rule(
            "has(self.flops) || has(self.acceleratorHours)",
            "set flops, acceleratorHours or both",
            lambda budget: budget.flops is not None or budget.accelerator_hours is not None,
        ),
    )

    flops: fields.Decimal | None = None
    """Maximum FLOPs, counted as 6 * active parameters * tokens."""
    accelerator_hours: int | None = Field(default=None, ge=1, le=100_000_000)
    """Maximum accelerator hours, counted as in status.acceleratorHours."""


class FailurePolicy(fields.ApiType):
    """How failed and hung attempts are handled. Preemptions never count as failures."""

    retries_per_point: int = Field(default=3, ge=0, le=20)
    """Number of retries of a point after its first failure."""
    max_failed_points: int = Field(default=2, ge=0, le=MAX_POINTS)
    """Maximum number of points that may fail for good before the sweep fails."""
    stall_seconds: int = Field(default=3600, ge=60, le=2_592_000)
    """Seconds without reported progress after which a training attempt ends as a failure."""
    attempt_deadline_seconds: int | None = Field(default=None, ge=60, le=31_536_000)
    """activeDeadlineSeconds of each Job: a longer attempt ends as a failure. Time suspended by Kueue does not count.
    No limit when absent."""


class TtlSecondsAfterFinished(fields.ApiType):
    """Seconds that a finished Job is kept once its outcome is recorded."""

    succeeded: int = Field(default=600, ge=0, le=31_536_000)
    """For Jobs that succeeded."""
    failed: int = Field(default=86_400, ge=0, le=31_536_000)
    """For Jobs that failed."""


class Jobs(fields.ApiType):
    """Settings of all Jobs."""

    ttl_seconds_after_finished: TtlSecondsAfterFinished = TtlSecondsAfterFinished()
    """Seconds that a finished Job is kept once its outcome is recorded, for people who read its
    log."""


class Queue(fields.ApiType):
    """Admission of the Jobs by Kueue."""

    local_queue_name: fields.DnsLabel
    """Name of a LocalQueue in the same namespace. Jobs are created suspended and wait for Kueue to admit
    them."""
    workload_priority_class_name: fields.DnsLabel | None = None
    """Name of a WorkloadPriorityClass."""
    managed_by: Literal["kueue.x-k8s.io/multikueue"] | None = None
    """spec.managedBy of the Jobs: MultiKueue runs them in another cluster. Their pods are not seen here, so a failed
    attempt counts as a crash."""


_IS_AROUND = "(has(p.grid) && has(p.grid.around))"
_GRID = f"({_IS_AROUND} ? {{3}} : has(p.grid) ? {{0}} : has(self.grid) ? {{1}} : {{2}})"
_LARGEST_BATCH = _GRID.format("p.grid.batchSizes.max()", "self.grid.batchSizes.max()", "1", "1")
_POINTS = _GRID.format(
    "p.grid.batchSizes.size() * p.grid.learningRates.size()",
    "self.grid.batchSizes.size() * self.grid.learningRates.size()",
    "self.search.placement.lines * self.search.placement.lines",
    MAX_NEIGHBOURHOOD,
)
FEWEST_LINES = 3
"""Learning rates, and batch sizes, that show a minimum."""
FEWEST_STEPS = 100
"""Steps of a run at its largest batch size: with fewer, most are warm-up, or batch sizes were meant in tokens."""
_ONE_BATCH_SIZE = f"(has(self.grid) && self.grid.batchSizes.size() == 1 && self.proxies.all(p, !has(p.grid) || {_IS_AROUND}))"
_LEARNING_RATES = _GRID.format(
    "p.grid.learningRates.size()", "self.grid.learningRates.size()", FEWEST_LINES, FEWEST_LINES
)
_BATCH_SIZES = _GRID.format(
    "p.grid.batchSizes.size()", "self.grid.batchSizes.size()", FEWEST_LINES, FEWEST_LINES
)
_UNCHECKED = "self.design == 'Unchecked'"
_ASK_FOR_IT = "; set design to Unchecked to train it anyway"


class ScalingSweepSpec(fields.ApiType):
    """A grid of proxy training runs and the scaling laws fitted to them."""

    rules: ClassVar = (
        fields.Rule(
            "self.search.strategy == 'Sequential' || has(self.grid) || self.proxies.all(p, has(p.grid))",
            "set spec.grid, or a grid for every proxy: only search.strategy Sequential begins without one",
            lambda spec: (
                spec.searches or spec.grid is not None or all(p.grid for p in spec.proxies)
            ),
        ),
        fields.Rule(
            f"self.proxies.map(p, {_POINTS}).sum()"
            f" * (1 + self.training.additionalSeeds.size()) <= {MAX_POINTS}",
            f"at most {MAX_POINTS} points (batch sizes x learning rates x seeds, summed over proxies)",
            lambda spec: spec.points <= MAX_POINTS,
        ),
        fields.Rule(
            f"self.proxies.all(p, {_LARGEST_BATCH} * self.data.sequenceLength <= p.tokens)",
            "every proxy's tokens must cover a step of its largest batch:"
            " batchSizes count sequences of data.sequenceLength tokens",
            lambda spec: all(
                spec.largest_batch(proxy) * spec.data.sequence_length <= proxy.tokens
                for proxy in spec.proxies
            ),
        ),
        fields.Rule(
            f"{_UNCHECKED} || self.proxies.filter(p, !{_IS_AROUND}).size() != 1",
            f"one size gives no laws: add a proxy{_ASK_FOR_IT}",
            lambda spec: not spec.is_checked or len(spec.fitted_proxies) != 1,
        ),
        fields.Rule(
            f"self.proxies.all(p, {_IS_AROUND} || has(p.model))"
            f" || self.proxies.all(p, {_IS_AROUND} || has(p.checkpoint))",
            "sizes that start from random weights and sizes that continue a checkpoint have laws of their own:"
            " put them into two ScalingSweeps",
            lambda spec: len({p.checkpoint is None for p in spec.fitted_proxies}) < 2,
        ),
        fields.Rule(
            f"self.search.strategy != 'Sequential' || !self.proxies.exists(p, {_IS_AROUND})",
            "search.strategy Sequential chooses points for laws, and sizes with grid.around have none: put these into a"
            " ScalingSweep of their own",
            lambda spec: not spec.searches or len(spec.fitted_proxies) == len(spec.proxies),
        ),
        fields.Rule(
            f"{_UNCHECKED} || self.search.strategy == 'Sequential' || self.proxies.all(p,"
            f" {_LEARNING_RATES} >= {FEWEST_LINES})",
            f"a grid of two learning rates shows no best one: give at least {FEWEST_LINES} to every size, or set"
            f" search.strategy to Sequential, which adds points{_ASK_FOR_IT}",
            lambda spec: spec.shows_minima(lambda grid: len(grid.learning_rates)),
        ),
        fields.Rule(
            f"{_UNCHECKED} || self.search.strategy == 'Sequential' || {_ONE_BATCH_SIZE} || self.proxies.all(p,"
            f" {_BATCH_SIZES} >= {FEWEST_LINES})",
            f"these batch sizes show no best one: give at least {FEWEST_LINES} to every size, or set search.strategy to"
            " Sequential, which adds points; a single one for all sizes, in spec.grid, answers predictions with that"
            f" spec.batchSize{_ASK_FOR_IT}",
            lambda spec: (
                spec.has_one_batch_size or spec.shows_minima(lambda grid: len(grid.batch_sizes))
            ),
        ),
        fields.Rule(
            f"self.search.strategy != 'Sequential' || self.proxies.all(p, {_BATCH_SIZES} >= 2)",
            "search.strategy Sequential adds batch sizes at the distance of those given: give at least 2 to every size",
            lambda spec: not spec.searches or all(len(g.batch_sizes) >= 2 for g in spec.grids),
        ),
        fields.Rule(
            f"{_UNCHECKED} || self.proxies.all(p,"
            f" {_LARGEST_BATCH} * self.data.sequenceLength * {FEWEST_STEPS} <= p.tokens)",
            f"every proxy's tokens must last for {FEWEST_STEPS} steps of its largest batch"
            f" (batch size x data.sequenceLength); batchSizes count sequences, not tokens{_ASK_FOR_IT}",
            lambda spec: (
                not spec.is_checked
                or all(
                    FEWEST_STEPS * spec.largest_batch(proxy) * spec.data.sequence_length
                    <= proxy.tokens
                    for proxy in spec.proxies
                )
            ),
        ),
        fields.Rule(
            "!has(self.optimizer.warmupTokens) || self.proxies.all(p,"
            f" self.optimizer.warmupTokens * {WARMUP_MULTIPLE} < p.tokens)",
            f"every proxy's tokens must be more than {WARMUP_MULTIPLE} x optimizer.warmupTokens: earlier evaluations"
            " are not fitted",
            lambda spec: all(
                WARMUP_MULTIPLE * (spec.optimizer.warmup_tokens or 0) < p.tokens
                for p in spec.proxies
            ),
        ),
        fields.Rule(
            "self.proxies.all(p, self.evaluation.firstTokens < p.tokens)",
            "evaluation.firstTokens (100000000 unless set) must be less than every proxy's tokens",
            lambda spec: all(spec.evaluation.first_tokens < p.tokens for p in spec.proxies),
        ),
        fields.Rule(
            "self.search.strategy != 'Sequential' || self.training.additionalSeeds.size() == 0",
            "search.strategy Sequential trains every point with one seed: remove training.additionalSeeds",
            lambda spec: not spec.searches or not spec.training.additional_seeds,
        ),
    )

    suspend: bool = False
    """Stop all Jobs and start no new ones. Running Jobs write a checkpoint first."""
    storage: Storage
    """Object storage."""
    data: Data
    """Corpus. Immutable except for podTemplate."""
    proxies: Annotated[
        tuple[Proxy, ...],
        Field(min_length=1, max_length=20, json_schema_extra=fields.BY_NAME),
        AfterValidator(fields.names_are_unique),
    ]
    """Model sizes. Fitting the laws takes at least two; those with grid.around are not fitted."""
    grid: Grid | None = None
    """Grid of every size without its own. Without any grid, search.strategy Sequential places the first points."""
    design: Literal["Checked", "Unchecked"] = "Checked"
    """Checked refuses a design that can give no laws: a single size, fewer than three learning rates or batch sizes
    if no search adds points, runs of fewer than 100 steps. A single batch size in spec.grid is allowed: it answers
    predictions that set spec.batchSize to it. Unchecked trains any design."""
    optimizer: Annotated[Optimizer, fields.IDENTITY] = Optimizer()
    """Optimizer of every run. Immutable."""
    evaluation: Annotated[Evaluation, fields.IDENTITY] = Evaluation()
    """Evaluation schedule of every run. Immutable."""
    training: Training = Training()
    """Precision, seeds and checkpoints of every run."""
    fit: Fit = Fit()
    """How the laws are fitted."""
    parallelism: int = Field(default=4, ge=1, le=MAX_PARALLELISM)
    """Maximum number of Jobs at a time. Lowering it stops no running Job."""
    search: Search = Search()
    """Which points of the grid are trained, and how far."""
    budget: SweepBudget | None = None
    """Limits on compute. None when absent."""
    failure_policy: FailurePolicy = FailurePolicy()
    """How failed and hung attempts are handled."""
    jobs: Jobs = Jobs()
    """Settings of all Jobs."""
    queue: Queue | None = None
    """Kueue queue of the Jobs. When absent, Jobs start without admission."""
    pod_template: fields.PodTemplate | None = None
    """Merged into every pod, after the operator's defaults."""

    def grid_of(self, proxy: Proxy) -> Grid:
        """The grid of one size: its own or the sweep's. Raises ValueError if it is still to be placed."""
        grid = self._grid_of(proxy)
        if grid is None:
            raise ValueError(f"proxy {proxy.name} has no grid")
        return grid

    def _grid_of(self, proxy: Proxy) -> Grid | None:
        """None if its points are still to be placed, or lie around an answer."""
        return proxy.own_grid or (self.grid if proxy.grid is None else None)

    @property
    def checkpoint_uris(self) -> dict[str, str]:
        """URIs of the checkpoints that sizes continue, without a trailing slash, by the field that names them."""
        return {
            f"spec.proxies[{index}].checkpoint.uri": proxy.checkpoint_uri
            for index, proxy in enumerate(self.proxies)
            if proxy.checkpoint is not None
        }

    @property
    def fitted_proxies(self) -> tuple[Proxy, ...]:
        """Those whose points are fitted: all but the ones around answers."""
        return tuple(proxy for proxy in self.proxies if not proxy.is_around_an_answer)

    @property
    def is_checked(self) -> bool:
        """Whether designs that can give no laws are refused."""
        return self.design == "Checked"

    @property
    def fewest_steps(self) -> int:
        """For which the tokens of a size must last whatever its batch."""
        return FEWEST_STEPS if self.is_checked else 1

    def shows_minima(self, lines: Callable[[Grid], int]) -> bool:
        """Whether the grids have enough lines of a kind for a minimum, or a search that adds them, or are not checked."""
        if not self.is_checked or self.searches:
            return True
        return all(lines(grid) >= FEWEST_LINES for grid in self.grids)

    @property
    def grids(self) -> list[Grid]:
        """Grids of all sizes except those still to be placed, and those around an answer."""
        found = (self._grid_of(proxy) for proxy in self.proxies)
        return [grid for grid in found if grid is not None]

    @property
    def has_one_batch_size(self) -> bool:
        """Whether all sizes are trained with one and the same batch size, by design."""
        has_own = any(proxy.grid for proxy in self.fitted_proxies)
        return self.grid is not None and len(self.grid.batch_sizes) == 1 and not has_own

    def largest_batch(self, proxy: Proxy) -> int:
        """Sequences; 1 if the points of the size are still to be placed."""
        grid = self._grid_of(proxy)
        return 1 if grid is None else max(grid.batch_sizes)

    @property
    def searches(self) -> bool:
        """Whether points are chosen one after the other."""
        return self.search.strategy == "Sequential"

    @property
    def points(self) -> int:
        """Points of the whole sweep: those of the grids, and of the lattices that stand in for them; around an answer at
        most so many."""
        return sum(self._points_of(proxy) for proxy in self.proxies) * len(self.training.seeds)

    @property
    def direct_runs(self) -> int:
        """Points of the largest grid: a search on the target itself would take as many runs."""
        return max(self._points_of(proxy) for proxy in self.proxies)

    def _points_of(self, proxy: Proxy) -> int:
        if proxy.is_around_an_answer:
            return MAX_NEIGHBOURHOOD
        grid = self._grid_of(proxy)
        return grid.points if grid is not None else self.search.placement.points
