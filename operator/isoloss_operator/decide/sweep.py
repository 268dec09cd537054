"""What happens next with a sweep, a value to a value:

    observed -> checks -> tasks -> record -> choose -> status -> requests

The checks have the order of the state table in operator/README.md, whose rows are those of
tests/isoloss_operator/decide/test_sweep_states.py.
"""

from dataclasses import replace

from isoloss_operator.decide.checks import AcceptedSweep, check_corpus, check_sweep
from isoloss_operator.decide.choose import Chosen, choose
from isoloss_operator.decide.conditions import Findings, data_prepared, not_accepted
from isoloss_operator.decide.jobs.requests import lost_deletions
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.preparation import decide_preparation
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.record import record
from isoloss_operator.decide.status import stated, sweep_status
from isoloss_operator.decide.sweep_plan import sweep_plan
from isoloss_operator.decide.tasks import corpora, plan_tasks
from isoloss_operator.planning.specs import InvalidSpec


def decide_sweep(observed: ObservedSweep) -> SweepPlan:
    """What is to be done about a sweep now, and what its status says."""
    sweep = check_sweep(observed)
    if isinstance(sweep, Findings):
        return _without_points(observed, sweep)
    if sweep.unplaced is not None and sweep.manifest is not None:
        data = data_prepared(sweep.manifest, sweep.prepare_key)
        waits = _without_points(observed, Findings(ready=sweep.unplaced, data=data))
        return replace(waits, delete=lost_deletions(sweep.prepare_jobs))
    try:
        chosen = _sweep_pass(sweep)
        if chosen is None:
            return decide_preparation(sweep)
    except InvalidSpec as error:  # the corpus does not fit it
        chosen = not_accepted(Reason.INVALID_SPEC, str(error))
    if isinstance(chosen, Findings):
        return _without_points(observed, chosen)
    status, events = sweep_status(chosen)
    return sweep_plan(chosen, status, events)


def _sweep_pass(sweep: AcceptedSweep) -> Chosen | Findings | None:
    """A pass over the points; what the conditions say if they were trained on other data; None: the corpus is to be
    prepared first.

    Raises InvalidSpec if the corpus does not fit the spec.
    """
    for corpus in corpora(sweep):
        tasks = plan_tasks(sweep, corpus)
        chosen = choose(tasks, record(tasks))
        if chosen.is_quiet or corpus is sweep.manifest:
            return check_corpus(sweep, corpus) or chosen
    return None


def _without_points(observed: ObservedSweep, findings: Findings) -> SweepPlan:
    """Nothing is started or stopped: Jobs of an earlier, valid spec may continue unless it is suspended."""
    status, events = stated(observed, findings)
    ready = findings.ready
    requeue_after = 300.0 if ready.stalled else 30.0 if ready.holds else 10.0
    return SweepPlan(status=status, events=events, requeue_after=requeue_after)
