"""Until which token a search wants each point to train for now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from isoloss_contract.ledger import Ledger, PointRecord
from isoloss_contract.records import DataManifest
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.planning.points import PlannedPoint, plan_points


def planned_points(
    spec: ScalingSweepSpec, manifest: DataManifest, ledger: Ledger
) -> tuple[PlannedPoint, ...]:
    """The spec's points and the ledger's additions, as far as the ledger wants them trained.

    Raises InvalidSpec where the corpus does not fit the spec.
    """
    points = plan_points(spec, manifest, ledger.additions)
    return _with_targets(points, ledger.points) if spec.searches else points


def _with_targets(
    points: Iterable[PlannedPoint], records: Iterable[PointRecord]
) -> tuple[PlannedPoint, ...]:
    targets = {record.key: record.intent.tokens for record in records}
    return tuple(
        replace(point, target=target) if (target := targets.get(point.key)) else point
        for point in points
    )
