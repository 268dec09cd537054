"""A sequential search by the whole operator, against real servers and synthetic trainers."""

from __future__ import annotations

import random
import shutil
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
from tests.support.cluster import wait_until
from tests.support.models import example_model
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

GRID = {
    "batchSizes": [4, 12, 36, 108],
    "learningRates": ["6e-4", "1.8e-3", "5.4e-3", "1.6e-2"],
}
AROUND = {"batchSizes": [4, 8, 16, 32], "learningRates": ["2e-3", "4e-3", "8e-3"]}
SEQUENTIAL = {"strategy": "Sequential", "extendGrid": {"maxPoints": 4}}
ONE_SIZE = [
    {"name": "tiny", "model": {"config": example_model("dense-tiny")}, "tokens": 4_000_000}
]


def searched(place: Place, **spec: Any) -> dict[str, Any]:
    """Two sizes of 16 points each; the true optimum is inside both grids."""
    return sweep(place, **{"grid": GRID, "search": SEQUENTIAL, "parallelism": 12, **spec})


def finished(operator: OperatorProcess, user: User) -> dict[str, Any]:
    """The sweep once its search is over. An operator that lost its lease is started again, as a Deployment does."""

    def read() -> dict[str, Any]:
        if not operator.is_running():
            operator.start()
        return user.sweep("dense")

    return user.wait_for(read, "Progressing", "False", "Finished", 500)


def flops(ledger: Ledger, place: Place) -> float:
    """What the pods really trained, by the traces that they left."""
    per_token = {record.key: record.flops_per_token for record in ledger.points}
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


def test_a_search_spends_less_and_killed_at_random_moments_it_decides_the_same(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    operator.start()
    calm = searched(place, proxies=ONE_SIZE)
    calm["spec"]["storage"]["uri"] = f"{place.uri}/calm"
    user.apply_sweep(calm)
    ended = finished(operator, user)
    folder = layout.sweep_folder("dense", ended["metadata"]["uid"])
    undisturbed = wants(read_ledger(Store(f"file://{place.folder}/calm"), folder))
    assert "SearchStep" in user.events("dense")
    user.delete_sweep("dense")
    wait_until(lambda: not user.jobs(), "its Jobs to be collected", 120)
    operator.kill()
    shutil.rmtree(place.traces.folder)

    chance = random.Random(1)
    user.apply_sweep(searched(place, proxies=ONE_SIZE))
    for _ in range(4):
        operator.start()
        time.sleep(chance.uniform(2.0, 8.0))
        operator.end()
    ended = finished(operator, user)
    ledger = place.ledger(ended)
    assert wants(ledger) == undisturbed
    pruned = [r for r in ledger.points if r.intent.action is IntentAction.PRUNE]
    assert pruned
    assert all(r.intent.reason == "AboveLeader" and r.intent.bound for r in pruned)
    assert not trained_twice(place)
    search, planned = ended["status"]["search"], float(ended["status"]["plannedFlops"])
    assert float(search["savedFlops"]) > 0.2 * planned
    assert flops(ledger, place) == pytest.approx(planned - float(search["savedFlops"]), rel=0.01)

    user.apply_sweep(searched(place, proxies=ONE_SIZE, search={"strategy": "Exhaustive"}))
    user.wait_for(lambda: user.sweep("dense"), "Progressing", "True")
    records = place.ledger(finished(operator, user)).points
    assert all(r.state is PointState.SUCCEEDED for r in records)
    assert all(r.trained_for >= r.wanted_tokens for r in records)
    assert not trained_twice(place), "what was paused or pruned went on from its checkpoint"
