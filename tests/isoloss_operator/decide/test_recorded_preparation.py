"""What the ledger records of ended Jobs, where the decision tables do not show it."""

import json
from datetime import UTC, datetime

import pytest

from isoloss_contract.ledger import Attempts
from isoloss_contract.records import ExitCode
from isoloss_operator.decide.observation import ObservedJob, ObservedPod, ObservedSweep
from isoloss_operator.decide.single_task import PREPARING, SingleTask, run
from tests.support.builders import parsed

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def complaint(generation: int) -> ObservedJob:
    words = {"code": "BadTask", "message": "no such thing", "field": "tokenizer"}
    return ObservedJob(
        name="job",
        uid="j",
        kind="prepare",
        key="k" * 32,
        attempt=1,
        store="s",
        created=NOW,
        failed=True,
        pod=ObservedPod(
            phase="Failed",
            exit_code=int(ExitCode.BAD_CONFIGURATION),
            termination_message=json.dumps(words),
        ),
        generation=generation,
    )


@pytest.mark.parametrize(("generation", "believed"), [(2, True), (0, True), (1, False)])
def test_a_job_of_an_older_spec_cannot_blame_the_present_one(
    generation: int, believed: bool
) -> None:
    observed = ObservedSweep(
        name="dense", namespace="n", uid="u", generation=2, now=NOW, spec=parsed({})
    )
    task = SingleTask(
        labels=PREPARING,
        observed=observed,
        jobs=(complaint(generation),),
        stopped=(),
        attempts=Attempts(),
        refused=None,
        template="t",
        asked="",
        outdated=(),
        domains=("a",),
        retries=3,
        suspend=False,
        is_missing=True,
    )
    after = run(task)
    assert (after.refused is not None) is believed
    assert after.attempts.ended == 1, "it ended all the same"
