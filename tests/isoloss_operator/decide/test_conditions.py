"""Conditions behave as metav1 and kstatus have it."""

import ast
import inspect
import re
from datetime import timedelta

from isoloss.formatting import shortened
from isoloss.laws import RefusalReason
from isoloss_contract.reading import parse_timestamp, timestamp
from isoloss_operator.api.statuses import parse_conditions
from isoloss_operator.decide import reasons
from isoloss_operator.decide.conditions import changed, dated, reconciling
from isoloss_operator.decide.reasons import Finding, Reason
from tests.support.builders import NOW, stated


def test_the_transition_time_changes_with_the_status_alone() -> None:
    """A new reason or message under the same status keeps it."""
    first = dated({"Ready": Finding(Reason.TRAINING, "a")}, {}, generation=1, now=NOW)
    later = NOW + timedelta(hours=1)
    known = {c.type: c for c in first}
    same = dated({"Ready": Finding(Reason.QUEUED, "b")}, known, generation=2, now=later)
    turn = dated({"Ready": Finding(Reason.FITTED, "c", "True")}, known, generation=2, now=later)
    assert same[0].last_transition_time == first[0].last_transition_time == timestamp(NOW)
    assert (same[0].reason, same[0].observed_generation) == ("Queued", 2)
    assert turn[0].last_transition_time == timestamp(later)


def test_up_to_date_says_nothing_of_jobs_that_a_finished_or_suspended_object_does_not_have() -> (
    None
):
    finished = Finding(Reason.FITTED, "The laws are fitted to 8 points.", "True")
    suspended = Finding(Reason.SUSPENDED, "spec.suspend is true: no Job is running.")
    for ready in (finished, suspended):
        said = reconciling(ready, "")
        assert (said.status, said.reason) == ("False", Reason.UP_TO_DATE)
        assert "running" not in said.message


def test_a_turn_is_a_new_status_or_reason() -> None:
    """A message alone is no news."""
    known = {
        c.type: c
        for c in dated({"Ready": Finding(Reason.TRAINING, "x")}, {}, generation=1, now=NOW)
    }
    message = dated({"Ready": Finding(Reason.TRAINING, "y")}, known, generation=1, now=NOW)
    reason = dated({"Ready": Finding(Reason.QUEUED, "x")}, known, generation=1, now=NOW)
    assert changed(message, known) == ()
    assert changed(reason, known) == reason


def test_conditions_of_a_strange_status_are_passed_over() -> None:
    """Someone may have written anything there."""
    good = stated("Ready", "True", "Fitted")
    assert list(parse_conditions({"conditions": [good, {"type": 3}, None]})) == ["Ready"]
    assert parse_conditions({"conditions": "none"}) == {}


def test_messages_are_cut_by_bytes_at_whole_characters() -> None:
    """Three-byte characters and lone surrogates included."""
    cut = shortened("äöü€" * 100, 50)
    assert len(cut.encode()) <= 50
    assert cut.endswith("…")
    assert shortened("short", 50) == "short"
    assert shortened("two\nlines\x00", 50) == "two lines "
    assert shortened("\ud800", 50).encode() == b" "


def test_times_are_rfc_3339_in_utc() -> None:
    """And what is none is None."""
    assert timestamp(NOW) == "2026-09-01T12:00:00Z"
    assert parse_timestamp(timestamp(NOW)) == NOW
    assert parse_timestamp("yesterday") is None


def test_every_reason_is_camel_case_and_has_its_line() -> None:
    """kubectl and alerts rely on the words, people on the lines."""
    assert all(re.fullmatch(r"[A-Z][A-Za-z0-9]+", reason) for reason in [*Reason, *RefusalReason])
    body = ast.parse(inspect.getsource(reasons.Reason)).body[0]
    assert isinstance(body, ast.ClassDef)
    members = [i for i, node in enumerate(body.body) if isinstance(node, ast.Assign)]
    assert len(members) == len(Reason)
    for index in members:
        following = body.body[index + 1]
        assert isinstance(following, ast.Expr), ast.unparse(body.body[index])
