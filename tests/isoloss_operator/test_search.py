"""A sequential search by the whole operator, against real servers and planted trainers."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import Any

import pytest

from devcluster.process_node import ProcessNode
from isoloss_contract import layout
from isoloss_contract.ledger import Intent, IntentAction, Ledger, PointState
from isoloss_contract.ledger_files import read_ledger
from isoloss_contract.store import Store
from tests.isoloss_operator.conftest import Place, sweep
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

GRID = {
    "batchSizes": [4, 8, 16, 32, 64],
    "learningRates": ["1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2"],
}


def searched(place: Place, **spec: Any) -> dict[str, Any]:
    """Two sizes of 25 points each; the planted optimum is inside both grids."""
    search = {"strategy": "Sequential", "extendGrid": {"maxPoints": 4}}
    return sweep(place, **{"grid": GRID, "search": search, "parallelism": 12, **spec})


def finished(user: User) -> dict[str, Any]:
    """The sweep once its search is over. Each of its dozen steps is a fit."""
    return user.wait_for(lambda: user.sweep("dense"), "Progressing", "False", "Finished", 900)


def flops(place: Place, body: dict[str, Any]) -> float:
    """What the pods really trained, by the traces that they left."""
    per_token = {record.key: record.flops_per_token for record in place.ledger(body).points}
    ends = [*place.traces.read("end"), *place.traces.read("interrupted")]
    return sum(per_token[t["key"]] * (t["tokens"] - t["from"]) for t in ends)


def trained_twice(place: Place) -> list[str]:
    """Points of which a token was trained more than once."""
    pieces = defaultdict(list)
    for trace in [*place.traces.read("end"), *place.traces.read("interrupted")]:
        pieces[trace["key"]].append((trace["from"], trace["tokens"]))
    return [
        key
        for key, found in pieces.items()
        if any(
            later[0] < earlier[1]
            for earlier, later in zip(sorted(found), sorted(found)[1:], strict=False)
        )
    ]


def wants(ledger: Ledger) -> dict[str, tuple[Intent, str]]:
    """What is wanted of each point, and what it has."""
    return {r.name: (r.intent, r.trajectory_sha256) for r in ledger.points}


def test_a_search_prunes_spends_less_and_what_it_left_out_can_be_finished(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    operator.start()
    user.apply_sweep(searched(place))
    ended = finished(user)
    search, planned = ended["status"]["search"], float(ended["status"]["plannedFlops"])
    assert search["pruned"] > 0
    assert search["ended"] in ended_message(ended)
    assert float(search["savedFlops"]) > 0.2 * planned
    assert flops(place, ended) == pytest.approx(planned - float(search["savedFlops"]), rel=0.01)
    assert not trained_twice(place)
    ledger = place.ledger(ended)
    pruned = [r for r in ledger.points if r.intent.action is IntentAction.PRUNE]
    assert all(r.intent.reason == "AboveLeader" and r.intent.bound for r in pruned)
    assert {"SearchStep", "Finished"} <= set(user.events("dense"))

    ends = len(place.traces.read("end"))
    user.apply_sweep(searched(place, search={"strategy": "Exhaustive"}))
    user.wait_for(lambda: user.sweep("dense"), "Progressing", "True")
    whole = finished(user)
    records = place.ledger(whole).points
    assert all(r.state is PointState.SUCCEEDED for r in records)
    assert all(r.trained_for >= r.wanted_tokens for r in records)
    assert not trained_twice(place)
    unfinished = len(records) - search["finished"]
    assert len(place.traces.read("end")) == ends + unfinished


def ended_message(body: dict[str, Any]) -> str:
    progressing = next(c for c in body["status"]["conditions"] if c["type"] == "Progressing")
    return str(progressing["message"])


def test_killed_at_random_moments_a_search_ends_with_the_same_decisions(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    chance = random.Random(1)
    user.apply_sweep(searched(place))
    for _ in range(6):
        operator.start()
        time.sleep(chance.uniform(1.5, 5.0))
        operator.kill()
    operator.start()
    ended = finished(user)
    assert not trained_twice(place)
    killed = wants(place.ledger(ended))
    digest = place.ledger(ended).digest
    operator.kill()
    operator.start()
    time.sleep(3)
    assert place.ledger(finished(user)).digest == digest, "a restart changes nothing"
    user.delete_sweep("dense")

    calm = searched(place)
    calm["spec"]["storage"]["uri"] = f"{place.uri}/calm"
    user.apply_sweep(calm)
    again = finished(user)
    folder = layout.sweep_folder("dense", again["metadata"]["uid"])
    ledger = read_ledger(Store(f"file://{place.folder}/calm"), folder)
    assert wants(ledger) == killed
