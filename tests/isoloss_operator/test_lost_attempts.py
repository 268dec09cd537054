"""Attempts that end without a word: claimed by others, or hung."""

import time

import pytest

from devcluster.process_node import ProcessNode
from isoloss_contract.ledger import PointState
from isoloss_contract.records import ExitCode
from tests.isoloss_operator.conftest import SMALL_POINTS, Place, sweep
from tests.support.cluster import wait_until
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3]


def test_a_point_claimed_elsewhere_ends_its_job_and_its_next_attempt_waits(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """Its pod is not replaced: that would look at the claim again at once, for ever."""
    claimed = {"code": "ClaimedElsewhere", "exit": int(ExitCode.CLAIMED_ELSEWHERE)}
    where = {"kind": "train", "batch_size": 4, "learning_rate": 2e-3}
    operator.start()
    user.apply_sweep(sweep(place, failures=[{**claimed, **where}]))
    others = f"{SMALL_POINTS - 2}/{SMALL_POINTS}"
    wait_until(lambda: user.sweep("dense")["status"].get("progress") == others, "the other points")
    time.sleep(3)
    records = place.ledger(user.sweep("dense")).points
    claimed_records = [r for r in records if (r.batch_size, r.learning_rate) == (4, 2e-3)]
    assert {r.state for r in claimed_records} == {PointState.PENDING}
    assert {r.attempts.last_failure for r in claimed_records} == {"ClaimedElsewhere"}
    assert not any(r.attempts.charged for r in claimed_records)
    keys = {record.key for record in claimed_records}
    pods = [pod for pod in user.pods() if pod.metadata.labels["isoloss.dev/key"] in keys]
    assert len(pods) == len(keys)
