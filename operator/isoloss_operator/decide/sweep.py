"""What happens next with a sweep, a value to a value:

    observed -> checks -> tasks -> record -> choose -> status -> requests

The checks have the order of the state table in operator/README.md, whose rows are those of
tests/isoloss_operator/decide/test_sweep_states.py.
"""

from __future__ import annotations

from isoloss_operator.decide.checks import AcceptedSweep, check_corpus, check_sweep
from isoloss_operator.decide.choose import Chosen, choose
from isoloss_operator.decide.conditions import Finding, Findings, not_accepted
from isoloss_operator.decide.findings import prepared
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.preparation import decide_preparation
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.record import record
from isoloss_operator.decide.requests import sweep_plan
from isoloss_operator.decide.status import stated, sweep_status
from isoloss_operator.decide.tasks import known_tasks, may_lack_data, plan_tasks
from isoloss_operator.planning.specs import InvalidSpec


def decide_sweep(observed: ObservedSweep) -> SweepPlan:
    """What is to be done about a sweep now, and what its status says."""
    sweep = check_sweep(observed)
    if isinstance(sweep, Findings):
        return _without_points(observed, sweep)
    try:
        return _decided(sweep)
    except InvalidSpec as error:  # a corpus that does not fit the spec
        found = Finding.false(Reason.INVALID_SPEC, str(error), stalled=True)
        return _without_points(observed, not_accepted(found))


def _decided(sweep: AcceptedSweep) -> SweepPlan:
    """Raises InvalidSpec if the corpus does not fit the spec."""
    done, manifest = done_without_data(sweep), sweep.manifest
    if done is not None:
        tasks = done.tasks
    elif manifest is None:
        return decide_preparation(sweep)
    elif sweep.unplaced is not None:
        findings = Findings(ready=sweep.unplaced, data=prepared(manifest))
        return _without_points(sweep.observed, findings)
    else:
        tasks = plan_tasks(sweep, manifest)
    if found := check_corpus(sweep, tasks.corpus):
        return _without_points(sweep.observed, not_accepted(found))
    chosen = done or choose(tasks, record(tasks))
    status, events = sweep_status(chosen)
    return sweep_plan(chosen, status, events)


def done_without_data(sweep: AcceptedSweep) -> Chosen | None:
    """A pass over the points of the corpus in the ledger if nothing is left to train: then nobody needs the data,
    whatever the store holds of them by now.

    Raises InvalidSpec if the corpus does not fit the spec.
    """
    tasks = known_tasks(sweep)
    if tasks is None or not may_lack_data(sweep, tasks):
        return None
    chosen = choose(tasks, record(tasks))
    return chosen if chosen.is_quiet else None


def _without_points(observed: ObservedSweep, findings: Findings) -> SweepPlan:
    """Nothing is started or stopped: Jobs of an earlier, valid spec may continue unless it is suspended."""
    status, events = stated(observed, findings)
    ready = findings.ready
    requeue_after = 300.0 if ready.stalled else 30.0 if ready.holds else 10.0
    return SweepPlan(status=status, events=events, requeue_after=requeue_after)
