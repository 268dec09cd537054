"""A sweep around an answer: its Jobs and its store disturbed, what it is placed around changed under it."""

from collections.abc import Callable
from typing import Any, cast

from kubernetes import client

from tests.faults import injection
from tests.faults.api_rows import ANSWERS, EVERY, TIMES
from tests.faults.cluster_rows import HARMS
from tests.faults.fixture import SQUARE, Failed, FaultFixture
from tests.faults.injection import Fault, From, of_key, of_verb
from tests.faults.judging_fixture import AROUND, PREDICTION, JudgingFixture
from tests.faults.kills import JUDGE_KILLED
from tests.faults.process_rows import BOTH_LEADING, two_writing
from tests.faults.rows import Play, Row, row_beside
from tests.faults.store_rows import FAULTS, WHILE_SECONDS, failing_from
from tests.faults.verdict import Expectation
from tests.support.proxy import Call

TRAIN_SECONDS = 3.0
WIDER = {**SQUARE["grid"], "learningRates": [*SQUARE["grid"]["learningRates"], "1.6e-2"]}
FEW_FLOPS, MANY_FLOPS = "3e14", "3e16"
"""Each point around the answer takes 1.12e14: the third does not fit into the former."""
AFFORDED = 2
HARMED = {
    "deleted-background": "running Jobs are deleted by hand, twice",
    "pod-forced": "running pods are deleted by force, twice",
    "suspended": "running Jobs are suspended from outside and resumed, twice",
}
"""By names of HARMS."""
JudgingPlay = Callable[[JudgingFixture], Expectation]


def judging_rows() -> list[Row]:
    """All rows about a sweep around an answer but the kills after the n-th write."""
    plays: dict[str, tuple[str, Play]] = {
        f"job-{name}": (words, _harmed(HARMS[name][1])) for name, words in HARMED.items()
    }
    plays |= {
        "suspended": ("the sweep is suspended while points train, and resumed", _play(_suspended)),
        "not-asked": (
            "the prediction's validation is taken out while points train, and asked for again",
            _play(_not_asked),
        ),
        "prediction-deleted": (
            "the prediction is deleted while points train, and applied again",
            _play(_prediction_deleted),
        ),
        "budget": (
            "the budget has room for two points, and is raised",
            _play(_budget),
        ),
        "laws-trained-again": (
            "while points train, the sweep of the laws gets more points, which move the answer, and loses them",
            _play(_laws_trained_again),
        ),
    }
    words, act = ANSWERS["500"]
    plays["api-500"] = (
        f"every second `create`, `patch` and `delete` gets {words}, {TIMES} times",
        _api_answers(lambda _: act),
    )
    plays["api-unanswered"] = (
        f"every second of them is carried out and its connection cut, {TIMES} times",
        _api_answers(lambda fixture: injection.unanswered(fixture.server.api)),
    )
    plays |= {
        f"{name}-store": (
            f"the store: {words}, for {WHILE_SECONDS:.0f} s from the sweep's first ledger on",
            failing_from(name, lambda: From(of_key("/sweeps/judging", "PUT"))),
        )
        for name, (words, _) in FAULTS.items()
    }
    rows = [_row(name, words, play) for name, (words, play) in plays.items()]
    both = "two operators, both leading, train and judge at the same time"
    return [*rows, _row("two-writing", both, two_writing, environment=BOTH_LEADING)]


def _row(name: str, words: str, play: Play, **more: Any) -> Row:
    return row_beside(JUDGE_KILLED.reference, f"judge/{name}", words, play, **more)


def _play(play: JudgingPlay) -> Play:
    return lambda fixture: play(cast("JudgingFixture", fixture))


def _harmed(harm: Callable[[FaultFixture], None]) -> Play:
    def play(fixture: JudgingFixture) -> Expectation:
        fixture.seconds = TRAIN_SECONDS
        fixture.start()
        for done in (0, 2):
            fixture.wait_trained(done)
            fixture.wait(fixture.is_training, "points around the answer to train", 120)
            harm(fixture)
        fixture.finish(180)
        return Expectation()

    return _play(play)


def _started(fixture: JudgingFixture) -> None:
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    fixture.wait_trained(1, 120)
    fixture.wait(fixture.is_training, "further points to train")


def _waits(fixture: JudgingFixture, when: str) -> None:
    """Raises Failed where points go on."""
    before = fixture.around_trained()
    fixture.rest(2 * TRAIN_SECONDS)
    if fixture.around_trained() > before:
        raise Failed(f"points were trained {when}")


def _suspended(fixture: JudgingFixture) -> Expectation:
    _started(fixture)
    fixture.apply_judge(suspend=True)
    fixture.wait(lambda: not fixture.is_training(), "the points to end")
    _waits(fixture, "while the sweep was suspended")
    fixture.apply_judge()
    fixture.finish(180)
    return Expectation()


def _not_asked(fixture: JudgingFixture) -> Expectation:
    """The sweep trains on: it is the sweep's own spec that says what it trains."""
    _started(fixture)
    fixture.apply_prediction(validation=None)
    fixture.wait(
        lambda: not fixture.reason(fixture.prediction(), "Validated")[0],
        "the condition Validated to go",
    )
    fixture.wait_trained(AROUND, 120)
    fixture.apply_prediction()
    fixture.finish(180)
    return Expectation()


def _prediction_deleted(fixture: JudgingFixture) -> Expectation:
    """Places are kept while there is no answer to put others around."""
    _started(fixture)
    client.CustomObjectsApi(fixture.harness.api_client).delete_namespaced_custom_object(
        "isoloss.dev", "v1alpha1", fixture.namespace, "hyperparampredictions", PREDICTION
    )
    fixture.wait_trained(AROUND, 120)
    fixture.apply_prediction()
    fixture.finish(180)
    return Expectation()


def _budget(fixture: JudgingFixture) -> Expectation:
    fixture.seconds = TRAIN_SECONDS
    fixture.start_prepared()
    fixture.apply_judge(budget={"flops": FEW_FLOPS})
    fixture.apply_prediction()
    fixture.wait_trained(AFFORDED, 120)
    _waits(fixture, "beyond the budget")
    fixture.apply_judge(budget={"flops": MANY_FLOPS})
    fixture.finish(180)
    return Expectation(speaks=True)


def _laws_trained_again(fixture: JudgingFixture) -> Expectation:
    """The answer is stale meanwhile, and then another for a while."""
    fixture.sweep_seconds = 1.0
    _started(fixture)
    fixture.apply(grid=WIDER)
    stale = "Stale"
    fixture.wait(
        lambda: fixture.reason(fixture.prediction(), stale)[0] == "True", "the answer to be stale"
    )
    fixture.wait(
        lambda: fixture.reason(fixture.prediction(), stale)[0] == "False",
        "an answer of the further points",
        180,
    )
    fixture.apply()
    fixture.finish(240)
    return Expectation(speaks=True)


def _api_answers(act: Callable[[FaultFixture], injection.Act]) -> Play:
    def play(fixture: FaultFixture) -> Expectation:
        fixture.seconds = 1.0
        fixture.start_prepared()
        fault = fixture.inject_api(Fault(_changes, act(fixture), every=EVERY, times=TIMES))
        fixture.begin()
        fixture.finish(240)
        fixture.notes.append(f"{fault.hits} calls hit")
        return Expectation()

    return play


def _changes(call: Call) -> bool:
    return any(of_verb(verb)(call) for verb in ("create", "patch", "delete"))
