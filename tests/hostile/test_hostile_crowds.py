"""Hundreds of sweeps of one tenant at once, deleted and made again under the same names, and edits without end.

The operator's workers are few, and a namespace that keeps them all busy must not keep others waiting.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kubernetes import client

from devcluster.process_node import ProcessNode
from tests.hostile.neighbour import Neighbour
from tests.hostile.test_hostile_stores import tenants_sweep
from tests.isoloss_operator.conftest import Place
from tests.support.cluster import wait_until
from tests.support.operator_process import OperatorProcess, User, conditions

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

SWEEPS = 200
Json = dict[str, Any]


def small(place: Place, number: int) -> Json:
    """Every third asks for what no sweep may, in a way that the API server lets through."""
    body = tenants_sweep(place, f"many-{number}")
    if number % 3 == 0:
        body["spec"]["podTemplate"]["spec"]["hostNetwork"] = True
    elif number % 3 == 1:
        body["spec"]["storage"]["uri"] = "s3://not-allowed/here"
    else:
        body["spec"]["suspend"] = True
    return body


WANTED = {
    0: ("JobRefused", "hostNetwork: must not be true"),
    1: ("StorageNotAllowed", "may only use"),
    2: ("Suspended", ""),
}
"""The reason of Ready and words of its message, by the kind of the sweep."""


def everywhere(act: Callable[[int], object]) -> None:
    """For all of them, sixteen at a time."""
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(act, number) for number in range(SWEEPS)]:
            done.result()


@pytest.mark.whole
def test_hundreds_of_sweeps_of_one_tenant_delay_no_neighbour(
    limited: OperatorProcess, user: User, tenant: User, node: ProcessNode, place: Place
) -> None:
    def create(number: int) -> None:
        tenant.create_sweep(small(place, number))

    def delete(number: int) -> None:
        with contextlib.suppress(client.ApiException):
            tenant.delete_sweep(f"many-{number}")

    with Neighbour(user, limited, place) as neighbour:
        for act in (create, delete, create):
            everywhere(act)
        neighbour.asks_again()
        message = wait_for_all(tenant)
        neighbour.judge()
    for number, (reason, words) in WANTED.items():
        found = {message[name] for name in message if int(name.rpartition("-")[2]) % 3 == number}
        assert {each[0] for each in found} == {reason}, found
        assert all(words in each[1] for each in found)
    assert not [job for job in tenant.jobs() if job.metadata.name.startswith("many")]


def wait_for_all(tenant: User) -> dict[str, tuple[str, str]]:
    """Reason and message of Ready of each, once each has an answer of its own generation."""

    def read() -> dict[str, tuple[str, str]]:
        ready = {name: conditions(each).get("Ready") for name, each in tenant.sweeps().items()}
        return {name: (each["reason"], each["message"]) for name, each in ready.items() if each}

    wait_until(lambda: len(read()) == SWEEPS, "every sweep to be answered", 90)
    return read()


@contextlib.contextmanager
def repeated(act: Callable[[int], object]) -> Iterator[list[int]]:
    """Do something again and again, as fast as it goes; how often it was done."""
    over, done = threading.Event(), [0]

    def run() -> None:
        while not over.is_set():
            act(done[0])
            done[0] += 1

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.whole
def test_edits_without_end_delay_no_neighbour(
    limited: OperatorProcess, user: User, tenant: User, node: ProcessNode, place: Place
) -> None:
    """Of the spec, so that each of them is a new generation, and of 20 kB in annotations."""
    body = tenants_sweep(place, "restless")
    body["spec"]["suspend"] = True
    tenant.apply_sweep(body)

    def edit(number: int) -> None:
        change = {
            "metadata": {"annotations": {"tenant/text": f"{number}" + "x" * 20_000}},
            "spec": {"parallelism": 1 + number % 50},
        }
        with contextlib.suppress(client.ApiException):
            tenant.patch_sweep("restless", change)

    with Neighbour(user, limited, place) as neighbour:
        with repeated(edit) as edits:
            began = time.monotonic()
            neighbour.asks_again()
            neighbour.judge()
            seconds = time.monotonic() - began
        assert edits[0] > seconds, "there was no storm"
        found = tenant.wait_for(lambda: tenant.sweep("restless"), "Suspended")
        assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
