"""The API server answers wrongly, late or not at all."""

from typing import Any

from tests.faults import injection
from tests.faults.fixture import FaultFixture
from tests.faults.injection import Act, Fault, of_verb
from tests.faults.rows import Play, Row
from tests.faults.verdict import Expectation

EVERY, TIMES = 2, 12
ANSWERS: dict[str, tuple[str, Act]] = {
    "409": ("409 Conflict", injection.status(409)),
    "410": ("410 Gone", injection.status(410)),
    "422": ("422 Unprocessable", injection.status(422)),
    "429": ("429 with Retry-After: 2", injection.status(429, **{"Retry-After": "2"})),
    "500": ("500", injection.status(500)),
    "reset": ("a reset connection", injection.reset),
}
VERBS = ("get", "list", "create", "patch", "delete", "update")
WATCHES: dict[str, tuple[str, Act]] = {
    "silent": ("says nothing", injection.silent_watch),
    "410": ("ends with 410 Gone", injection.expired_watch),
    "500": ("is answered with 500", injection.status(500)),
}


def api_rows(outage_seconds: float = 75) -> list[Row]:
    """All rows about the API server."""
    rows = [
        Row(
            f"api/{verb}/{name}",
            f"every second `{verb}`: {words}",
            _answering(verb, act, EVERY, TIMES),
        )
        for verb in VERBS
        for name, (words, act) in ANSWERS.items()
    ]
    rows += [
        Row(
            f"api/{verb}/timeout",
            f"two `{verb}` are never answered",
            _answering(verb, injection.hang, EVERY, 2),
        )
        for verb in VERBS
    ]
    rows += [
        Row(
            f"api/{verb}/unanswered",
            f"every second `{verb}` is executed, its answer lost",
            _unanswered(verb),
        )
        for verb in ("create", "patch", "delete", "update")
    ]
    rows += [
        Row(f"api/watch/{name}", f"every watch {words}", _watching(act))
        for name, (words, act) in WATCHES.items()
    ]
    rows.append(
        Row(
            "api/away",
            f"the API server is away for {outage_seconds:.0f} s in the middle of a sweep",
            lambda fixture: away(fixture, outage_seconds),
        )
    )
    return rows


def _answering(verb: str, act: Act, every: int, times: int) -> Play:
    def play(fixture: FaultFixture) -> Expectation:
        matches = of_verb(verb) if verb != "update" else _is_lease_update
        fault = fixture.inject_api(Fault(matches, act, every=every, times=times))
        fixture.seconds = 3.0 if verb == "delete" else 0.0
        fixture.start()
        if verb == "delete":
            suspend_and_resume(fixture)
        # A refusal that cannot pass is retried slowly, and a timeout takes 30 s.
        fixture.finish(240)
        fixture.notes.append(f"{fault.hits} calls hit")
        return Expectation(charged=None if verb == "delete" else 0)

    return play


def _is_lease_update(call: injection.Call) -> bool:
    """The only PUT of the operator: the leader's renewal."""
    return injection.is_lease(call) and injection.verb(call) == "update"


def _unanswered(verb: str) -> Play:
    def play(fixture: FaultFixture) -> Expectation | None:
        return _answering(verb, injection.unanswered(fixture.server.api), EVERY, TIMES)(fixture)

    return play


def suspend_and_resume(fixture: FaultFixture) -> None:
    """Running Jobs are deleted, and made again."""
    # Where deletions get no answer, that of the prepare Job takes a minute.
    fixture.wait(lambda: fixture.trainings.counted("start"), "points to train", 180)
    fixture.apply(suspend=True)
    fixture.wait(lambda: not _unfinished_pods(fixture), "the pods to go", 120)
    fixture.seconds = 0.0
    fixture.apply(suspend=False)


def _unfinished_pods(fixture: FaultFixture) -> list[Any]:
    """Pods of Jobs that have ended stay as long as those, for people who read their log."""
    return [pod for pod in fixture.user.pods() if pod.status.phase in ("Pending", "Running")]


def _watching(act: Act) -> Play:
    def play(fixture: FaultFixture) -> None:
        fault = fixture.inject_api(Fault(lambda call: call.is_watch, act))
        fixture.start()
        fixture.finish(180)
        fixture.notes.append(f"{fault.hits} watches hit")

    return play


def away(fixture: FaultFixture, seconds: float) -> None:
    """Nothing listens where the API server was."""
    fixture.seconds = 2.0
    fixture.start()
    fixture.wait_trained(6)
    fixture.server.api.stop()
    fixture.rest(seconds)
    fixture.server.api.start()
    fixture.finish(180)
