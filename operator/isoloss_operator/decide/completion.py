"""How long what is left of a sweep will train: by what a token of each size has taken so far. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from isoloss_contract.ledger import IntentAction, Ledger, PointRecord, PointState
from isoloss_contract.records import PointProgress
from isoloss_operator.decide.observation import ObservedJob, PointFiles
from isoloss_operator.decide.tasks.account import recorded_flops, remaining_flops
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.search_cost import search_estimate

UNSEEN_EXPONENT: Final = 0.5
"""Exponent of active parameters in the assumed seconds per token of a size while only one size is measured. Small
models wait for the overhead of each step, whatever their size (0); large ones keep the device busy, and take time in
proportion to their FLOPs (1). Halfway errs by the square root of the ratio of both sizes at most."""


@dataclass(frozen=True)
class Work:
    """A sweep that is being trained."""

    points: Sequence[PlannedPoint]
    ledger: Ledger
    active: Sequence[ObservedJob]
    """Train Jobs that hold a slot."""
    parallelism: int
    searches: bool
    """Whether a search goes on, which will want more than it wants now."""


def seconds_left(stored: PointFiles, work: Work) -> float | None:
    """Seconds until everything is trained; None while nothing trains or nothing is measured.

    What a search will still want is taken from what searches of grids of that size have cost, and how many Jobs
    they have kept at work (planning.search_cost). Fits between its steps are left out.
    """
    if not work.active:  # nor are there any keys and records before the corpus is prepared
        return None
    paces = seconds_per_token(stored, work)
    if not paces:
        return None
    records = {record.key: record for record in work.ledger.points}
    by_key = {point.key: point for point in work.points}
    training = [
        _point_seconds(by_key[job.key], records[job.key], stored.progress.get(job.key), paces)
        for job in work.active
        if job.key in by_key and job.key in records
    ]
    running = {job.key for job in work.active}
    waiting = [
        _point_seconds(point, records[point.key], None, paces)
        for point in work.points
        if point.key not in running and _is_wanted(records[point.key])
    ]
    slots = max(min(work.parallelism, len(training) + len(waiting)), len(training), 1)
    wanted = max((sum(training) + sum(waiting)) / slots, *training, 0.0)
    return wanted + (_seconds_of_later_rounds(work, records, paces) if work.searches else 0.0)


def seconds_per_token(stored: PointFiles, work: Work) -> dict[str, float]:
    """Seconds of one slot for a token of each size, by the size's name; empty while nothing is measured.

    By pods from their start to their end if points have ended, else by the tokens per second that running
    ones report. A size of which nothing is known takes those of the nearest size in parameters: along the power
    law through the nearest two, and with UNSEEN_EXPONENT if there is only one.
    """
    measured = {**_reported(stored, work), **_ended(work)}
    sizes = {point.proxy.name: float(point.proxy.parameters.active) for point in work.points}
    known = [(sizes[name], pace) for name, pace in measured.items()]
    if not known:
        return {}
    return {name: measured.get(name) or _unseen(size, known) for name, size in sizes.items()}


def _ended(work: Work) -> dict[str, float]:
    """Pace by size, from points with a result of this sweep's own."""
    records = {record.key: record for record in work.ledger.points}
    seconds, tokens = defaultdict[str, float](float), defaultdict[str, float](float)
    for point in work.points:
        record = records[point.key]
        if record.tokens and record.spent_accelerator_seconds and not record.adopted:
            name = point.proxy.name
            seconds[name] += record.spent_accelerator_seconds / _devices(name, work)
            tokens[name] += recorded_flops(point, record) / _token_flops(point)
    return {name: seconds[name] / tokens[name] for name in seconds if tokens[name]}


def _devices(name: str, work: Work) -> int:
    """Devices that a Job of a size holds, as observed on running ones."""
    names = {point.key: point.proxy.name for point in work.points}
    held = [(job.key, job.accelerators * job.pods) for job in work.active]
    own = [devices for key, devices in held if names.get(key) == name]
    return max(own or [devices for _, devices in held] or [1])


def _reported(stored: PointFiles, work: Work) -> dict[str, float]:
    """Pace by size, from the mean speed of its running points."""
    names = {point.key: point.proxy.name for point in work.points}
    speeds = defaultdict[str, list[float]](list)
    for job in work.active:
        progress = stored.progress.get(job.key)
        if job.key in names and progress is not None and (progress.tokens_per_second or 0.0) > 0.0:
            speeds[names[job.key]].append(float(progress.tokens_per_second or 0.0))
    return {name: len(found) / sum(found) for name, found in speeds.items()}


def _unseen(size: float, known: Sequence[tuple[float, float]]) -> float:
    (nearest, pace), *others = sorted(known, key=lambda each: abs(math.log(each[0] / size)))
    exponent = UNSEEN_EXPONENT
    if others and others[0][0] != nearest:
        other, other_pace = others[0]
        exponent = math.log(other_pace / pace) / math.log(other / nearest)
    return pace * math.exp(min(max(exponent, 0.0), 1.0) * math.log(size / nearest))


def _point_seconds(
    point: PlannedPoint,
    record: PointRecord,
    progress: PointProgress | None,
    paces: Mapping[str, float],
) -> float:
    pace = paces[point.proxy.name]
    if progress is not None and (progress.tokens_per_second or 0.0) > 0.0:
        pace = 1.0 / float(progress.tokens_per_second or 1.0)
    return pace * remaining_flops(point, record, progress) / _token_flops(point)


def _seconds_of_later_rounds(
    work: Work, records: Mapping[str, PointRecord], paces: Mapping[str, float]
) -> float:
    """For what the search is expected to want of each size beyond what it has wanted so far.

    A round begins when the slowest Job of the one before has ended, so that slots stay empty.
    """
    seconds = 0.0
    for size in search_estimate(tuple(work.points), 0, 0).sizes:
        own = [point for point in work.points if point.proxy.name == size.name]
        chosen = sum(_chosen_tokens(point, records[point.key]) for point in own)
        expected = size.measured.mean * sum(point.tokens for point in own)
        at_work = size.measured.jobs_at_work(work.parallelism)
        seconds += paces[size.name] * max(0.0, expected - chosen) / at_work
    return seconds


def _chosen_tokens(point: PlannedPoint, record: PointRecord) -> float:
    return max(record.tokens, point.wanted_tokens if _is_wanted(record) else 0)


def _is_wanted(record: PointRecord) -> bool:
    return record.state is PointState.PENDING and record.intent.action is IntentAction.RUN


def _token_flops(point: PlannedPoint) -> float:
    return six_nd(point.proxy.parameters, 1)
