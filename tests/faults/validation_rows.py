"""A prediction whose answer is validated: its probes disturbed, its sweep changed, its ledger changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, cast

from tests.faults import injection
from tests.faults.api_rows import ANSWERS, EVERY, TIMES
from tests.faults.cluster_rows import HARMS
from tests.faults.injection import Act, Fault, From, of_key, of_verb
from tests.faults.kills import VALIDATION
from tests.faults.process_rows import BOTH_LEADING, change_while_down, two_writing, version_plays
from tests.faults.rows import Play, Row, row_beside
from tests.faults.scene import Failed, Scene
from tests.faults.store_rows import FAULTS, WHILE_SECONDS, failing_from
from tests.faults.validated_scene import PROBES, SQUARE, ValidatedScene
from tests.faults.verdict import Expectation
from tests.support.proxy import Call

TRAIN_SECONDS = 3.0
AWAY_SECONDS = 40.0
WIDER = {**SQUARE["grid"], "learningRates": [*SQUARE["grid"]["learningRates"], "1.6e-2"]}
FEW_FLOPS, MANY_FLOPS = "3.2e13", "3.2e15"
"""Each probe takes 1.5e13: the third does not fit into the former."""
AFFORDED = 2
HARMED = {
    "deleted-background": "the running Jobs of probes are deleted by hand, twice",
    "pod-forced": "the running pods of probes are deleted by force, twice",
    "suspended": "the running Jobs of probes are suspended from outside and resumed, twice",
}
"""By names of HARMS."""
ValidatedPlay = Callable[[ValidatedScene], Expectation]


def validation_rows() -> list[Row]:
    """All rows about a validation but the kills after the n-th write."""
    plays: dict[str, tuple[str, Play]] = {
        f"job-{name}": (words, _harmed(HARMS[name][1])) for name, words in HARMED.items()
    }
    plays |= {
        "suspended": (
            "the prediction is suspended while probes train, and resumed",
            _play(_suspended),
        ),
        "taken-back": (
            "validation is taken out of the spec while probes train, and asked for again",
            _play(_taken_back),
        ),
        "budget": (
            "the budget has room for two probes, is raised, lowered while the others train, and taken away",
            _play(_budget),
        ),
        "sweep-trained-again": (
            "while probes train, the sweep gets more points, whose laws move the answer, and loses them",
            _play(_sweep_trained_again),
        ),
    }
    plays |= {
        f"api-{name}": (
            f"every second `create`, `patch` and `delete` gets {words}, {TIMES} times",
            _api_answers(lambda _, act=act: act),
        )
        for name, (words, act) in ANSWERS.items()
    }
    plays |= {
        "api-unanswered": (
            f"every second of them is carried out and its connection cut, {TIMES} times",
            _api_answers(lambda scene: injection.unanswered(scene.server.api)),
        ),
        "api-away": (
            f"the API server is away for {AWAY_SECONDS:.0f} s while probes train",
            _play(_api_away),
        ),
    }
    plays |= {
        f"{name}-store": (
            f"the store: {words}, for {WHILE_SECONDS:.0f} s from the first ledger of probes on",
            failing_from(name, lambda: From(of_key("/predictions/", "PUT"))),
        )
        for name, (words, _) in FAULTS.items()
    }
    plays |= {
        name: each for name, each in version_plays(trained=1).items() if name.startswith("ledger-")
    }
    plays["ledger-older"] = (
        "the ledger as it was when the first probe was done",
        _play(_older_ledger),
    )
    rows = [_row(name, words, play) for name, (words, play) in plays.items()]
    both = "two operators, both leading, train and judge at the same time"
    return [*rows, _row("two-writing", both, two_writing, environment=BOTH_LEADING)]


def _row(name: str, words: str, play: Play, **more: Any) -> Row:
    return row_beside(VALIDATION.reference, f"validation/{name}", words, play, **more)


def _play(play: ValidatedPlay) -> Play:
    return lambda scene: play(cast("ValidatedScene", scene))


def _harmed(harm: Callable[[Scene], None]) -> Play:
    def play(scene: ValidatedScene) -> Expectation:
        scene.seconds = TRAIN_SECONDS
        scene.start()
        for done in (0, 2):
            scene.wait_trained(done)
            scene.wait(lambda: scene.is_training(), "probes to train")
            harm(scene)
        scene.finish(180)
        return Expectation()

    return _play(play)


# ------------------------------------------------------------------------------- its own spec


def _started(scene: ValidatedScene) -> None:
    scene.seconds = TRAIN_SECONDS
    scene.start()
    scene.wait_trained(1)
    scene.wait(lambda: scene.is_training(), "further probes to train")


def _rests(scene: ValidatedScene, when: str) -> None:
    """Raises Failed where probes go on."""
    before = scene.probes_trained()
    scene.rest(2 * TRAIN_SECONDS)
    if scene.probes_trained() > before:
        raise Failed(f"probes were trained {when}")


def _suspended(scene: ValidatedScene) -> Expectation:
    _started(scene)
    scene.apply_prediction(suspend=True)
    scene.wait(lambda: scene.said("Validated")[1] == "Suspended", "the probes to be suspended")
    scene.wait(lambda: not scene.is_training(), "the probes to end")
    _rests(scene, "while the prediction was suspended")
    scene.apply_prediction()
    scene.finish(180)
    return Expectation()


def _taken_back(scene: ValidatedScene) -> Expectation:
    _started(scene)
    scene.apply_prediction(validation=None)
    scene.wait(lambda: not scene.is_training(), "the probes to be stopped")
    _rests(scene, "without a validation")
    if scene.said("Validated")[0]:
        raise Failed("the condition Validated stayed without a validation")
    scene.apply_prediction()
    scene.finish(180)
    return Expectation()


def _budget(scene: ValidatedScene) -> Expectation:
    """Probes that go on say that the budget was raised."""
    scene.seconds = TRAIN_SECONDS
    few, many = (scene.validation(budget={"flops": flops}) for flops in (FEW_FLOPS, MANY_FLOPS))
    scene.start_prepared()
    scene.apply_prediction(validation=few)
    exhausted = ("Unknown", "BudgetExhausted")
    scene.wait(lambda: scene.said("Validated") == exhausted, "the budget to be exhausted", 120)
    if scene.probes_trained() != AFFORDED:
        raise Failed(f"{scene.probes_trained()} probes were trained, {AFFORDED} fit the budget")
    scene.apply_prediction(validation=many)
    scene.wait(lambda: scene.is_training(), "further probes to train")
    scene.apply_prediction(validation=few)
    scene.wait(lambda: scene.said("Validated") == exhausted, "the lowered budget to be exhausted")
    scene.wait(lambda: not scene.is_training(), "the probes to be stopped")
    if scene.probes_trained() < PROBES:
        _rests(scene, "after the budget was spent")
    scene.apply_prediction()
    scene.finish(180)
    return Expectation(speaks=True, redecided=True)


# ------------------------------------------------------------------------------------ its sweep


def _sweep_trained_again(scene: ValidatedScene) -> Expectation:
    """The answer is stale meanwhile, and then another for a while."""
    scene.sweep_seconds = 1.0
    _started(scene)
    scene.apply(grid=WIDER)
    scene.wait(lambda: scene.said("Stale")[0] == "True", "the answer to be stale")
    scene.wait(lambda: scene.said("Stale")[0] == "False", "an answer of the further points", 180)
    scene.apply()
    scene.finish(240)
    return Expectation(speaks=True)


# -------------------------------------------------------------------------------- the API server


def _api_answers(act: Callable[[Scene], Act]) -> Play:
    def play(scene: Scene) -> Expectation:
        scene.seconds = 1.0
        scene.start_prepared()
        fault = scene.inject_api(Fault(_changes, act(scene), every=EVERY, times=TIMES))
        scene.begin()
        scene.finish(240)
        scene.notes.append(f"{fault.hits} calls hit")
        return Expectation()

    return play


def _changes(call: Call) -> bool:
    return any(of_verb(verb)(call) for verb in ("create", "patch", "delete"))


def _api_away(scene: ValidatedScene) -> Expectation:
    _started(scene)
    scene.server.api.stop()
    scene.rest(AWAY_SECONDS)
    scene.server.api.start()
    scene.finish(180)
    return Expectation()


# ------------------------------------------------------------------------------------- the ledger


def _older_ledger(scene: ValidatedScene) -> Expectation:
    kept = scene.stage.directory / "ledgers" / scene.namespace
    scene.seconds = 1.0
    scene.start()
    scene.wait(lambda: _succeeded(scene) >= 1, "a probe to be recorded")
    shutil.copytree(scene.ledger_folder(), kept)

    def put_back(_: Scene) -> None:
        shutil.rmtree(scene.ledger_folder())
        for path in kept.rglob("*"):
            if path.is_file():
                target = scene.ledger_folder() / path.relative_to(kept)
                injection.replace_object(target, path.read_bytes())

    scene.wait_trained(PROBES - 1)
    change_while_down(scene, put_back)
    return Expectation()


def _succeeded(scene: ValidatedScene) -> int:
    validation = scene.prediction().get("status", {}).get("validation") or {}
    return int(validation.get("points", {}).get("succeeded", 0))
