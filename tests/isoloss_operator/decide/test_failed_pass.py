"""A pass that failed in a way that nobody foresaw is seen in the conditions."""

from isoloss_operator.api import ScalingSweepStatus
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.reconcile.status_writes import failed_pass, internal_error
from tests.support.builders import NOW, condition, observed, stated

BUG = TypeError("'int' object is not subscriptable")


def status_after(before: dict[str, object], generation: int = 1) -> ScalingSweepStatus:
    return ScalingSweepStatus.model_validate(
        failed_pass(before, generation, NOW, internal_error(BUG))
    )


def written(**changes: object) -> dict[str, object]:
    return decide_sweep(observed(**changes)).status.document()


def test_a_resource_without_a_status_gets_the_condition_too() -> None:
    status = status_after({"observedGeneration": -1})
    assert condition(status, "Reconciling")[:2] == ("True", "InternalError")
    assert condition(status, "Ready")[:2] == ("False", "InternalError")
    assert "the operator, whose log has the trace" in condition(status, "Ready")[2]


def test_everything_else_in_the_status_stands() -> None:
    before = written()
    after = status_after(before).document()
    for field in before.keys() - {"conditions"}:
        assert after[field] == before[field]


def test_what_is_ready_stays_so_but_only_under_the_same_generation() -> None:
    ready: dict[str, object] = {"conditions": [stated("Ready", "True", "Fitted")]}
    assert condition(status_after(ready), "Ready")[:2] == ("True", "Fitted")
    assert condition(status_after(ready, generation=2), "Ready")[1] == "InternalError"


def test_only_what_the_failure_says_is_said_of_the_new_generation() -> None:
    """A sweep that was just suspended would else be not suspended, by the spec that suspends it."""
    before = written()
    after = status_after(before, generation=2)
    told = {"Ready", "Stalled", "Reconciling"}
    generations = {each.type: each.observed_generation for each in after.conditions}
    assert generations == {kind: 2 if kind in told else 1 for kind in generations}
    assert "Suspended" in generations
    for each in status_after(before).conditions:
        assert each.observed_generation == 1
    assert after.observed_generation == 2
    again = status_after(after.document(), 3)
    assert {c.type: c.observed_generation for c in again.conditions} == {
        kind: 3 if kind in told else 1 for kind in generations
    }
