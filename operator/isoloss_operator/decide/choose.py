"""What happens next with the tasks of a sweep: what they have cost, what is wanted of each, which start and which Jobs go,
and whether a step of the search is due.

    account -> intend -> act -> admit -> search

Each stage happens once and makes a value from those before it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from isoloss.design import Target
from isoloss.formatting import flops as flops_in_words
from isoloss.formatting import number
from isoloss.laws import Laws
from isoloss.search import Point, SearchOptions, Seen, Size
from isoloss_contract.ledger import (
    BUDGET_SPENT,
    DONE,
    FAILED_FOR_GOOD,
    NOT_CHOSEN,
    AddedPoint,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
    PointState,
    Spend,
)
from isoloss_contract.reading import Absent, is_unknown, value_of
from isoloss_contract.records import MAX_BATCH_SIZE, WARMUP_MULTIPLE, PointProgress
from isoloss_operator import api
from isoloss_operator.api import SweepBudget
from isoloss_operator.decide.attempts import Costs, end_recorded, planned
from isoloss_operator.decide.checks import Recorded
from isoloss_operator.decide.fits import FitOutcome, PointDecision, SearchRequest, SearchStep
from isoloss_operator.decide.jobs import named_wait, next_attempt, not_before, train_request
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import JobRequest, Quarantine
from isoloss_operator.decide.reasons import Finding
from isoloss_operator.decide.record import fit_inputs, fitted_records
from isoloss_operator.decide.tasks import TaskSet
from isoloss_operator.planning.flops import PEAK_FLOPS, assumed_utilisation, six_nd
from isoloss_operator.planning.points import (
    Continued,
    Place,
    PlannedPoint,
    PlannedProxy,
    plan_points,
)

# ------------------------------------------------------------------- account: what all attempts cost
# Work in flight counts: a budget is a limit of what may be spent, not of what has been recorded.


ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class Spending:
    """FLOPs and accelerator seconds of the sweep's own attempts: adopted results cost it nothing."""

    flops: float
    accelerator_seconds: float
    seconds_per_flop: Mapping[str, float]
    """By size: see `_paces`."""
    remaining: Mapping[str, float]
    """FLOPs that each planned point still needs, by key."""
    flops_left: float = math.inf
    """Of the budget; infinite where it does not limit them, negative where more was spent."""
    seconds_left: float = math.inf
    """Of accelerators, the same."""


def account(ledger: Ledger, running: Costs, tasks: TaskSet | None) -> Spending:
    """What all attempts cost so far, those that ended and those that run, and what is left to train. Nothing of the latter
    while it is not known which points are planned (None)."""
    spent = sum((cost for _, cost in running), ledger.spent)
    if tasks is None:
        return Spending(spent.flops, spent.accelerator_seconds, {}, {})
    paces, records = _paces(tasks, ledger, running), ledger.by_key
    remaining = {
        key: _remaining_flops(point, records[key], tasks.progress.get(key))
        for key, point in tasks.points.items()
    }
    budget, flops, seconds = tasks.spec.budget, spent.flops, spent.accelerator_seconds
    flops_left = float(budget.flops) if budget and budget.flops else math.inf
    hours_left = (budget.accelerator_hours if budget else None) or math.inf
    left = flops_left - flops, hours_left * 3600.0 - seconds
    return Spending(flops, seconds, paces, remaining, *left)


def _paces(tasks: TaskSet, ledger: Ledger, running: Costs) -> dict[str, float]:
    """Accelerator seconds per FLOP of each size: measured on its points done, failed attempts included; before the
    sweep's first on all attempts.

    Another size takes what was measured, or the assumption of `isoloss plan` if that is less: in small models, which
    train first, each step waits for its own overhead, and larger ones are faster by several times. The first of them
    to end says how much.
    """
    done = [(r.proxy, r.spent) for r in ledger.points if r.state in DONE]
    costs = done if _pace(done) else [*((r.proxy, r.spent) for r in ledger.points), *running]
    overall, paces = _pace(costs), dict[str, float]()
    for name, point in {point.proxy.name: point for point in tasks.points.values()}.items():
        assumed = assumed_seconds_per_flop([point])
        measured = _pace([cost for cost in costs if cost[0] == name])
        paces[name] = measured or min(overall or assumed, assumed)
    return paces


def _pace(costs: Costs) -> float:
    """0: nothing is measured."""
    flops = sum(cost.flops for _, cost in costs)
    return sum(cost.accelerator_seconds for _, cost in costs) / flops if flops > 0 else 0.0


def assumed_seconds_per_flop(points: Iterable[PlannedPoint]) -> float:
    """Accelerator seconds per FLOP of these points as `isoloss plan` assumes them for models of their kind."""
    flops = [
        (p.wanted_flops, assumed_utilisation(p.proxy.parameters) * PEAK_FLOPS) for p in points
    ]
    total = sum(wanted for wanted, _ in flops)
    return sum(wanted / pace for wanted, pace in flops) / total if total else 0.0


def _remaining_flops(
    point: PlannedPoint, record: PointRecord, progress: PointProgress | None
) -> float:
    """FLOPs that a point still needs; a continued run has some behind it.

    Work that was interrupted counts as kept: a checkpoint nearly always holds it, and a point that was
    preempted at its end must not look as expensive as a new one. An attempt that is under way trains to the tokens
    that it was started for, although the spec may ask for fewer by now.
    """
    if record.state in DONE:
        return 0.0
    wanted, behind = point.wanted_flops, max(record.tokens, record.reached_tokens)
    if progress is not None and progress.claimant.attempt > record.attempts.ended:
        wanted = max(wanted, point.flops_for(progress.wanted_tokens))
        behind = max(behind, progress.tokens)
    return max(0.0, wanted - six_nd(point.proxy.parameters, behind))


def affordable(
    budget: SweepBudget | None,
    spent: Spending,
    committed: Spend,
    pending: Sequence[PlannedPoint],
) -> tuple[int, str]:
    """How many of the pending points, in their order, fit into the budget; why the next does not.

    `committed` is what running points still need.
    """
    flops, seconds = committed.flops, committed.accelerator_seconds
    for index, point in enumerate(pending):
        needed = spent.remaining[point.key]
        flops += needed
        seconds += needed * spent.seconds_per_flop[point.proxy.name]
        is_over_flops = flops > spent.flops_left
        is_over_time = seconds > spent.seconds_left or spent.seconds_left <= 0
        if budget is not None and (is_over_flops or is_over_time):
            hours = f"acceleratorHours {budget.accelerator_hours}"
            cap = f"flops {budget.flops}" if is_over_flops else hours
            return index, f"budget.{cap} leaves no room for {point.name}"
    return len(pending), ""


def exceeded(budget: SweepBudget | None, spent: Spending) -> str:
    """Which part of the budget is spent, with what was spent; empty: there is some left."""
    if budget is None:
        return ""
    # A run at its very end has spent just what was planned: rounding must not stop it there.
    if budget.flops and spent.flops_left < -ROUNDING * float(budget.flops):
        return (
            f"budget.flops {budget.flops} is spent: its points used {flops_in_words(spent.flops)}"
        )
    if spent.seconds_left < 0:
        hours = spent.accelerator_seconds / 3600
        return f"budget.acceleratorHours {budget.accelerator_hours} is spent: its points used {hours:.2f}"
    return ""


# -------------------------------------------------------------- intend: what is wanted of every task


BUDGET_RAISED: Final = "BudgetRaised"
"""Reason of an intent to go on to where a search wanted the point before the budget was spent."""


def intend(
    points: Iterable[PointRecord], *, searches: bool, is_spent: bool
) -> tuple[PointRecord, ...]:
    """The records with an intent for every task; `searches`: a search chooses among them; `is_spent`: the budget is."""
    chosen = (_if_chosen(record, searches=searches) for record in points)
    return tuple(_if_paid(each, is_spent=is_spent, searches=searches) for each in chosen)


def _if_chosen(record: PointRecord, *, searches: bool) -> PointRecord:
    """A new point waits until the search chooses it; without a search all run to their ends."""
    if searches and record.intent == Intent():
        return replace(record, intent=Intent(IntentAction.PAUSE, reason=NOT_CHOSEN))
    is_of_a_search = record.intent.tokens > 0 or record.intent.reason == NOT_CHOSEN
    if not searches and is_of_a_search:
        return replace(record, intent=Intent())
    return record


def _if_paid(record: PointRecord, *, is_spent: bool, searches: bool) -> PointRecord:
    """A spent budget pauses every unfinished point, and one with room lets those run that it paused. Points that are
    paused for another reason stay so."""
    intent, is_paused = record.intent, record.intent.reason == BUDGET_SPENT
    stops = is_spent and record.state is PointState.PENDING
    if stops and intent.action is IntentAction.RUN:
        return replace(record, intent=Intent(IntentAction.PAUSE, intent.tokens, BUDGET_SPENT))
    if stops or not is_paused:
        return record
    if intent.tokens:  # those that a search wanted before the budget was spent
        return replace(record, intent=Intent(IntentAction.RUN, intent.tokens, BUDGET_RAISED))
    # As the spec asks, or not before the search that the spec has by now chooses it.
    waits = Intent(IntentAction.PAUSE, reason=NOT_CHOSEN)
    return replace(record, intent=waits if searches else Intent())


# -------------------------------------------------------------------------------- act: which Jobs go


def act(
    tasks: TaskSet, ledger: Ledger, recorded: Iterable[ObservedJob]
) -> tuple[tuple[ObservedJob, ...], list[ObservedJob]]:
    """Jobs to delete, and those among them whose tasks are stopped rather than dropped. `recorded` may go."""
    planned = {j.uid for key, jobs in tasks.jobs.items() if key in tasks.points for j in jobs}
    wanted = planned | tasks.kept
    obsolete = [job for job in tasks.observed.jobs if job.uid not in wanted]
    over, stopped = list[ObservedJob](), list[ObservedJob]()
    for job in tasks.active:
        record, is_ending = ledger.by_key[job.key], job.is_finished or job.deleting
        # The ledger says to pause its task, or it waits in vain for what is no longer asked for.
        waits_in_vain = job.uid in planned and job.uid in tasks.outdated
        is_unwanted = record.intent.action is not IntentAction.RUN or waits_in_vain
        # The operator ended it, for lack of progress or by suspension, and has yet to delete it.
        if job.attempt <= record.attempts.ended or _is_unneeded(record, job):
            over.append(job)
        elif not is_ending and (tasks.spec.suspend or is_unwanted):
            stopped.append(job)
    lost = [job for job in recorded if job.uid in planned and job.must_be_deleted]
    going = (*obsolete, *over, *stopped, *lost)
    return tuple(job for job in going if job.may_be_deleted), stopped


def _is_unneeded(record: PointRecord, job: ObservedJob) -> bool:
    """A Job still waiting for its pod although another sweep finished the point."""
    has_begun = job.pod is not None and job.pod.phase != "Pending"
    return record.state in DONE and not has_begun


def _recorded_jobs(tasks: TaskSet) -> list[ObservedJob]:
    """Jobs whose outcome the stored ledger knows, not just the one about to be written: they may go."""
    ledger = value_of(tasks.observed.ledger)
    if ledger is None:
        return []
    ended = {record.key: record.attempts.ended for record in ledger.points}
    return [
        job
        for job in tasks.observed.jobs
        if job.kind == "prepare"
        or job.key not in tasks.points
        or (job.key in ended and job.attempt <= ended[job.key])
    ]


# ---------------------------------------------------------------------------- admit: what starts now


@dataclass(frozen=True)
class Unread:
    """Points of whose result nothing is known: nothing may be concluded of them."""

    awaited: frozenset[str]
    """Their last attempt has just succeeded and the result is not there yet: the ledger has not taken in its end."""
    unknown: frozenset[str]
    """The store did not return it, or a newer isoloss wrote it."""

    @property
    def all(self) -> frozenset[str]:
        """Those whose point is not done."""
        return self.awaited | self.unknown


def unread(tasks: TaskSet, ledger: Ledger) -> Unread:
    """The unfinished points of which the store says too little."""
    ended = {r.key: r.attempts.ended for r in ledger.points if r.state not in DONE}
    awaited = frozenset(
        key
        for key in ended
        if isinstance(tasks.result(key), Absent)
        and any(job.is_finished and job.attempt > ended[key] for job in tasks.jobs.get(key, ()))
    )
    return Unread(awaited, frozenset(key for key in ended if is_unknown(tasks.result(key))))


@dataclass(frozen=True)
class Admission:
    """What may start now, and what keeps the rest."""

    starts: tuple[JobRequest, ...] = ()
    waits: tuple[Finding, ...] = ()
    """Why unfinished Jobs do not run, of each that does not."""
    waiting: int = 0
    """Tasks that are retried after a delay."""
    next_start: datetime | None = None
    """When the first of those is due."""
    unaffordable: tuple[PlannedPoint, ...] = ()
    """Pending points that do not fit into the budget."""
    budget_message: str = ""
    is_quiet: bool = False
    """Whether no task is running and none will, unless more are chosen."""


def slots_taken(jobs: Iterable[ObservedJob], orphaned_pods: Sequence[str]) -> int:
    """Jobs and orphaned pods that count toward parallelism; Jobs being deleted count until they are gone."""
    return sum(job.holds_a_slot for job in jobs) + len(orphaned_pods)


def admit(tasks: TaskSet, ledger: Ledger, unread: frozenset[str], spent: Spending) -> Admission:
    """Pending tasks to start now, at most as many as there are free slots.

    Those in `unread` may have a result that the store did not return: they are left alone.
    """
    observed, records = tasks.observed, ledger.by_key
    busy = {job.key for job in observed.jobs if job.kind == "train" and job.holds_a_slot}
    busy |= unread | set(observed.orphaned_pods)
    pending = [
        point
        for point in tasks.points.values()
        if records[point.key].state is PointState.PENDING
        and records[point.key].intent.action is IntentAction.RUN
        and point.key not in busy
    ]
    pending.sort(key=lambda point: point.wanted_flops)  # stable: planned order among equals
    committed = Spend()  # what those that are busy still need
    for point in tasks.points.values():
        if point.key in busy:
            needed = spent.remaining[point.key]
            committed += Spend(needed, needed * spent.seconds_per_flop[point.proxy.name])
    count, message = affordable(tasks.spec.budget, spent, committed, pending)
    free = max(0, tasks.spec.parallelism - slots_taken(observed.jobs, observed.orphaned_pods))
    if observed.create_error:
        free = min(free, 1)  # one at a time, to find out whether the API server still refuses
    due, later = _by_delay(pending[:count], records, observed.now)
    waits = tuple(wait for job in tasks.active if (wait := named_wait(job)))
    starts = []
    for point in due[:free]:
        attempts, label = records[point.key].attempts, tasks.templates[point.proxy.template_digest]
        number = next_attempt(attempts, tasks.jobs.get(point.key, ()))
        starts.append(
            train_request(observed, tasks.spec, point, attempts, number, tasks.corpus, label)
        )
    running = (r for r in ledger.points if r.state is PointState.PENDING)
    wanted = sum(record.intent.action is IntentAction.RUN for record in running)
    is_at_work = bool(tasks.active or observed.orphaned_pods or starts or later or unread)
    return Admission(
        starts=tuple(starts),
        waits=waits,
        waiting=len(later),
        next_start=min(later, default=None),
        unaffordable=tuple(pending[count:]),
        budget_message=message,
        is_quiet=not is_at_work and wanted == len(pending) - count,
    )


def _by_delay(
    pending: Sequence[PlannedPoint], records: Mapping[str, PointRecord], now: datetime
) -> tuple[list[PlannedPoint], list[datetime]]:
    """What is due, and when the others are."""
    due, later = [], []
    for point in pending:
        attempts = records[point.key].attempts
        start = not_before(attempts, point.proxy.template_digest, now)
        if start is None or start <= now:
            due.append(point)
        else:
            later.append(start)
    return due, later


# ----------------------------------------------------------------- search: the step that is due, if any
# What it decides is isoloss.search, which runs in the process of a fit.


@dataclass(frozen=True)
class DueStep:
    """The step of the search that is due once every point has reached its target, if the budget has room."""

    request: SearchRequest | None = None
    """None: no step is due."""
    inputs: str = ""
    """FitRequest.inputs of a fit of all points that are done, with this step if one is due."""
    step: SearchStep | None = None
    """What it decided; None before that is known."""
    ended: str = ""
    """Why the search is over, one of isoloss.search.StopReason; empty: it goes on, or there is none."""


def due_step(
    tasks: TaskSet, ledger: Ledger, spent: Spending, *, is_quiet: bool, has_room: bool
) -> DueStep:
    """`is_quiet`: no task is running; `has_room`: the budget has, for what is chosen already."""
    spec, fit, request = tasks.spec, tasks.observed.fit, None
    if spec.searches and is_quiet and has_room:
        request = _request(spec, ledger, tasks.points, spent)
    inputs = fit_inputs(spec, ledger.points, final=True, search=request is not None)
    if request is None:
        return DueStep(None, inputs, ended=BUDGET_SPENT if spec.searches and is_quiet else "")
    step = fit.step if fit is not None and fit.inputs == inputs else None
    return DueStep(request, inputs, step, "" if step is None else step.ended)


def _request(
    spec: api.ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    spent: Spending,
) -> SearchRequest:
    """The step to decide now."""
    flops, seconds = spent.flops_left, spent.seconds_left
    options = search_options(spec, len(ledger.placements))
    room = max(api.MAX_POINTS - len(ledger.points), 0)
    return SearchRequest(
        sizes=search_sizes(spec, points.values(), spent.seconds_per_flop),
        points={record.key: _seen(points[record.key], record) for record in ledger.points},
        options=replace(
            options,
            max_added_points=min(options.max_added_points, len(ledger.additions) + room),
            seconds_left=None if math.isinf(seconds) else max(seconds, 0.0),
        ),
        flops_left=None if math.isinf(flops) else flops,
    )


FEWEST_JOBS: Final = 4
"""That a step fills however few there are: with one at a time each point would wait for a fit."""


def search_options(spec: api.ScalingSweepSpec, placed: int) -> SearchOptions:
    """What a spec with so many placed sizes asks of its search, without a budget."""
    run = spec.search.target
    return SearchOptions(
        target=None if run is None else Target(run.parameters, run.tokens),
        jobs=max(spec.parallelism, FEWEST_JOBS),
        max_added_points=spec.search.extend_grid.limit(placed),
    )


def search_sizes(
    spec: api.ScalingSweepSpec,
    points: Iterable[PlannedPoint],
    seconds_per_flop: Mapping[str, float],
) -> tuple[Size, ...]:
    """The sizes to the search, in the order of the spec; accelerator seconds per FLOP by size."""
    proxies = {point.proxy.name: point.proxy for point in points}
    return tuple(
        _size(spec, proxies[proxy.name], seconds_per_flop[proxy.name]) for proxy in spec.proxies
    )


def _size(spec: api.ScalingSweepSpec, proxy: PlannedProxy, seconds_per_flop: float) -> Size:
    grid = spec.grid_of(spec.proxies[proxy.index])
    return Size(
        name=proxy.name,
        params=proxy.parameters.active,
        tokens=proxy.tokens,
        batch_sizes=grid.batch_sizes,
        learning_rates=tuple(float(rate) for rate in grid.learning_rates),
        largest_batch_size=_largest_batch(spec, proxy.tokens),
        sequence_length=spec.data.sequence_length,
        seconds_per_flop=seconds_per_flop,
        first_tokens=_compared_from(spec, proxy),
    )


COMPARED_AFTER: Final = 2
"""Factor in tokens between the first evaluation that counts and those that runs are compared by."""


def _compared_from(spec: api.ScalingSweepSpec, proxy: PlannedProxy) -> float:
    """Tokens by which a run has several evaluations that count; its own if it ends before."""
    first = max(spec.evaluation.first_tokens, WARMUP_MULTIPLE * proxy.warmup_tokens)
    return float(min(COMPARED_AFTER * first, proxy.tokens))


def _largest_batch(spec: api.ScalingSweepSpec, tokens: int) -> int:
    """Sequences of the largest batch that may be added: what is too short for a batch of the spec's is for any."""
    most = tokens // (spec.fewest_steps * spec.data.sequence_length)
    return max(min(most, MAX_BATCH_SIZE), 1)


def _seen(point: PlannedPoint, record: PointRecord) -> Seen:
    """As the ledger has it, without its trajectory."""
    return Seen(
        Point(point.proxy.name, point.batch_size, point.learning_rate),
        wanted=min(record.intent.tokens, record.wanted_tokens),
        failed=record.state in FAILED_FOR_GOOD,
    )


def stepped(ledger: Ledger, step: SearchStep, tasks: TaskSet) -> Ledger:
    """The ledger of the planned points once a step's decisions are in it."""
    seed = tasks.spec.training.seed
    decisions = {(d.size, d.batch_size, d.learning_rate, seed): d for d in step.decisions}
    points = tuple(
        replace(record, intent=_intent(decision))
        if (decision := decisions.pop(tasks.points[record.key].place, None))
        else record
        for record in ledger.points
    )
    added = {place: decision for place, decision in decisions.items() if decision.added}
    if points == ledger.points and not added:
        return ledger
    return _with_added(ledger.replace(points=points), added, tasks)


def _intent(decision: PointDecision) -> Intent:
    return Intent(IntentAction.RUN, decision.tokens, decision.reason)


def _with_added(ledger: Ledger, added: Mapping[Place, PointDecision], tasks: TaskSet) -> Ledger:
    """The points of decisions that the ledger does not have, planned like any other from now on."""
    if not added:
        return ledger
    new = (AddedPoint(*place[:3], decision.reason) for place, decision in added.items())
    additions = (*ledger.additions, *new)
    intents = {place: _intent(decision) for place, decision in added.items()}
    former = {record.key: record for record in ledger.former}
    records = []
    continued = Continued.of(ledger.checkpoints, ledger.neighbourhoods)
    for point in plan_points(tasks.spec, tasks.corpus, additions, continued):
        if point.place in intents:
            known = former.pop(point.key, None)
            records.append(replace(planned(point, known), intent=intents[point.place]))
    return ledger.replace(
        points=(*ledger.points, *records), former=tuple(former.values()), additions=additions
    )


# ---------------------------------------------------- what a step chose, and why a search is over, in words


ENDINGS: Final[Mapping[str, str]] = {
    "NotWorthItsCost": "the next best point would cost more than it saves",
    "NothingLeft": (
        "no point of the grids that is left, or that spec.search.extendGrid.maxPoints allows, would save enough of the run of "
        "spec.search.target for its cost"
    ),
    "AllDiverged": (
        "every point that was tried diverged, and spec.search.extendGrid.maxPoints allows no smaller learning rate: lower "
        "learningRates, or raise it"
    ),
    "BudgetExhausted": "no further point fits into spec.budget",
}
"""isoloss.search.StopReason in words."""
NAMED: Final = 3
"""Points named of a step."""


def ended_in_words(step: SearchStep, paces: Mapping[str, float]) -> str:
    """Why the search is over, with what it would train next, or must if the budget does not cover that; empty: it goes on.
    `paces` are accelerator seconds per FLOP by size: hours are reckoned with the least, as larger models are faster."""
    why = ENDINGS.get(step.ended, step.ended)
    if step.next_flops is not None and step.next_saves is not None:
        pace = min(paces.values(), default=0.0) / 3600
        cost, saves = (
            f"{flops_in_words(flops)} FLOPs ({number(flops * pace)} accelerator hours)"
            for flops in (step.next_flops, step.next_saves)
        )
        why = f"the next best point would cost {cost} and save {saves}"
    message = f"The search is over ({step.ended}): {why}." if step.ended else ""
    if step.least_flops is None:
        return message
    least = least_in_words(step.least_flops, step.least_seconds)
    return f"{message} It takes at least {least}: raise spec.budget above that and what is spent."


def least_in_words(flops: float, seconds: float | None) -> str:
    """What a search must train; `seconds` of accelerators if those are what the budget lacks."""
    hours = "" if seconds is None else f", about {number(seconds / 3600)} accelerator hours"
    return f"{flops_in_words(flops)} FLOPs{hours}"


def step_in_words(step: SearchStep, ledger: Ledger) -> str:
    """What it chose; points are named as in the ledger, and those that are not there yet by what they are."""
    names = {(r.proxy, r.batch_size, r.learning_rate): r.name for r in ledger.points}
    parts = []
    for is_added, words in ((False, "chosen"), (True, "added")):
        own = [decision for decision in step.decisions if decision.added is is_added]
        flops, saves = sum(d.flops for d in own), sum(d.saves for d in own)
        part = f"{len(own)} {words}, for {flops_in_words(flops)} FLOPs"
        if saves > 0:
            part += f", expected to save {flops_in_words(saves)} of the target's"
        shown = (f"{_named(d, names)} ({d.reason})" for d in own[:NAMED])
        more = f" and {len(own) - NAMED} more" if len(own) > NAMED else ""
        parts += [f"{part}: {', '.join(shown)}{more}"] if own else []
    return "; ".join(parts)


def _named(decision: PointDecision, names: Mapping[tuple[str, int, float], str]) -> str:
    size, batch, rate = decision.size, decision.batch_size, decision.learning_rate
    return names.get((size, batch, rate), f"{size} with {batch} sequences at {rate:.4g}")


# ------------------------------------------------------------------------------------- all together


@dataclass(frozen=True)
class Chosen:
    """What a pass found out about the tasks of a sweep, and what it does."""

    tasks: TaskSet
    ledger: Ledger
    """With everything observed in it, and what is intended."""
    quarantined: tuple[Quarantine, ...]
    spending: Spending
    """What all attempts have cost, running ones included."""
    budget_spent: str
    """Which part of the budget is spent; empty: there is some left."""
    unread: Unread
    failed: tuple[PointRecord, ...]
    """Tasks that failed for good."""
    admission: Admission
    """What parallelism, budget and delays admit."""
    starts: tuple[JobRequest, ...]
    """What starts now."""
    is_quiet: bool
    """Whether no task is running and none will, unless more are chosen."""
    delete: tuple[ObservedJob, ...]
    recorded_jobs: Sequence[ObservedJob]
    """Jobs whose outcome the stored ledger knows: they may go."""
    fitted: tuple[PointRecord, ...]
    """Points whose trajectories a fit uses."""
    fit_inputs: str
    """FitRequest.inputs of a fit of these: a final one if nothing is running."""
    search: DueStep
    search_message: str
    """What its step chose, or why it is over; empty: neither is known in this pass."""
    is_over: bool
    """Whether no point is running and none will, as things are."""
    final_laws: Laws | None
    """The laws of all points, once they are fitted."""
    stopped_ledger: Ledger
    """The ledger with the Jobs that this pass stops in it."""
    next_ledger: Ledger
    """The same with what the search has decided, which starts once that is stored."""


def choose(tasks: TaskSet, recorded: Recorded) -> Chosen:
    """The stages in order, each once."""
    spec = tasks.spec
    spending = account(recorded.ledger, recorded.running, tasks)
    budget_spent = exceeded(spec.budget, spending)
    ledger = recorded.ledger
    points = intend(ledger.points, searches=spec.searches, is_spent=bool(budget_spent))
    if points != ledger.points:
        ledger = ledger.replace(points=points)
    recorded_jobs, missing = _recorded_jobs(tasks), unread(tasks, ledger)
    delete, stopped = act(tasks, ledger, recorded_jobs)
    admission = admit(tasks, ledger, missing.all, spending)
    points = end_recorded(ledger.points, stopped, tasks)
    stopped_ledger = ledger if points is ledger.points else ledger.replace(points=points)
    failed = tuple(r for r in ledger.points if r.state in FAILED_FOR_GOOD)
    too_many = len(failed) > spec.failure_policy.max_failed_points
    is_blocked = ledger.configuration_error is not None or too_many
    is_quiet = not is_blocked and admission.is_quiet
    has_room = not (budget_spent or admission.unaffordable)
    search = due_step(tasks, ledger, spending, is_quiet=is_quiet, has_room=has_room)
    is_over = is_quiet and (search.request is None or bool(search.ended))
    fitted = fitted_records(spec, ledger.points)
    inputs = search.inputs if is_quiet else fit_inputs(spec, ledger.points, final=False)
    ended = search.step or SearchStep(ended=search.ended)
    next_ledger, message = stopped_ledger, ended_in_words(ended, spending.seconds_per_flop)
    if search.step is not None:
        message = message or step_in_words(search.step, ledger)
        next_ledger = stepped(stopped_ledger, search.step, tasks)
    return Chosen(
        tasks=tasks,
        ledger=ledger,
        quarantined=recorded.quarantined,
        spending=spending,
        budget_spent=budget_spent,
        unread=missing,
        failed=failed,
        admission=admission,
        starts=() if is_blocked or spec.suspend else admission.starts,
        is_quiet=is_quiet,
        delete=delete,
        recorded_jobs=recorded_jobs,
        fitted=fitted,
        fit_inputs=inputs,
        search=search,
        search_message=message,
        is_over=is_over,
        final_laws=_laws_of(tasks.observed.fit, search.inputs) if is_over else None,
        stopped_ledger=stopped_ledger,
        next_ledger=next_ledger,
    )


def _laws_of(fit: FitOutcome | None, inputs: str) -> Laws | None:
    return fit.laws if fit is not None and fit.inputs == inputs else None
