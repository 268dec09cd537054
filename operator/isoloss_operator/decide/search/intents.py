"""What a step of a search changes in the ledger: which points run on, are pruned or added, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from isoloss_contract.ledger import (
    AddedPoint,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
)
from isoloss_contract.records import DataManifest
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.search.requests import replicate_number, replicate_seed
from isoloss_operator.decide.search_steps import PointDecision, SearchStep
from isoloss_operator.decide.tasks.transitions import planned
from isoloss_operator.planning.points import PlannedPoint, plan_points

Place = tuple[str, int, float, int]
"""Size, batch size, learning rate and number of the replicate: what a point is to the search."""


def stepped(
    ledger: Ledger, step: SearchStep, spec: ScalingSweepSpec, manifest: DataManifest
) -> Ledger:
    """The ledger once a step's decisions are in it."""
    decisions = {_place_of_decision(decision): decision for decision in step.decisions}
    places = {
        point.key: _place(spec, point) for point in plan_points(spec, manifest, ledger.additions)
    }
    points = tuple(
        replace(record, intent=_intent(decision, record))
        if (decision := decisions.pop(places[record.key], None))
        else record
        for record in ledger.points
    )
    if points == ledger.points and not decisions:
        return ledger
    return _with_added(ledger.replace(points=points), decisions.values(), spec, manifest)


def _place_of_decision(decision: PointDecision) -> Place:
    return decision.size, decision.batch_size, decision.learning_rate, decision.replicate


def _place(spec: ScalingSweepSpec, point: PlannedPoint) -> Place:
    number = replicate_number(spec, point)
    return point.proxy.name, point.batch_size, point.learning_rate, number


def _intent(decision: PointDecision, record: PointRecord) -> Intent:
    is_pruned = decision.action is IntentAction.PRUNE
    # A pruned point wants what it has: it is done, and the fit uses its trajectory.
    tokens = record.trained_for if is_pruned else decision.tokens
    return Intent(decision.action, tokens, decision.reason, decision.bound)


def _with_added(
    ledger: Ledger,
    decisions: Iterable[PointDecision],
    spec: ScalingSweepSpec,
    manifest: DataManifest,
) -> Ledger:
    """The points of decisions that the ledger does not have, planned like any other from now on."""
    wanted = {_place_of_decision(decision): decision for decision in decisions if decision.added}
    if not wanted:
        return ledger
    additions = tuple(_addition(spec, decision) for decision in wanted.values())
    additions = (*ledger.additions, *additions)
    former = {record.key: record for record in ledger.former}
    records = []
    for point in plan_points(spec, manifest, additions):
        if decision := wanted.get(_place(spec, point)):
            record = planned(point, former.pop(point.key, None))
            records.append(replace(record, intent=_intent(decision, record)))
    return ledger.replace(
        points=(*ledger.points, *records), former=tuple(former.values()), additions=additions
    )


def _addition(spec: ScalingSweepSpec, decision: PointDecision) -> AddedPoint:
    seed = replicate_seed(spec, decision.replicate) if decision.replicate else None
    return AddedPoint(
        decision.size, decision.batch_size, decision.learning_rate, decision.reason, seed
    )
