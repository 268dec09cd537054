"""First points placed by the laws of an earlier sweep: what they are, what they wait for, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isoloss_contract.ledger import Ledger, Placement
from isoloss_contract.reading import ABSENT
from isoloss_operator.decide.left_open import prior_to_read
from isoloss_operator.decide.observation import ObservedPrior, ObservedSweep
from isoloss_operator.decide.reads import sweep_reads
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.specs import InvalidSpec
from tests.support import predictions
from tests.support.builders import after, condition, observed, sweep_spec

PROXY = {"name": "middle", "model": {"preset": "dense-100m"}, "tokens": 10_000_000_000}
SPEC = sweep_spec(
    proxies=[PROXY],
    grid=None,
    search={"strategy": "Sequential", "prior": {"name": "earlier"}},
)


def prior(**changes: Any) -> ObservedPrior:
    """A finished sweep named earlier, with laws of sequences of 2048 tokens."""
    reference = predictions.sweep(name="earlier")
    return ObservedPrior(**{"reference": reference, "fit": predictions.fit(), **changes})


def waiting(found: ObservedPrior | None, **spec: Any) -> ObservedSweep:
    return observed({**SPEC, **spec}, prior=found)


def placed(world: ObservedSweep) -> tuple[Placement, ...]:
    plan = decide_sweep(world)
    assert plan.ledger is not None, condition(plan, "Ready")
    return plan.ledger.placements


def test_its_laws_place_the_centre_in_sequences_of_this_sweeps_length() -> None:
    """The optimum that is planted in tests/support/planted_runs.py."""
    (found,) = placed(waiting(prior()))
    assert (found.proxy, found.source) == ("middle", "ScalingSweep earlier")
    size, tokens = 1.868e8, 1e10
    rate = 6e-4 * (size / 1e8) ** -0.25 * (tokens / 4e9) ** -0.15
    batch = 110 * (tokens / 4e9) ** 0.45
    assert found.learning_rate == pytest.approx(rate, rel=0.25)
    assert found.batch_size == pytest.approx(2048 / 128 * batch, rel=0.25)


def test_a_placed_size_stays_where_it_is_whatever_becomes_of_the_prior() -> None:
    world = waiting(prior())
    done = after(world, decide_sweep(world), prior=None)
    assert prior_to_read(done) is None
    assert isinstance(done.ledger, Ledger)
    again = decide_sweep(done)
    assert condition(again, "Ready")[1] == "Searching"
    assert again.ledger is None or again.ledger.placements == done.ledger.placements


def test_it_is_read_only_once_the_corpus_is_prepared() -> None:
    world = waiting(None)
    assert prior_to_read(world) == "earlier"
    preparing = replace(world, manifest=ABSENT)
    assert prior_to_read(preparing) is None
    assert condition(decide_sweep(preparing), "Ready")[1] == "PreparingData"


REFUSED = {
    "it does not exist": (
        prior(reference=None),
        "SweepNotFound",
        "spec.search.prior: there is no ScalingSweep earlier in this namespace.",
    ),
    "it is still training": (
        prior(reference=predictions.sweep("False", "Training", "3 of 9.", name="earlier")),
        "SweepNotReady",
        "ScalingSweep earlier is not ready (Training): 3 of 9.",
    ),
    "its laws are refused": (
        prior(
            reference=predictions.sweep(
                "False", "NoCommonLossRange", "Train longer.", name="earlier"
            )
        ),
        "NoCommonLossRange",
        "The laws of ScalingSweep earlier were refused: Train longer.",
    ),
    "its laws are gone": (prior(fit=ABSENT), "LawsUnreadable", "laws.json is missing"),
    "its spec is invalid": (
        prior(reference=predictions.sweep(name="earlier", spec=InvalidSpec(()))),
        "SweepInvalid",
        "spec.search.prior: the spec of ScalingSweep earlier is invalid.",
    ),
    "its storage is not allowed here": (
        prior(storage_refusal="not allowed"),
        "StorageNotAllowed",
        "spec.search.prior: not allowed",
    ),
}


@pytest.mark.parametrize(("found", "reason", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_nothing_is_placed_and_nothing_starts_while(
    found: ObservedPrior, reason: str, message: str
) -> None:
    world = waiting(found)
    plan = decide_sweep(world)
    status, said, text = condition(plan, "Ready")
    assert (status, said) == ("False", reason)
    assert message in text
    assert condition(plan, "DataReady")[0] == "True"
    is_accepted = condition(plan, "Accepted")[0] == "True"
    assert is_accepted is (reason != "StorageNotAllowed")
    assert plan.ledger is None
    assert not plan.create
    assert plan.fit is None
    assert not sweep_reads(world, frozenset()).results


def test_a_size_far_beyond_its_compute_is_refused_by_name() -> None:
    far = {**PROXY, "tokens": 10**15}
    plan = decide_sweep(waiting(prior(), proxies=[far]))
    _, reason, message = condition(plan, "Ready")
    assert reason not in {"Searching", "InvalidSpec"}
    assert message.startswith("The laws of ScalingSweep earlier place no points of middle: ")


def test_a_sweep_is_not_its_own_prior() -> None:
    search = {"strategy": "Sequential", "prior": {"name": "demo"}}
    plan = decide_sweep(waiting(None, search=search))
    assert condition(plan, "Ready")[1:] == (
        "InvalidSpec",
        "spec.search.prior: a sweep cannot be its own: name one that is finished",
    )


def test_a_sweep_that_is_its_own_prior_is_refused_before_its_corpus_is_prepared() -> None:
    spec = sweep_spec(search={"strategy": "Sequential", "prior": {"name": "demo"}})
    del spec["grid"]
    plan = decide_sweep(observed(spec, manifest=ABSENT))
    assert plan.create == ()
    assert condition(plan, "Ready")[:2] == ("False", "InvalidSpec")
    assert condition(plan, "Accepted")[:2] == ("False", "InvalidSpec")
