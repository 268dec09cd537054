"""`isoloss watch`: from the store and, through kubectl, from a cluster."""

import io
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from isoloss.cli.watching import screen
from isoloss.kubectl import (
    PREDICTION,
    SWEEP,
    read_view,
    resource_name,
)
from isoloss.status import View, answer_lines, cost_line, headline
from isoloss_contract import layout
from isoloss_contract.store import Store
from tests.isoloss.cli.conftest import PutInCluster
from tests.support.command_line import Isoloss
from tests.support.ledgers import done, ledger, record, write_ledger
from tests.support.watched import resource, write_watched

SIZES = [
    {"proxy": "tiny", "progress": "9/25", "trained": 62, "loss": "2.5650"},
    {"proxy": "small", "progress": "0/25", "trained": 14, "loss": ""},
]


def shown(view: View, width: int = 80) -> list[str]:
    """The screen of a terminal of that width."""
    paper = io.StringIO()
    Console(file=paper, width=width).print(screen(view, width))
    return paper.getvalue().splitlines()


def test_a_terminal_shows_the_moments_in_place_and_keeps_the_last(
    isoloss: Isoloss, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = ledger(done(1))
    write_watched(store, stored, ("Ready", "False", "Training"), points={"total": 12}, sizes=SIZES)
    paper = io.StringIO()
    terminal = Console(file=paper, force_terminal=True, width=80, height=24, markup=False)
    monkeypatch.setattr("isoloss.cli.watching.console", lambda: terminal)

    def sleep(_: float) -> None:
        points = {"total": 12, "succeeded": 12}
        write_watched(store, stored, ("Ready", "True", "Fitted"), points=points)

    monkeypatch.setattr("isoloss.cli.watching.time.sleep", sleep)
    assert isoloss("watch", store.uri).code == 0
    text = paper.getvalue()
    assert "tiny" in text
    assert "62%" in text
    assert "sweep: Training: why" in text
    # The last is written over the others.
    assert text.rindex("points 12/12, laws fitted") > text.rindex(
        "points 0/12, 0 active, Training"
    )
    assert "\x1b[?1049h" not in text


def test_a_single_picture_ends_with_0_whatever_it_shows(isoloss: Isoloss, store: Store) -> None:
    write_watched(
        store,
        ledger(done(1)),
        ("Ready", "False", "Training"),
        points={"total": 50, "succeeded": 9},
        sizes=SIZES,
    )
    ended = isoloss("watch", store.uri, "--once")
    assert ended.code == 0
    assert ended.out.startswith("points 9/50, 0 active, Training\n")
    tiny, small = ended.out.splitlines()[1:3]
    assert re.fullmatch(r"tiny +[━╸]+ +62% +9/25 +best 2\.5650 *", tiny)
    assert re.fullmatch(r"small +[━╸]+ +14% +0/25 *", small)
    assert "sweep: Training: why" in ended.out
    found = isoloss("watch", store.uri, "--json").document
    assert found["ready"] is False
    assert found["sweep"]["points"] == {"total": 50, "succeeded": 9}
    assert found["sweep"]["sizes"][0] == SIZES[0]


@pytest.mark.parametrize(
    ("ready", "says"),
    [
        (("Ready", "False", "Training"), "points 42/45, 3 failed, 0 active, Training"),
        (("Ready", "True", "Fitted"), "points 42/45, 3 failed, laws fitted"),
        (("Ready", "True", "NothingToFit"), "points 42/45, 3 failed, nothing to fit"),
    ],
)
def test_points_are_counted_as_kubectl_does_and_those_that_failed_apart(
    ready: tuple[str, str, str], says: str
) -> None:
    points = {"total": 45, "succeeded": 40, "diverged": 2, "failed": 3}
    assert headline(View(resource(ready, points=points))) == says


@pytest.mark.parametrize(
    ("ready", "stale", "says"),
    [
        (
            ("Ready", "True", "Predicted"),
            ("Stale", "True", "SweepNotFound"),
            "no sweep; learning rate 3e-4, batch size 64, stale: SweepNotFound",
        ),
        (
            ("Ready", "False", "ConfigMapTaken"),
            ("Stale", "False", "UpToDateWithSweep"),
            "no sweep; learning rate 3e-4, batch size 64, not ready: ConfigMapTaken",
        ),
        (
            ("Ready", "False", "SweepNotFound"),
            ("Stale", "False", "NothingWrong"),
            "no sweep; prediction: SweepNotFound",
        ),
    ],
)
def test_a_prediction_without_its_sweep_is_told_of_first(
    ready: tuple[str, str, str], stale: tuple[str, str, str], says: str
) -> None:
    """Its answer outlives the sweep, also where it could not be published."""
    answer = {"learningRate": {"value": "3e-4"}, "batchSize": {"value": "64"}}
    assert headline(View({}, resource(ready, stale, **answer))) == says


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        (-100, "1 min"),
        (59.9, "1 min"),
        (119.95, "2 min"),
        (3599, "1 h 0 min"),
        (5 * 3600 + 40 * 60, "5 h 40 min"),
        (86_399, "1 d 0 h"),
        (9 * 86_400, "9 d 0 h"),
        (400.5 * 86_400, "400 d 12 h"),
    ],
)
@pytest.mark.parametrize("zone", [UTC, None])
def test_the_time_left_is_told_in_units_that_fit(
    seconds: float, left: str, zone: timezone | None
) -> None:
    """Without a zone it is in UTC."""
    end = (datetime.now(UTC) + timedelta(seconds=seconds + 0.5)).replace(tzinfo=zone).isoformat()
    sweep = resource(("Ready", "False", "Training"), points={"total": 2}, estimatedCompletion=end)
    assert headline(View(sweep)) == f"points 0/2, 0 active, Training, about {left} left"


def test_before_the_operator_has_drawn_a_page_it_is_waited_for(
    isoloss: Isoloss, store: Store
) -> None:
    write_ledger(store, ledger(done(1)))
    assert isoloss("watch", store.uri, "--once").out == "sweep: waiting for the operator\n"


def test_cost_is_compared_with_the_whole_grid() -> None:
    cost = {"spentFlops": "8.31999e13", "plannedFlops": "9.15e14", "acceleratorHours": "12.3456"}
    message = "cost so far 8.32e13 FLOPs, 9% of the whole grid's 9.15e14; 12.3 accelerator hours"
    assert message in shown(View(resource(**cost)), 100)
    assert cost_line(View(resource())) == ""


@pytest.mark.parametrize(
    ("content", "named"),
    [(b"{", "report.json"), (b'{"metadata": 5, "status": {}}', "metadata")],
)
def test_a_damaged_status_beside_the_page_is_refused_by_file_and_field(
    isoloss: Isoloss, store: Store, content: bytes, named: str
) -> None:
    stored = ledger(done(1))
    write_ledger(store, stored)
    path = layout.page_status_in(layout.sweep_folder(stored.sweep, stored.uid))
    store.write(path, content)
    ended = isoloss("watch", store.uri, "--once")
    assert path in ended.error
    assert named in ended.error


def test_watching_prints_a_line_per_change_and_outlives_a_store_that_fails(
    isoloss: Isoloss, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is printed for a reading that shows the same, a failed one is told, the last ends it."""
    going, over = ledger(done(1), record(2)), ledger(done(1), done(2))
    path = layout.page_status_in(layout.sweep_folder(going.sweep, going.uid))
    write_watched(
        store, going, ("Ready", "False", "Training"), points={"total": 2, "succeeded": 1}
    )
    pauses = iter(range(3))

    def sleep(_: float) -> None:
        pause = next(pauses)
        if pause == 1:
            store.write(path, b"{")
        elif pause == 2:
            points = {"total": 2, "succeeded": 2}
            write_watched(store, over, ("Ready", "True", "Fitted"), points=points)

    monkeypatch.setattr("isoloss.cli.watching.time.sleep", sleep)
    ended = isoloss("watch", store.uri)
    assert ended.code == 0
    first, failed, last = ended.out.splitlines()
    assert first == "points 1/2, 0 active, Training"
    assert failed.startswith("not read, shown as it was: ")
    assert path in failed
    assert last == "points 2/2, laws fitted"


def test_a_stalled_sweep_ends_the_watching_with_3(isoloss: Isoloss, store: Store) -> None:
    stored = ledger(record(1))
    conditions = ("Stalled", "True", "BadData"), ("Ready", "False", "BadData")
    write_watched(store, stored, *conditions)
    ended = isoloss("watch", store.uri)
    assert (ended.code, ended.err) == (3, "stalled: BadData: why\n")
    assert "sweep: BadData: why" in isoloss("watch", store.uri, "--once").out


def test_a_program_gets_what_the_screen_shows_of_a_cluster_through_kubectl(
    isoloss: Isoloss, tmp_path: Path, put_in_cluster: PutInCluster
) -> None:
    """The reason beside the message, and the laws in words."""
    law = {"status": "Provisional", "formula": "LR = 0.002 * L^0.8"}
    stalled = ("Stalled", "True", "BadData"), ("Ready", "False", "BadData")
    put_in_cluster(scalingsweep__dense=resource(*stalled, learningRateLaw=law))
    found = isoloss("watch", "ssweep/dense", "-n", "research", "--json").document
    called = (tmp_path / "calls").read_text()
    assert called.startswith("get scalingsweep.isoloss.dev dense --namespace research -o json")
    assert (found["ready"], found["stalled"], found["stalled_reason"]) == (False, "why", "BadData")
    assert found["laws"] == ["learning rate: Provisional LR = 0.002 * L^0.8"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_screen_has_at_most_20_lines_and_none_is_wider_than_the_terminal(width: int) -> None:
    """Many sizes, long names, laws, and long messages: what is waited for is cut last."""
    interval = {"value": "2.06e-4", "low": "1.2e-4", "high": "3.52e-4"}
    sizes = [{**SIZES[0], "proxy": f"dense-{n}00m-with-a-long-name"} for n in range(20)]
    law = {"status": "Provisional", "formula": "LR = 0.001991 * L^0.8147 and more of its formula"}
    sweep = resource(
        ("Ready", "False", "Training"),
        points={"total": 45},
        sizes=sizes,
        learningRateLaw=law,
        batchSizeLaw=law,
        lossComputeLaw=law,
        spentFlops="1e15",
        plannedFlops="4e15",
        search={"finished": 3, "savedFlops": "1e19", "message": "2 chosen, for 1e12 FLOPs" * 20},
    )
    prediction = resource(
        ("Ready", "True", "Predicted"),
        ("Validated", "Unknown", "Training"),
        learningRate=interval,
        batchSize=interval,
        refined={"learningRate": interval, "batchSize": interval},
    )
    for which in (sweep, prediction):
        for condition in which["status"]["conditions"]:
            condition["message"] = "A long message about what is waited for. " * 20
    for view in (View(sweep), View(sweep, prediction)):
        lines = shown(view, width)
        assert len(lines) <= 20
        assert max(len(line) for line in lines) <= width
        assert "14 more sizes not shown" in lines
        assert any(line.startswith("dense-19") for line in lines)
        assert not any(line.startswith("dense-13") for line in lines)
        assert lines[-1].endswith("…")
        assert any("Training: A long message" in line for line in lines)


def test_a_screen_of_few_words_is_not_cut() -> None:
    """The laws until there is an answer, then the answer."""
    law = {"status": "Provisional", "formula": "LR = 0.002 * L^0.8"}
    sweep = resource(("Ready", "False", "Training"), sizes=SIZES, learningRateLaw=law)
    without = shown(View(sweep))
    assert "learning rate: Provisional LR = 0.002 * L^0.8" in without
    answer = {"value": "3e-4", "low": "2e-4", "high": "4e-4"}
    with_answer = shown(View(sweep, resource(("Ready", "True", "Predicted"), learningRate=answer)))
    assert "predicted learning rate: 3e-4 [2e-4, 4e-4]" in with_answer
    assert not any("Provisional" in line for line in with_answer)
    assert not any(line.endswith("…") for line in without + with_answer)


def test_what_is_neither_a_uri_nor_a_resource_is_refused(isoloss: Isoloss, store: Store) -> None:
    other = "scalingsweep.example.org/dense"
    for what in ("dense", "pod/dense", "scalingsweep/", "scalingsweep/-o", other):
        ended = isoloss("watch", what, "--once")
        assert "scalingsweep/NAME or hyperparamprediction/NAME" in ended.error
    assert "--namespace" in isoloss("watch", store.uri, "-n", "research").error
    assert isoloss("watch", store.uri, "--once").code == 2, "no sweep there"


# ------------------------------------------------------------------------------- a cluster


def test_a_prediction_is_watched_with_its_sweep_until_both_are_ready(
    isoloss: Isoloss, put_in_cluster: PutInCluster
) -> None:
    rate = {"value": "3e-4", "low": "2e-4", "high": "4e-4"}
    size = {"value": 64, "low": "50", "high": "80"}
    predicted = resource(("Ready", "True", "Predicted"), learningRate=rate, batchSize=size)
    put_in_cluster(
        scalingsweep__dense=resource(("Ready", "True", "Fitted")),
        hyperparamprediction__next=predicted,
    )
    ended = isoloss("watch", "hyperparamprediction/next")
    assert ended.code == 0
    assert ended.out.endswith("laws fitted; learning rate 3e-4, batch size 64\n")
    once = isoloss("watch", "hpred/next", "--once").out
    assert "predicted learning rate: 3e-4 [2e-4, 4e-4]" in once


def test_an_answer_whose_sweep_was_deleted_is_still_shown_and_opened(
    isoloss: Isoloss, store: Store, put_in_cluster: PutInCluster
) -> None:
    rate = {"value": "3e-4", "low": "2e-4", "high": "4e-4"}
    store.write("predictions/next-1/report.html", b"the prediction")
    stale = resource(
        ("Ready", "True", "Predicted"),
        ("Stale", "True", "SweepNotFound"),
        learningRate=rate,
        reportUri=store.location("predictions/next-1/report.html"),
    )
    put_in_cluster(hyperparamprediction__next=stale)
    once = isoloss("watch", "hpred/next", "--once")
    assert once.code == 0
    assert "answer, stale: SweepNotFound" in once.out
    assert "predicted learning rate: 3e-4 [2e-4, 4e-4]" in once.out
    page = isoloss("open", "hpred/next", "--json").document["page"]
    assert Path(page).read_text().endswith("the prediction")


def test_the_probes_of_a_prediction_are_watched_until_their_verdict(
    isoloss: Isoloss, put_in_cluster: PutInCluster
) -> None:
    """Losses as they come, then what they say; plain lines where there is no terminal."""
    interval = {"value": "3e-4", "low": "2e-4", "high": "4e-4"}
    answer = {"learningRate": interval, "batchSize": {"value": "64"}}
    first = {"learningRate": "3e-4", "batchSize": "64", "state": "Succeeded", "loss": "2.5123"}
    second = {"learningRate": "6e-4", "batchSize": "64", "state": "Active"}
    validation = {
        "tokens": 1_000_000,
        "progress": "1/2",
        "spentFlops": "1e13",
        "plannedFlops": "2e13",
    }

    def put(validated: tuple[str, str, str], probes: dict[str, Any], **status: Any) -> None:
        shown = {**answer, "validation": probes, **status}
        prediction = resource(("Ready", "True", "Predicted"), validated, **shown)
        prediction["spec"]["validation"] = {"tokensShare": "0.3"}
        put_in_cluster(
            scalingsweep__dense=resource(("Ready", "True", "Fitted")),
            hyperparamprediction__next=prediction,
        )

    training = ("Validated", "Unknown", "Training")
    put(training, {**validation, "places": [first, second]})
    view = read_view("hpred/next", "")
    assert not view.is_ready
    assert headline(view).endswith("batch size 64; probes 1/2 (2.5123), Training")
    assert "probes: Training: why" in shown(view)

    done = {**second, "state": "Succeeded", "loss": "2.5300"}
    done |= {"difference": "0.0177", "standardError": "0.004"}
    put(
        ("Validated", "True", "AnswerHolds"),
        {**validation, "progress": "2/2", "places": [first, done]},
        refined={"learningRate": interval},
    )
    ended = isoloss("watch", "hpred/next")
    assert ended.code == 0
    assert ended.out.endswith("probes 2/2 (2.5123 2.5300), Validated True: AnswerHolds\n")
    once = isoloss("watch", "hpred/next", "--once").out
    assert "with the probes learning rate: 3e-4 [2e-4, 4e-4]" in once


@pytest.mark.parametrize(
    ("status", "reason", "ends"),
    [
        ("False", "BetterAnswerNearby", True),
        ("Unknown", "WithinNoise", True),
        ("Unknown", "CheckpointDiffers", True),
        ("Unknown", "BudgetTooSmall", True),
        ("Unknown", "NoResults", True),
        ("Unknown", "Queued", False),
        ("Unknown", "AnswerAwaited", False),
    ],
)
def test_watching_ends_with_a_verdict_or_where_there_will_be_none(
    status: str, reason: str, ends: bool
) -> None:
    prediction = resource(("Ready", "True", "Predicted"), ("Validated", status, reason))
    prediction["spec"]["validation"] = {"tokensShare": "0.3"}
    assert View(resource(("Ready", "True", "Fitted")), prediction).is_ready is ends


def test_a_condition_of_an_earlier_generation_counts_for_nothing() -> None:
    ready, stalled = (
        resource(("Ready", "True", "Fitted")),
        resource(("Stalled", "True", "BadData")),
    )
    answered = resource(("Ready", "True", "Predicted"))
    assert View(ready, answered).is_ready
    assert not View(ready, {}).is_ready
    assert View(ready, stalled).stalled["reason"] == View(stalled, answered).stalled["reason"]
    for each in (ready, stalled):
        each["metadata"]["generation"] = 2
    assert not View(ready, answered).is_ready
    assert not View(stalled, answered).stalled


@pytest.mark.parametrize(
    ("given", "low", "says"),
    [(64, "64", "64 (given)"), (None, "64", "64 [64, 64]"), (64, "50", "64 [50, 64]")],
)
def test_a_batch_size_that_was_given_has_no_interval(
    given: int | None, low: str, says: str
) -> None:
    """Unless the answer is from before."""
    size = {"value": "64", "low": low, "high": "64"}
    prediction = resource(("Ready", "True", "Predicted"), batchSize=size)
    prediction["spec"]["batchSize"] = given
    view = View(resource(("Ready", "True", "Fitted")), prediction)
    assert answer_lines(view) == [f"predicted batch size: {says}"]


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        ("scalingsweep.isoloss.dev/dense", SWEEP),
        ("scalingsweeps.isoloss.dev/dense", SWEEP),
        ("ssweep/dense", SWEEP),
        ("hyperparamprediction.isoloss.dev/dense", PREDICTION),
    ],
)
def test_what_kubectl_prints_as_a_name_names_a_resource(argument: str, kind: str) -> None:
    """`kubectl get -o name` puts the group behind the kind."""
    assert resource_name(argument) == (kind, "dense")


@pytest.mark.parametrize("reason", ["LawsUnreadable", "DataRemoved"])
def test_a_stale_answer_is_called_so_with_what_the_watching_waits_for(reason: str) -> None:
    answer = {"learningRate": {"value": "3e-4"}, "batchSize": {"value": "64"}}
    stale = resource(("Ready", "True", "Predicted"), ("Stale", "True", reason), **answer)
    view = View(resource(("Ready", "True", "Fitted")), stale)
    lines = shown(view)
    assert not view.is_settled
    assert headline(view).endswith(f"learning rate 3e-4, batch size 64, stale: {reason}")
    assert f"answer, stale: {reason}: why" in lines
    stale["status"]["conditions"][1]["status"] = "False"
    assert not any("stale" in line for line in shown(view))


def test_a_stalled_resource_ends_with_3_and_a_missing_one_with_kubectls_words(
    isoloss: Isoloss, put_in_cluster: PutInCluster
) -> None:
    stalled = resource(("Stalled", "True", "BadData"), ("Ready", "False", "BadData"))
    put_in_cluster(scalingsweep__dense=stalled)
    assert isoloss("watch", "scalingsweep/dense").code == 3
    assert "other not found" in isoloss("watch", "scalingsweep/other").error


def test_without_kubectl_it_says_what_needs_none(
    isoloss: Isoloss, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = isoloss("watch", "scalingsweep/dense", "--once")
    assert "kubectl is not installed" in ended.error
    assert "give a sweep's URI in the store" in ended.error
