"""Predictions that are edited, harmed and interrupted in any order while their sweep comes, goes and changes, and what must
hold all along and at their end. As test_sweep_fuzzed.py, whose simulator this one's is built on.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Unanswered, Unreadable
from isoloss_operator.api import HyperparamPredictionStatus
from isoloss_operator.api.statuses import parse_conditions
from isoloss_operator.decide import answer, validation
from isoloss_operator.decide.answer import says_otherwise
from isoloss_operator.decide.observation import ObservedValidation
from isoloss_operator.decide.plans import PredictionPlan
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.reconcile.memory import had_trouble
from tests.support.chance import fuzz
from tests.support.prediction_simulator import (
    CHECKPOINTS,
    PROBES,
    STORES,
    TOKENS,
    PredictionSimulator,
    probes_at,
    probes_spec,
)
from tests.support.simulator import AWAY, COURSE, ENDS, edits, turns

PASSES_TO_THE_END: Final = 80
INDEX: Final = st.integers(0, 20)
ASKED: Final = ("sweepRef", "checkpoint", "initialLoss", "targetParameters", "budget", "batchSize")
"""Fields of the spec that make the question."""
JUDGED_BY: Final = {"sweepRef": {"name": PROBES}}
VALIDATIONS: Final = (None, JUDGED_BY, JUDGED_BY, {**JUDGED_BY, "tolerance": "9"})
OTHER_SIZE: Final = {"name": "near", "checkpoint": {"uri": CHECKPOINTS[1]}, "tokens": TOKENS}
PROBE_SPECS: Final[tuple[dict[str, Any], ...]] = (
    probes_spec(),
    probes_spec(),
    probes_spec(fit={"weights": "Raw"}),
    probes_spec(optimizer={"beta2": "0.9"}),
    probes_spec(proxies=[OTHER_SIZE]),
    probes_spec(storage={"uri": STORES[1]}),
    probes_spec(storage={"uri": "s3://not-allowed"}),
    {},
)
CONCLUDES_NOTHING: Final = ("StorageUnreachable", "NotACheckpoint")
"""Reasons of an Accepted under which what the status said stands, whatever the sweep says by now."""


class Fuzz(RuleBasedStateMachine):
    """Everything that may happen to a prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.simulator = PredictionSimulator()
        self.given: dict[str, tuple[Any, ...]] = {}
        """The last answer to each question that was not stale."""
        self.verdict: tuple[int, Any] = (0, None)
        """That of the last pass, if any, and of which generation."""
        for _ in range(2):  # it is measured and answered
            self.a_pass()
            self.everything_succeeds(30.0)
        self.judged_again(1.0)

    # ------------------------------------------------------------------------------ the operator

    @invariant()
    def a_pass(self) -> None:
        """After every step."""
        self.judge(self.simulator.run_operator())
        self.simulator.writes_left = None
        self.simulator.let_time_pass(1.0)

    @rule(writes=st.integers(0, 8))
    def a_kill_between_two_writes(self, writes: int) -> None:
        self.simulator.writes_left = writes

    @rule(seconds=st.sampled_from([25.0, 400.0, 4000.0]))
    def time(self, seconds: float) -> None:
        self.simulator.let_time_pass(seconds)

    # ---------------------------------------------------------------------------------- its user

    @rule(uri=st.sampled_from(CHECKPOINTS))
    def another_checkpoint(self, uri: str) -> None:
        self.simulator.edit(checkpoint={"uri": uri}, initialLoss=None, targetParameters=None)

    @precondition(lambda self: not self.simulator.elsewhere)
    @rule(loss=st.sampled_from(["3.25", "1.0"]))
    def a_given_loss(self, loss: str) -> None:
        given = {"initialLoss": loss, "targetParameters": 100_000}
        self.simulator.edit(checkpoint=None, validation=None, **given)

    another_budget = edits(
        "budget", st.sampled_from([{"flops": flops} for flops in ("1e19", "2e19", "1e16")])
    )
    a_suspension = edits("suspend", st.sampled_from([True, None]))
    another_config_map = edits(
        "publish",
        st.sampled_from([None, {"configMapName": "answer"}, {"configMapName": "other"}]),
    )
    an_invalid_spec = edits("initialLoss", st.just("3.3"), checkpoint={"uri": CHECKPOINTS[0]})

    @rule(size=st.sampled_from([None, 128, 256]))
    def another_batch_size(self, size: int | None) -> None:
        self.simulator.edit(batchSize=size, batchSizeMultipleOf=None if size else 8)

    @precondition(lambda self: "checkpoint" in self.simulator.asked)
    @rule(store=st.sampled_from(STORES))
    def a_sweep_in_another_store(self, store: str) -> None:
        self.simulator.turn_to(store)

    @precondition(lambda self: "checkpoint" in self.simulator.asked)
    @rule(asked=st.sampled_from(VALIDATIONS))
    def another_validation(self, asked: dict[str, Any] | None) -> None:
        self.simulator.edit(validation=asked)

    # ------------------------------------------------------------------------ the sweep that judges

    @rule(
        better=st.sampled_from([1.0, 1.0, 4.0, 0.0]),
        stamp=st.sampled_from(["1" * 64, "1" * 64, "3" * 64]),
        done=st.booleans(),
    )
    def points_around_the_answer(self, better: float, stamp: str, done: bool) -> None:
        status = self.simulator.status
        rate = (status.get("learningRate") or {}).get("value") or "1e-3"
        batch = (status.get("batchSize") or {}).get("value") or "64"
        self.simulator.probes = probes_at(rate, batch, better, stamp, done=done)

    @precondition(lambda self: "checkpoint" in self.simulator.asked)
    @rule(better=st.sampled_from([1.0, 4.0, 0.0]))
    def judged_again(self, better: float) -> None:
        """All that a verdict takes is there, for as long as nothing else is disturbed."""
        self.simulator.edit(checkpoint={"uri": CHECKPOINTS[0]}, validation=JUDGED_BY)
        self.simulator.stamps[CHECKPOINTS[0]] = "1" * 64
        self.simulator.courses = COURSE
        for _ in range(2):
            self.a_pass()
            self.everything_succeeds(30.0)
        self.points_around_the_answer(better, "1" * 64, done=True)
        self.a_pass()

    @precondition(lambda self: self.simulator.probes is not None)
    @rule(raw=st.sampled_from(PROBE_SPECS), is_seen=st.booleans())
    def they_are_edited(self, raw: dict[str, Any], is_seen: bool) -> None:
        """`is_seen`: what is known of them is as new as that."""
        probes = self.simulator.probes
        assert probes is not None
        later = probes.generation + (not is_seen)
        self.simulator.probes = replace(probes, raw=raw, generation=later)

    @precondition(lambda self: self.simulator.probes is not None)
    @rule(says=st.sampled_from([{"Ready": "False"}, {"Ready": "False", "Stalled": "True"}]))
    def they_are_not_over(self, says: dict[str, str]) -> None:
        assert self.simulator.probes is not None
        self.simulator.probes = self.simulator.probes.said(**says)

    @precondition(lambda self: self.simulator.probes is not None)
    @rule(ledger=st.sampled_from([ABSENT, Unanswered("slow"), Unreadable("no JSON")]))
    def their_ledger_is_hidden(self, ledger: Any) -> None:
        assert self.simulator.probes is not None
        self.simulator.probes = replace(self.simulator.probes, ledger=ledger)

    @precondition(lambda self: self.simulator.probes is not None)
    @rule()
    def they_have_another_corpus(self) -> None:
        probes = self.simulator.probes
        assert probes is not None
        if isinstance(probes.ledger, Ledger) and probes.ledger.corpus is not None:
            corpus = probes.ledger.corpus.model_copy(update={"digest": "9" * 32})
            self.simulator.probes = replace(probes, ledger=probes.ledger.replace(corpus=corpus))

    their_trajectories_are_hidden_or_read = turns(
        "courses",
        st.sampled_from([COURSE, COURSE, ABSENT, Unanswered("slow"), Unreadable("row 3")]),
    )
    they_are_deleted = turns("probes", st.none())

    # ---------------------------------------------------------------------------------- its sweep

    other_laws = turns(
        "laws", st.sampled_from(["a", "a", "twice a", "refused", "provisional", ""])
    )
    the_sweep_is_deleted_or_made_anew = turns("sweep_uid", st.sampled_from(["", "uid-1", "uid-2"]))
    the_sweep_is_invalid_or_mended = turns("sweep_valid", st.booleans())
    the_corpus_goes_or_is_put_back = turns("is_prepared", st.booleans())

    @rule(is_seen=st.booleans())
    def the_sweep_is_edited(self, is_seen: bool) -> None:
        self.simulator.sweep_generation += 1
        self.simulator.sweep_seen += is_seen

    @rule()
    def the_operator_has_seen_the_sweep(self) -> None:
        self.simulator.sweep_seen = self.simulator.sweep_generation

    @rule(
        stamp=st.sampled_from(
            ["1" * 64, "1" * 64, "3" * 64, ABSENT, Unreadable("no files"), Unanswered("slow")]
        )
    )
    def the_checkpoint_is_replaced_or_hidden(self, stamp: Any) -> None:
        self.simulator.stamps[CHECKPOINTS[0]] = stamp

    # ------------------------------------------------------------------- the cluster, the store

    @precondition(lambda self: self.simulator.at_work)
    @rule(index=INDEX, how=st.sampled_from(ENDS))
    def a_job_ends(self, index: int, how: str) -> None:
        self.simulator.end(any_of(self.simulator.at_work, index), how)

    @rule(passes=st.integers(1, 5))
    def all_goes_well(self, passes: int) -> None:
        for _ in range(passes):
            self.a_pass()
            self.everything_succeeds(30.0)

    jobs_are_refused = turns("refuses_jobs", st.sampled_from(["", "exceeded quota: gpus"]))
    config_maps_are_refused = turns("refuses_config_maps", st.booleans())
    the_store_comes_or_goes = turns("store_error", AWAY)
    ledgers_are_refused = turns("refuses_ledgers", st.booleans())

    @precondition(lambda self: "other" not in self.simulator.config_maps)
    @rule()
    def a_config_map_is_anothers(self) -> None:
        self.simulator.taken.add("other")

    @precondition(
        lambda self: self.simulator.status_is_current and self.simulator.ledger is not None
    )
    @rule()
    def the_ledger_is_damaged(self) -> None:
        self.simulator.ledger_is_damaged = self.simulator.ledger_was_lost = True

    @precondition(lambda self: self.simulator.evaluations)
    @rule(index=INDEX)
    def an_evaluation_vanishes(self, index: int) -> None:
        del self.simulator.evaluations[any_of(sorted(self.simulator.evaluations), index)]

    # ------------------------------------------------------------------------------ what must hold

    def judge(self, plan: PredictionPlan | None) -> None:
        if plan is None:
            return
        assert contradictions(self.simulator) == []
        self.judge_the_answer()
        self.judge_the_verdict(plan)

    def judge_the_verdict(self, plan: PredictionPlan) -> None:
        """Nothing else depends on it, and it stands while nothing can be known that changes it."""
        simulator, seen = self.simulator, self.simulator.observed
        assert seen is not None
        without = decide_prediction(replace(seen, validation=ObservedValidation()))
        assert but_the_verdict(without) == but_the_verdict(plan)
        verdict = verdict_of(simulator.status)
        if seen.store_error and seen.generation == self.verdict[0] and self.verdict[1] is not None:
            assert verdict == self.verdict[1]
        self.verdict = (seen.generation, verdict)

    def judge_the_answer(self) -> None:
        """It is of the question that is asked, by the laws that there are or, stale, by those it was given by last."""
        simulator, status, found = (
            self.simulator,
            self.simulator.status,
            parse_conditions(self.simulator.status),
        )
        if found["Stale"].reason == "NothingWrong":
            return
        asked = repr({key: simulator.asked.get(key) for key in ASKED})
        answer = tuple(status.get(field) for field in ("learningRate", "batchSize", "lawsSha256"))
        if found["Stale"].status == "False" and found["Accepted"].reason not in CONCLUDES_NOTHING:
            assert status["lawsSha256"] == simulator.laws_sha256
            assert status["sweepUid"] == simulator.sweep_uid
            self.given[asked] = answer
        assert answer == self.given.get(asked), "the answer is not to what is asked"

    def everything_succeeds(self, seconds: float) -> None:
        for name in self.simulator.at_work:
            self.simulator.end(name, "succeeds")
        self.simulator.let_time_pass(seconds)

    def teardown(self) -> None:
        """The disturbances cease: the simulator comes to its end, and stays there."""
        simulator = self.simulator
        simulator.store_error = simulator.refuses_jobs = ""
        simulator.refuses_ledgers = simulator.refuses_config_maps = False
        simulator.hung.clear()
        if isinstance(simulator.stamps[CHECKPOINTS[0]], Unanswered):
            simulator.stamps[CHECKPOINTS[0]] = ABSENT
        probes = simulator.probes
        if probes is not None and isinstance(probes.ledger, Unanswered):
            simulator.probes = replace(probes, ledger=ABSENT)
        self.comes_to_its_end()
        before = simulator.status
        simulator.let_time_pass(4000.0)
        plan = simulator.run_operator()
        assert plan is not None
        assert is_quiet(plan)
        assert simulator.status == before
        seen = simulator.observed
        assert seen is not None
        found = parse_conditions(simulator.status)
        if found["Stale"].status == "False" and found["Accepted"].status == "True":
            afresh = decide_prediction(replace(seen, status={})).status.document()
            if parse_conditions(afresh)["Ready"].status == "True":
                assert verdict_of(afresh) == verdict_of(simulator.status)

    def comes_to_its_end(self) -> None:
        was_in_trouble = True
        for _ in range(PASSES_TO_THE_END):
            plan = self.simulator.run_operator()
            self.judge(plan)
            trouble = had_trouble(self.simulator.memory)
            is_over = plan is not None and is_quiet(plan) and not (trouble or was_in_trouble)
            if is_over and not self.simulator.at_work and is_at_its_end(self.simulator):
                return
            was_in_trouble = trouble
            self.everything_succeeds(120.0)
        raise AssertionError(f"no end after {PASSES_TO_THE_END} passes: {self.simulator.status}")


def any_of(names: list[str], index: int) -> str:
    return names[index % len(names)]


def contradictions(simulator: PredictionSimulator) -> list[str]:
    """Statements of status and ConfigMaps that cannot all be true, or that the simulator belies."""
    status, found = simulator.status, parse_conditions(simulator.status)
    true = {kind for kind, each in found.items() if each.status == "True"}
    is_ready, is_stale = "Ready" in true, "Stale" in true
    is_shown = status.get("learningRate") is not None
    is_unpublished = found["Ready"].reason in ("ConfigMapTaken", "ConfigMapRefused")
    is_invalid = found["Accepted"].reason == "InvalidSpec"
    told = {
        "Reconciling and Stalled": {"Reconciling", "Stalled"} <= true,
        "Ready and Stalled, and not stale": {"Ready", "Stalled"} <= true and not is_stale,
        "Stale and not Ready": is_stale and not is_ready and not is_unpublished,
        "nothing to expect": not true & {"Ready", "Stalled", "Reconciling", "Suspended"},
        "an old generation": {each.observed_generation for each in found.values()}
        != {simulator.generation},
        "Ready without an answer": is_ready and not is_shown,
        "an answer without Ready": is_shown
        and not is_ready
        and not is_unpublished
        and found["Ready"].reason != "Provisional",
        "Validated is not what the spec says": not is_invalid
        and ("Validated" in found) is not ("validation" in simulator.asked),
        "a verdict without figures": "Validated" in found
        and found["Validated"].status != "Unknown"
        and not status.get("validation"),
        "a measurement beside a given loss": found["Accepted"].status == "True"
        and "initialLoss" in simulator.asked
        and bool(status.get("domainLosses") or status.get("evaluationUri")),
        "published otherwise": not is_invalid
        and not simulator.refuses_config_maps
        and any(
            data.get("learningRate") != (status["learningRate"]["value"] if is_ready else None)
            or data.get("stale", "false") != str(is_ready and is_stale).lower()
            for data in simulator.config_maps.values()
        ),
        "another answer is published": not is_invalid
        and any(
            says_otherwise(data, HyperparamPredictionStatus.read(status))
            for data in simulator.config_maps.values()
        ),
        "Ready, not published, and no word of it": is_ready
        and "publish" in simulator.asked
        and simulator.asked["publish"]["configMapName"] not in simulator.config_maps
        and found["Accepted"].status == "True",
    }
    return [what for what, is_so in told.items() if is_so]


def verdict_of(status: dict[str, Any]) -> Any:
    """What a status says of the answer's validation; None: there is no verdict."""
    found = parse_conditions(status).get("Validated")
    if found is None or not status.get("validation"):
        return None
    figures = {**status["validation"], "questionDigest": ""}
    return found.status, found.reason, figures, status.get("refined")


def but_the_verdict(plan: PredictionPlan) -> Any:
    """Everything that a pass does and says beside it."""
    status = plan.status.document()
    for name in ("validation", "refined"):
        status.pop(name, None)
    status["conditions"] = [c for c in status["conditions"] if c["type"] != "Validated"]
    writes = (plan.ledger, plan.quarantined, plan.delete, plan.expire, plan.create)
    return status, writes, plan.publish, plan.withdraw


def is_quiet(plan: PredictionPlan) -> bool:
    """Whether the operator did nothing."""
    return not (plan.ledger or plan.quarantined or plan.delete or plan.expire or plan.create)


def is_at_its_end(simulator: PredictionSimulator) -> bool:
    """Whether nothing goes on of which a condition says that it does."""
    return parse_conditions(simulator.status)["Ready"].reason != "WaitingToRetry"


@pytest.fixture(autouse=True)
def _laws_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question has the same answer in each of a hundred passes, and takes most of their time."""
    monkeypatch.setattr(answer, "predict", remembered(answer.predict))
    monkeypatch.setattr(validation, "validate", remembered(validation.validate))


def remembered(call: Callable[..., Any]) -> Callable[..., Any]:
    """By what its arguments print, and which laws they are."""
    known: dict[Any, Any] = {}

    def asked(laws: Any, *arguments: Any, **named: Any) -> Any:
        key = id(laws), repr(arguments), repr(named)
        if key not in known:
            known[key] = call(laws, *arguments, **named)
        return known[key]

    return asked


def test_no_order_of_edits_kills_and_other_laws_answers_another_question_or_never_ends() -> None:
    fuzz(Fuzz, examples=12, steps=25)


@pytest.mark.whole
@pytest.mark.timeout(3_600)
def test_the_same_in_four_hundred_worlds() -> None:
    fuzz(Fuzz, examples=400, steps=25)
