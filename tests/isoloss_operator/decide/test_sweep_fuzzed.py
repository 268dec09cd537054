"""Sweeps that are edited, harmed and interrupted in any order, and what must hold all along and at their end.

Hypothesis drives the real decision over an Simulator, step by step, and shortens what it finds to the fewest steps.
Within the simulator it is asserted, as each Job starts, that no point has two pods at work or its outcome in the stored
ledger, and that parallelism and budget are kept.
"""

from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from isoloss_contract.reading import ABSENT, Unanswered, Unreadable
from isoloss_operator.api.statuses import parse_conditions
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.reconcile.memory import Memory
from tests.support.builders import UID, ledger_of, points
from tests.support.chance import fuzz
from tests.support.models import example_model
from tests.support.simulator import (
    ANSWERED,
    AWAY,
    ENDS,
    FAR,
    NEAR,
    OTHERS,
    PREDICTION,
    Simulator,
    answer,
    edits,
    turns,
)

PASSES_TO_THE_END: Final = 120
"""Without disturbances: a dozen points one after the other, each with retries, and their fit."""
SIZES: Final[dict[str, dict[str, Any]]] = {
    "tiny": {"model": {"config": example_model("dense-tiny")}, "tokens": 1_000_000},
    "small": {"model": {"config": example_model("dense-small")}, "tokens": 2_000_000},
    "renamed": {"model": {"config": example_model("dense-small")}, "tokens": 2_000_000},
    "large": {"model": {"config": example_model("dense-100m")}, "tokens": 2_000_000},
}
TEMPLATES: Final = (
    None,
    {"spec": {"containers": [{"name": "trainer", "image": "lab/trainer:2"}]}},
)
INDEX: Final = st.integers(0, 20)
AROUND: Final = {"grid": {"around": {"prediction": PREDICTION}}}
CONTINUED: Final[dict[str, dict[str, Any]]] = {
    "around": {"checkpoint": {"uri": ANSWERED}, "tokens": 1_000_000, **AROUND},
    "around-renamed": {"checkpoint": {"uri": f"{ANSWERED}/"}, "tokens": 1_000_000, **AROUND},
    "continued": {"checkpoint": {"uri": OTHERS[0]}, "tokens": 1_000_000},
    "continued-larger": {"checkpoint": {"uri": OTHERS[1]}, "tokens": 1_000_000},
    "tiny": SIZES["tiny"],
}
TOGETHER: Final = (
    ("around",),
    ("around-renamed",),
    ("tiny", "around"),
    ("continued", "around"),
    ("continued-larger", "continued"),
    ("tiny", "continued"),
)
"""Sizes of one sweep; the last are refused."""
ANSWERS: Final = (
    *map(answer, NEAR),
    answer(FAR),
    answer(Stale="True"),
    answer(Ready="False"),
    {**answer(), "metadata": {"generation": 2}},
    {**answer(), "spec": {}},
    None,
)
STAMPS: Final = ("1" * 64, "9" * 64, ABSENT, Unreadable("no weights"), Unanswered("SlowDown"))


def grid(batches: set[int], rates: set[str]) -> dict[str, Any]:
    return {"batchSizes": sorted(batches), "learningRates": sorted(rates, key=float)}


def budget(share: float | None) -> dict[str, str] | None:
    """Of the whole sweep's FLOPs."""
    whole = sum(point.flops for point in points())
    return None if share is None else {"flops": f"{whole * share:.6e}".replace("e+", "e")}


class Fuzz(RuleBasedStateMachine):
    """Everything that may happen to a sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.simulator = Simulator()
        self.spent = 0.0
        self.hours = 0.0
        self.away = 0
        """Steps without a pass."""

    # ------------------------------------------------------------------------------ the operator

    @invariant()
    def a_pass(self) -> None:
        """After every step, unless the operator is away."""
        if self.away:
            self.away -= 1
            return
        self.judge(self.simulator.run_operator())
        self.simulator.writes_left = None
        self.simulator.let_time_pass(1.0)

    @rule(steps=st.integers(2, 5))
    def the_operator_is_away(self, steps: int) -> None:
        self.away = steps

    @rule(writes=st.integers(0, 8))
    def a_kill_between_two_writes(self, writes: int) -> None:
        self.simulator.writes_left = writes

    @rule(seconds=st.sampled_from([1.0, 25.0, 400.0, 4000.0]))
    def time(self, seconds: float) -> None:
        self.simulator.let_time_pass(seconds)

    # ---------------------------------------------------------------------------------- its user

    another_parallelism = edits("parallelism", st.integers(1, 4))
    another_search = edits(
        "search",
        st.sampled_from([{"strategy": "Sequential"}, {"strategy": "Exhaustive"}]),
        training=None,
    )
    other_seeds = edits(
        "training",
        st.sampled_from([{"additionalSeeds": seeds} for seeds in ([], [1], [1, 2])]),
        search=None,
    )
    another_fit = edits("fit", st.sampled_from([{"weights": "Averaged"}, {"weights": "Raw"}]))
    another_grid = edits(
        "grid",
        st.builds(
            grid,
            st.sets(st.sampled_from([8, 16]), min_size=1),
            st.sets(st.sampled_from(["1e-3", "2e-3", "4e-3"]), min_size=1),
        ),
    )
    another_budget = edits("budget", st.sampled_from([None, 0.05, 0.3, 0.7, 1.5]).map(budget))
    a_suspension = edits("suspend", st.booleans())
    another_pod_template = edits("podTemplate", st.sampled_from(TEMPLATES))
    another_failure_policy = edits(
        "failurePolicy",
        st.fixed_dictionaries(
            {"retriesPerPoint": st.integers(0, 3), "maxFailedPoints": st.integers(0, 2)}
        ),
    )
    another_queue = edits("queue", st.sampled_from([None, {"localQueueName": "gpus"}]))
    an_invalid_spec = edits("proxies", st.just([]))

    @rule(names=st.sets(st.sampled_from(sorted(SIZES)), min_size=1), factor=st.integers(1, 2))
    def other_sizes_and_tokens(self, names: set[str], factor: int) -> None:
        sizes = ({"name": name, **SIZES[name]} for name in sorted(names))
        self.simulator.edit(
            proxies=[{**size, "tokens": size["tokens"] * factor} for size in sizes]
        )

    @rule(names=st.permutations(sorted(SIZES)), count=st.integers(1, 3))
    def sizes_in_another_order(self, names: list[str], count: int) -> None:
        self.simulator.edit(proxies=[{"name": name, **SIZES[name]} for name in names[:count]])

    @rule(names=st.sampled_from(TOGETHER), factor=st.integers(1, 2))
    def sizes_that_continue_checkpoints(self, names: tuple[str, ...], factor: int) -> None:
        sizes = ({"name": name, **CONTINUED[name]} for name in names)
        self.simulator.edit(
            proxies=[{**size, "tokens": size["tokens"] * factor} for size in sizes]
        )

    @rule(factor=st.sampled_from(["2", "3"]))
    def neighbours_at_another_distance(self, factor: str) -> None:
        grid = {"around": {"prediction": PREDICTION, "factor": factor}}
        self.simulator.edit(proxies=[{"name": "around", **CONTINUED["around"], "grid": grid}])

    @rule(body=st.sampled_from(ANSWERS))
    def another_answer(self, body: dict[str, Any] | None) -> None:
        self.simulator.answers(body)

    @rule(rates=st.permutations(NEAR))
    def an_answer_that_hardly_moves(self, rates: list[str]) -> None:
        first, second, _ = rates
        self.simulator.answers(answer(first))
        self.judge(self.simulator.run_operator())
        planned, was_stored = self.simulator.planned, self.is_stored
        self.simulator.answers(answer(second))
        assert not was_stored or self.simulator.planned == planned

    @rule(uri=st.sampled_from([ANSWERED, *OTHERS]), stamp=st.sampled_from(STAMPS))
    def a_checkpoint_is_replaced_or_hidden(self, uri: str, stamp: Any) -> None:
        self.simulator.replace_checkpoint(uri, stamp)

    @rule(template=st.sampled_from(["first", "second"]))
    def another_operator(self, template: str) -> None:
        self.simulator.operator_image, self.simulator.writes_left = template, 0

    # ------------------------------------------------------------------------------- the cluster

    @precondition(lambda self: self.simulator.at_work)
    @rule(index=INDEX, how=st.sampled_from(ENDS))
    def a_job_ends(self, index: int, how: str) -> None:
        self.simulator.end(self.any_of(self.simulator.at_work, index), how)

    @precondition(lambda self: self.simulator.at_work)
    @rule()
    def all_jobs_succeed(self) -> None:
        for name in self.simulator.at_work:
            self.simulator.end(name, "succeeds")

    @precondition(lambda self: self.simulator.at_work)
    @rule(index=INDEX)
    def a_job_hangs(self, index: int) -> None:
        self.simulator.hung.add(self.any_of(self.simulator.at_work, index))

    @precondition(lambda self: self.queued)
    @rule(index=INDEX)
    def kueue_admits(self, index: int) -> None:
        self.simulator.admit(self.any_of(self.queued, index))

    @precondition(lambda self: self.simulator.at_work)
    @rule(index=INDEX, active=st.booleans())
    def kueue_evicts(self, index: int, active: bool) -> None:
        self.simulator.evict(self.any_of(self.simulator.at_work, index), active=active)

    @rule(refusal=st.sampled_from(["", "exceeded quota: gpus"]), may_pass=st.booleans())
    def jobs_are_refused(self, refusal: str, may_pass: bool) -> None:
        self.simulator.refuses_jobs, self.simulator.refusal_may_pass = refusal, may_pass

    # --------------------------------------------------------------------------------- the store

    the_store_comes_or_goes = turns("store_error", AWAY)
    ledgers_are_refused = turns("refuses_ledgers", st.booleans())

    # Of a lost ledger the status knows what was spent: at worst, all but the last pass.
    @precondition(lambda self: self.simulator.status_is_current)
    @rule()
    def the_ledger_is_damaged(self) -> None:
        self.simulator.ledger_is_damaged = self.simulator.ledger is not None
        self.simulator.ledger_was_lost |= self.simulator.ledger_is_damaged

    @rule(index=INDEX)
    def another_sweep_finds_a_result(self, index: int) -> None:
        key = self.any_of(sorted(self.simulator.points), index)
        if key not in self.simulator.results:
            self.simulator.find_result(key)

    @precondition(lambda self: self.simulator.results)
    @rule(index=INDEX)
    def a_result_is_withheld(self, index: int) -> None:
        self.simulator.withhold_result(self.any_of(sorted(self.simulator.results), index))

    @rule()
    def results_are_given_out_again(self) -> None:
        self.simulator.withheld.clear()

    @precondition(lambda self: self.simulator.results)
    @rule(index=INDEX)
    def a_result_vanishes(self, index: int) -> None:
        self.simulator.lose_result(self.any_of(sorted(self.simulator.results), index))

    @rule()
    def the_prepared_corpus_vanishes(self) -> None:
        self.simulator.lose_corpus()

    @precondition(lambda self: self.simulator.fit_running)
    @rule(how=st.sampled_from(["laws", "refused", "error", "unreadable"]))
    def a_fit_ends(self, how: str) -> None:
        self.simulator.end_fit(how)

    # ------------------------------------------------------------------------------ what must hold

    @property
    def queued(self) -> list[str]:
        return [n for n, j in self.simulator.jobs.items() if j.suspended and not j.is_finished]

    @property
    def is_stored(self) -> bool:
        """Whether the ledger has every place of the spec's points."""
        known = () if self.simulator.ledger is None else self.simulator.ledger.points
        keys = set() if self.simulator.ledger_is_damaged else {record.key for record in known}
        return (self.simulator.planned or {}).keys() <= keys

    def any_of(self, names: list[str], index: int) -> str:
        return names[index % len(names)]

    def judge(self, plan: SweepPlan | None) -> None:
        if plan is None:
            return
        assert contradictions(self.simulator) == []
        spent = float(self.simulator.status.get("spentFlops") or 0)
        shrinks = spent < self.spent * (1 - 1e-4)
        assert self.simulator.ledger_was_lost or not shrinks, "what was spent shrinks"
        hours = float(self.simulator.status.get("acceleratorHours") or 0)
        assert self.simulator.ledger_was_lost or hours >= self.hours, "the hours shown shrink"
        self.spent, self.hours = spent, hours

    def teardown(self) -> None:
        """The disturbances cease: the simulator comes to its end, and stays there."""
        simulator = self.simulator
        simulator.store_error = simulator.refuses_jobs = ""
        simulator.refuses_ledgers = False
        simulator.writes_left = None
        simulator.withheld.clear()
        simulator.hung.clear()
        for uri, stamp in simulator.stamps.items():
            if isinstance(stamp, Unanswered):
                simulator.replace_checkpoint(uri, "9" * 64)
        simulator.answers(answer(FAR))
        self.comes_to_its_end()
        before = simulator.status
        simulator.let_time_pass(4000.0)
        plan = simulator.run_operator()
        assert plan is not None
        assert is_quiet(simulator, plan)
        assert simulator.status == before
        if simulator.jobs and simulator.spec.get("suspend"):
            simulator.edit(suspend=False)
            self.comes_to_its_end()

    def comes_to_its_end(self) -> None:
        simulator = self.simulator
        for _ in range(PASSES_TO_THE_END):
            plan = simulator.run_operator()
            self.judge(plan)
            if plan is not None and is_quiet(simulator, plan) and is_at_its_end(simulator):
                return
            self.everything_goes_well()
        raise AssertionError(f"no end after {PASSES_TO_THE_END} passes: {simulator.status}")

    def everything_goes_well(self) -> None:
        simulator = self.simulator
        for name in self.queued:
            simulator.admit(name)
        for name in simulator.at_work:
            simulator.end(name, "succeeds")
        simulator.end_fit("laws")
        simulator.let_time_pass(120.0)


def contradictions(simulator: Simulator) -> list[str]:
    """Statements of the status that cannot both be true, or that the simulator belies."""
    found = parse_conditions(simulator.status)
    is_true = {kind for kind, each in found.items() if each.status == "True"}
    holding = [job for job in simulator.jobs.values() if job.holds_a_slot and not job.deleting]
    counts = simulator.status["points"]
    parts = ("pending", "active", "succeeded", "diverged", "failed")
    told = {
        "Reconciling and Stalled": {"Reconciling", "Stalled"} <= is_true,
        "Ready and Stalled": {"Ready", "Stalled"} <= is_true,
        "Ready without laws": "Ready" in is_true and "FitReady" not in is_true,
        "Ready and Progressing": {"Ready", "Progressing"} <= is_true,
        "Stalled and Progressing": {"Stalled", "Progressing"} <= is_true,
        "nothing to expect": not is_true & {"Ready", "Stalled", "Reconciling", "Suspended"},
        "Suspended is not what the spec says": ("Suspended" in is_true)
        is not bool(simulator.spec.get("suspend")),
        "Suspended with Jobs": found["Suspended"].reason == "Suspended" and bool(holding),
        "Stalled for another reason than Ready": "Stalled" in is_true
        and found["Stalled"].reason != found["Ready"].reason,
        "an old generation": {each.observed_generation for each in found.values()}
        != {simulator.generation},
        "points that are counted twice or not at all": counts["total"]
        != sum(counts.get(part, 0) for part in parts),
    }
    return [what for what, is_so in told.items() if is_so]


def is_quiet(simulator: Simulator, plan: SweepPlan) -> bool:
    """Whether the operator did nothing, and nothing that is to happen by itself is left."""
    writes = (plan.ledger, plan.quarantined, plan.delete, plan.expire, plan.create, plan.fit)
    # Points that have ended are left where they are until somebody mends the spec, or there is a corpus again.
    data = parse_conditions(simulator.status)["DataReady"]
    ready = parse_conditions(simulator.status)["Ready"].reason
    kept = simulator.planned is None or data.status != "True" or ready == "CheckpointChanged"
    refused = simulator.planned is None or data.reason == "BadConfiguration"
    going = [
        job
        for job in simulator.jobs.values()
        if job.holds_a_slot or not (refused or (kept and job.kind == "train"))
    ]
    return not (any(writes) or going or simulator.fit_running or simulator.orphaned)


def is_at_its_end(simulator: Simulator) -> bool:
    """Whether nobody has to expect anything of it until somebody acts."""
    found = parse_conditions(simulator.status)
    is_over = any(found[kind].status == "True" for kind in ("Ready", "Stalled", "Suspended"))
    is_going_on = (
        found["Reconciling"].status == "True" or found["Suspended"].reason == "Suspending"
    )
    return is_over and not is_going_on


def test_what_a_killed_operator_had_stopped_of_points_that_are_dropped_has_cost_what_it_reported() -> (
    None
):
    """A suspension stops Jobs under a spec that is invalid, so that no ledger hears of it."""
    simulator = Simulator()
    simulator.run_operator()
    simulator.let_time_pass(4000.0)
    simulator.edit(suspend=True, proxies=[])
    simulator.run_operator()
    simulator.let_time_pass(25.0)
    assert not simulator.jobs
    simulator.memory = Memory(UID)
    simulator.edit(suspend=False, proxies=[{"name": "large", **SIZES["large"]}])
    simulator.run_operator()
    reported = [
        six_nd(simulator.points[key].proxy.parameters, found.tokens)
        for key, found in simulator.progress.items()
    ]
    assert len(reported) == 3
    assert ledger_of(simulator).spent.flops == pytest.approx(sum(reported))


def test_no_order_of_edits_kills_and_losses_trains_twice_overspends_or_never_ends() -> None:
    fuzz(Fuzz, examples=20, steps=40)


@pytest.mark.whole
@pytest.mark.timeout(3_600)
def test_the_same_in_two_thousand_worlds() -> None:
    fuzz(Fuzz, examples=2_000, steps=40)
