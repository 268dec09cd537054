"""SIGKILL after every single write of a sweep or a prediction: each number of writes is a row of its own.

Rows are played several at a time by one operator that serves a namespace for each. Each sweep makes
its number of writes, and every later one is held in the proxies without reaching a server; once all
have got there, one SIGKILL ends the operator and what it started. A second operator finishes them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.faults.rows import REFERENCES, Row
from tests.faults.scene import Failed, Scene, make_scene
from tests.faults.servers import Server, kill_all, new_operator, new_server
from tests.faults.stage import BUCKET, Stage
from tests.faults.verdict import Expectation, Reference, Verdict, judge
from tests.faults.writes import Writes
from tests.support.operator_process import OperatorProcess, User, apply_account

BATCH = 10
HOLD_SECONDS = 150
LIFE_SECONDS = 90
MOST_LIVES = 60
BATCH_SETTINGS = {
    # A held sweep keeps a worker and up to `parallelism` writers: there must be enough for all.
    "ISOLOSS_WORKERS": "64",
    "ISOLOSS_JOB_WRITERS": "64",
    "ISOLOSS_FITS": "3",
}


@dataclass(frozen=True)
class Killed:
    """The sweep, or the prediction, that is killed after each of its writes."""

    rows: str
    """What the rows' names begin with."""
    reference: str
    """Name of the undisturbed one: one of REFERENCES."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Of the scene."""
        return REFERENCES[self.reference]

    def row(self, number: int) -> str:
        """The row of a kill after so many writes."""
        return f"{self.rows}-{number:03}"


EXHAUSTIVE = Killed("kill/after", "kills")
SEARCH = Killed("search/kill-after", "searches")


def was_killed(verdict: Verdict) -> bool:
    """Whether the sweep made so many writes at all, and its operator was killed after the last."""
    return any(note.startswith("after ") for note in verdict.notes)


def play_kills(
    stage: Stage, numbers: Sequence[int], reference: Reference, killed: Killed = EXHAUSTIVE
) -> list[Verdict]:
    """One batch: a sweep, or a prediction, for each number of writes."""
    began = time.monotonic()
    namespaces = [stage.new_namespace(f"kill {number}") for number in numbers]
    apply_account(stage.api_client, namespaces[0], namespaces)
    server, writes = new_server(stage), Writes()
    for chain in (server.api_chain, server.store_chain):
        chain.handlers.append(writes)
    folder = stage.directory / "operators" / f"kills-{numbers[0]}-{namespaces[0]}"
    operator = new_operator(stage, server, namespaces, folder, BATCH_SETTINGS)
    operator.fresh = True  # what it started is killed with it, at the same write
    scenes = [
        _scene(stage, killed.row(number), namespace, server, operator, killed.options)
        for number, namespace in zip(numbers, namespaces, strict=True)
    ]
    try:
        _kill(scenes, writes, dict(zip(namespaces, numbers, strict=True)))
        operator.start()
        failures = [_finish(scene) for scene in scenes]
        return [
            judge(scene, reference, Expectation(), failure, began)
            for scene, failure in zip(scenes, failures, strict=True)
        ]
    finally:
        scenes[0].end()


def _scene(
    stage: Stage,
    name: str,
    namespace: str,
    server: Server,
    operator: OperatorProcess,
    options: Mapping[str, Any],
) -> Scene:
    user = User(stage.api_client, namespace)
    uri = f"s3://{BUCKET}/{namespace}"
    return make_scene(stage, name, server, operator, user, uri, **options)


def _prepare(scenes: Sequence[Scene]) -> None:
    """What the scenes begin with, all at once."""
    for scene in scenes:
        scene.prepare()
    operator = scenes[0].operator
    if not all(scene.is_prepared() for scene in scenes):
        operator.start()
        for scene in scenes:
            scene.wait(scene.is_prepared, "what the row begins with", HOLD_SECONDS)


def _kill(scenes: Sequence[Scene], writes: Writes, limits: dict[str, int]) -> None:
    _prepare(scenes)
    before = {scene.namespace: len(writes.made[scene.namespace]) for scene in scenes}
    writes.stop_after({name: before[name] + limit for name, limit in limits.items()})
    for scene in scenes:
        scene.begin()
    operator = scenes[0].operator
    if not operator.is_running():
        operator.start()

    def all_stopped() -> bool:
        stopped = writes.have_stopped()
        return all(scene.namespace in stopped or scene.is_finished() for scene in scenes)

    try:
        scenes[0].wait(all_stopped, "every sweep to make its writes", HOLD_SECONDS)
    except Failed as error:
        scenes[0].notes.append(str(error))
    stopped = writes.have_stopped()
    kill_all(operator)
    for scene in scenes:
        made = writes.made[scene.namespace][before[scene.namespace] :]
        limit = limits[scene.namespace]
        last = made[limit - 1] if len(made) >= limit else ""
        ended = scene.namespace in stopped
        scene.notes.append(f"after {last}" if ended else f"ended before, after {len(made)} writes")
    writes.drop_held()


def _finish(scene: Scene) -> str:
    try:
        scene.finish(240)
    except Failed as error:
        return str(error)
    return ""


def lives(scene: Scene, stop: Callable[[Writes], None]) -> int:
    """How many operators a sweep takes if each is killed once its writes have been stopped as `stop` asks at its start."""
    writes = Writes()
    scene.inject_writes(writes)
    scene.apply()
    for life in range(1, MOST_LIVES + 1):
        stop(writes)
        scene.operator.start()
        deadline = time.monotonic() + LIFE_SECONDS * scene.stage.patience
        while not writes.have_stopped() and not scene.is_finished():
            if time.monotonic() > deadline:
                raise Failed(f"life {life} neither came to its kill nor finished; {scene.seen()}")
            scene.rest(0.05)
        if scene.is_finished():
            return life
        kill_all(scene.operator)
        writes.forget_from(scene.namespace)
        writes.drop_held()
    raise Failed(f"not finished after {MOST_LIVES} operators; {scene.seen()}")


def again_and_again(scene: Scene) -> Expectation:
    """Every operator is killed after so few writes that a sweep takes dozens of them."""
    allowed, own = 7, scene.namespace
    count = lives(scene, lambda writes: writes.stop_after({own: len(writes.made[own]) + allowed}))
    scene.notes.append(f"{count} operators of {allowed} writes each")
    return Expectation()


AGAIN = Row(
    "kill/again-and-again",
    "every operator is killed after its seventh write, until the sweep is done",
    again_and_again,
)
