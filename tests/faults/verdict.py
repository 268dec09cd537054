"""Whether a row held: no point lost, none trained twice, never too many at once, and an end as without
the fault."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from kubernetes import client

from tests.faults.fixture import FaultFixture
from tests.faults.journal import REFUSALS

Json = dict[str, Any]
SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run leaves: each point's record, without what it cost, and the laws."""

    points: Mapping[str, Json]
    laws: Json
    writes: int = 0
    answer: Json = field(default_factory=dict)
    """Of a prediction, with the verdict of its probes and what it published."""


@dataclass(frozen=True)
class Verdict:
    """What a row showed."""

    row: str
    lost: int = 0
    """Points that are not in the final ledger as in the reference."""
    retrained: int = 0
    """Trainings that did tokens of a point again, without those that the fault itself made necessary."""
    most: int = 0
    """Most points at work at once."""
    converged: bool = True
    said: tuple[str, ...] = ()
    """Reasons that a person saw in conditions and Warning events beside those of an undisturbed run."""
    problems: tuple[str, ...] = ()
    """Why the row failed; empty where it held."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    played: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d %H:%M}")
    """When it was judged, in UTC."""

    @property
    def held(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def document(self) -> Json:
        """As JSON."""
        return asdict(self)


@dataclass
class Expectation:
    """What a row allows and demands beyond the rules of all."""

    retrained: int = 0
    """Points whose results the fault destroys."""
    charged: int | None = 0
    """Failures that may be charged to points in all; None: any number."""
    given_up: int = 0
    """Jobs on a node that never answers again: the operator frees their slots by design (NodeLost), and
    their pods stay in the API server for as long as nobody removes them."""
    speaks: bool = False
    """Whether a condition must have told of trouble meanwhile."""
    compares: bool = True
    """Whether ledger and laws are to be those of the reference."""


def point_facts(record: Any) -> Json:
    """What must not depend on the way: outcome, length and bytes of the trajectory, and what is wanted."""
    return {
        "state": str(record.state),
        "tokens": record.tokens,
        "loss": record.loss,
        "averaged_loss": record.averaged_loss,
        "trajectory": record.trajectory_sha256,
        "intent": asdict(record.intent),
    }


def take_reference(fixture: FaultFixture, writes: int) -> Reference:
    """The reference, from a fixture that has finished undisturbed."""
    facts = {key: point_facts(record) for key, record in fixture.ledger_points().items()}
    return Reference(facts, fixture.laws(), writes, fixture.answer())


def judge(
    fixture: FaultFixture, reference: Reference, expected: Expectation, failure: str, began: float
) -> Verdict:
    """The verdict on a fixture that was played; `failure` says why it did not get to its end."""
    problems = [failure] if failure else []
    lost = _lost(fixture, reference, expected, problems) if expected.compares else 0
    retrained = max(0, fixture.trainings.repeated() - expected.retrained)
    if lost:
        problems.append(f"{lost} points lost")
    if retrained:
        problems.append(f"{retrained} points trained twice")
    journal = fixture.harness.journal
    at_once = journal.most_at_once(fixture.namespace)
    for owner, most in at_once.items():
        if most > fixture.most_allowed(owner) + expected.given_up:
            problems.append(f"{most} points at work at once")
    said = journal.said(fixture.namespace) + _warnings(fixture)
    if expected.speaks and not said:
        problems.append("no condition said that anything was wrong")
    return Verdict(
        row=fixture.name,
        lost=lost,
        retrained=retrained,
        most=max(at_once.values(), default=0),
        converged=not failure,
        said=tuple(said),
        problems=tuple(problems + _charges(fixture, expected)),
        notes=tuple(fixture.notes + _restarts(fixture)),
        seconds=round(time.monotonic() - began, 1),
    )


def _warnings(fixture: FaultFixture) -> list[str]:
    """Reasons of the Warning events about the row's resources, without refusals of the laws."""
    core = client.CoreV1Api(fixture.harness.api_client)
    listed = core.list_namespaced_event(fixture.namespace, field_selector="type=Warning").items
    events = [event for event in listed if event.involved_object.name in fixture.names]
    reasons = dict.fromkeys(event.reason for event in events if event.reason not in REFUSALS)
    return [f"{reason} (event)" for reason in reasons]


def _restarts(fixture: FaultFixture) -> list[str]:
    return [f"the operator ended {fixture.restarts} times by itself"] if fixture.restarts else []


def _lost(
    fixture: FaultFixture, reference: Reference, expected: Expectation, problems: list[str]
) -> int:
    try:
        records = fixture.ledger_points()
    except Exception as error:  # noqa: BLE001 (whatever is wrong with the ledger is the finding)
        problems.append(f"the ledger cannot be read: {error}"[:300])
        return len(reference.points)
    facts = {key: point_facts(record) for key, record in records.items()}
    if not problems and fixture.laws() != reference.laws:
        problems.append("the laws differ from those of the undisturbed run")
    if not problems and (other := _other_answers(fixture, reference)):
        problems.append(f"not as in the undisturbed run: {', '.join(other)}")
    return sum(facts.get(key) != fact for key, fact in reference.points.items())


def _other_answers(fixture: FaultFixture, reference: Reference) -> list[str]:
    """What of a prediction is not as in the reference."""
    found = fixture.answer()
    return [name for name, value in reference.answer.items() if found.get(name) != value]


def _charges(fixture: FaultFixture, expected: Expectation) -> list[str]:
    if expected.charged is None:
        return []
    try:
        records = fixture.ledger_points().values()
    except Exception:  # noqa: BLE001 (said by _lost already)
        return []
    charged = sum(sum(record.attempts.charged.values()) for record in records)
    if charged > expected.charged:
        return [f"{charged} failures charged, {expected.charged} of them rightly"]
    return []
