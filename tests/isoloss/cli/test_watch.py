"""`isoloss watch`: from the store and, through kubectl, from a cluster."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from isoloss.progress.moment import Moment, frame
from isoloss.progress.resource_reading import (
    PREDICTION,
    SWEEP,
    ResourceName,
    read_view,
    resource_name,
)
from isoloss.progress.resources import View, answer_lines, headline
from isoloss.progress.sweep_state import sweep_state
from isoloss_contract import layout
from isoloss_contract.ledger import Spend
from isoloss_contract.store import Store
from tests.isoloss.cli.conftest import PutInCluster
from tests.isoloss.progress.small_sweeps import done, ledger, record
from tests.support.command_line import Isoloss
from tests.support.ledgers import write_ledger
from tests.support.watched import resource, write_watched


@pytest.mark.parametrize("rows", [6, 10, 24])
def test_a_terminal_shows_frames_of_its_height_on_the_alternate_screen_and_keeps_the_last(
    isoloss: Isoloss, store: Store, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    points = [record(n, f"size-{n % 4}", batch=2**n, rate=1e-3 * n) for n in range(1, 12)]
    begun = ledger(done(100), *points)
    write_watched(store, begun, ("Ready", "False", "Training"), points={"total": 12})
    over = ledger(done(100), *(done(n, proxy=f"size-{n % 4}") for n in range(1, 12)))
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, height=rows, markup=False)
    monkeypatch.setattr("isoloss.cli.watching.console", lambda: terminal)

    def sleep(_: float) -> None:
        points = {"total": 12, "succeeded": 12}
        write_watched(store, over, ("Ready", "True", "Fitted"), points=points)

    monkeypatch.setattr("isoloss.cli.watching.time.sleep", sleep)
    ended = isoloss("watch", store.uri)
    assert ended.code == 0
    on, off = "\x1b[?1049h", "\x1b[?1049l"
    assert (screen.getvalue().count(on), screen.getvalue().count(off)) == (1, 1)
    frames = screen.getvalue().split(on)[1].split(off)[0].split("\x1b[H")
    shown = [frame for frame in frames if "points " in frame]
    assert len(shown) >= 2
    assert all(frame.count("\n") < rows for frame in shown)
    assert all("sweep: Training: why" in f or "sweep: Fitted: why" in f for f in shown)
    assert ended.out.startswith("points 12/12, laws fitted")


def test_a_single_picture_ends_with_0_whatever_it_shows(isoloss: Isoloss, store: Store) -> None:
    stored = ledger(done(1), record(2, rate=2e-3))
    write_watched(
        store, stored, ("Ready", "False", "Training"), points={"total": 2, "succeeded": 1}
    )
    ended = isoloss("watch", store.uri, "--once")
    assert ended.code == 0
    assert ended.out.startswith("points 1/2, 0 active, Training\nsweep: Training: why\n")
    assert "research/dense: 2 points: 1 finished, 1 waiting" in ended.out
    assert "*4.000    =" in ended.out
    found = isoloss("watch", store.uri, "--json").document
    assert found["ready"] is False
    assert found["sweep"]["points"] == {"total": 2, "succeeded": 1}
    assert [point["stage"] for point in found["points"]] == ["finished", "waiting"]


@pytest.mark.parametrize(
    ("ready", "says"),
    [
        (("Ready", "False", "Training"), "points 42/45, 3 failed, 0 active, Training"),
        (("Ready", "True", "Fitted"), "points 42/45, 3 failed, laws fitted"),
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


def test_before_the_operator_has_copied_a_status_the_points_are_shown_all_the_same(
    isoloss: Isoloss, store: Store
) -> None:
    write_ledger(store, ledger(done(1), record(2, rate=2e-3)))
    out = isoloss("watch", store.uri, "--once").out
    assert "waiting for the operator" in out
    assert "1 finished, 1 waiting" in out


def test_cost_is_compared_with_what_the_operator_plans(isoloss: Isoloss, store: Store) -> None:
    stored = ledger(done(1, spent=Spend(9e12)))
    write_watched(store, stored, ("Ready", "True", "Fitted"), plannedFlops="9e12")
    said = "cost so far 9e12 FLOPs, 100% of the whole grid's 9e12"
    assert said in isoloss("watch", store.uri, "--once").words


@pytest.mark.parametrize(
    ("content", "named"),
    [(b"{", "status.json"), (b'{"metadata": 5, "status": {}}', "metadata")],
)
def test_a_damaged_copy_of_the_status_is_refused_by_file_and_field(
    isoloss: Isoloss, store: Store, content: bytes, named: str
) -> None:
    stored = ledger(done(1))
    write_ledger(store, stored)
    path = layout.status_in(layout.sweep_folder(stored.sweep, stored.uid))
    store.write(path, content)
    ended = isoloss("watch", store.uri, "--once")
    assert path in ended.error
    assert named in ended.error


def test_watching_prints_a_line_per_change_and_outlives_a_store_that_fails(
    isoloss: Isoloss, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is printed for a reading that shows the same, a failed one is told, the last ends it."""
    going, over = ledger(done(1), record(2)), ledger(done(1), done(2))
    head = layout.ledger_in(layout.sweep_folder(going.sweep, going.uid))
    write_watched(
        store, going, ("Ready", "False", "Training"), points={"total": 2, "succeeded": 1}
    )
    pauses = iter(range(3))

    def sleep(_: float) -> None:
        pause = next(pauses)
        if pause == 1:
            store.write(head, b"{")
        elif pause == 2:
            points = {"total": 2, "succeeded": 2}
            write_watched(store, over, ("Ready", "True", "Fitted"), points=points)

    monkeypatch.setattr("isoloss.cli.watching.time.sleep", sleep)
    ended = isoloss("watch", store.uri)
    assert ended.code == 0
    first, failed, last = ended.out.splitlines()
    assert first == "points 1/2, 0 active, Training"
    assert failed.startswith("not read, shown as it was: ")
    assert head in failed
    assert last == "points 2/2, laws fitted"


def test_a_stalled_sweep_ends_the_watching_with_3(isoloss: Isoloss, store: Store) -> None:
    stored = ledger(record(1))
    conditions = ("Stalled", "True", "BadData"), ("Ready", "False", "BadData")
    write_watched(store, stored, *conditions)
    ended = isoloss("watch", store.uri)
    assert (ended.code, ended.err) == (3, "stalled: BadData: why\n")
    assert "sweep: BadData: why" in isoloss("watch", store.uri, "--once").out


def test_a_program_gets_what_the_screen_shows() -> None:
    """The reason beside the message, the laws with the joint surface, and why there are no maps."""
    stalled = View(resource(("Stalled", "True", "BadData"), ("Ready", "False", "BadData")))
    laws = ("learning rate: Provisional LR = 1", "joint surface: Fitted LR = 0.69 * N^-0.25")
    found = Moment(stalled, sweep_state(ledger(done(1)), {}, laws)).document()
    assert (found["stalled"], found["stalled_reason"]) == ("why", "BadData")
    assert (found["laws"], found["without"]) == (list(laws), None)
    law = {"status": "Provisional", "formula": "LR = 0.002 * L^0.8"}
    away = Moment(View(resource(learningRateLaw=law)), None, "s3://b: access denied").document()
    assert away["laws"] == ["law of the learning rate: Provisional LR = 0.002 * L^0.8"]
    assert away["without"] == "s3://b: access denied"
    assert (away["stalled"], away["stalled_reason"]) == (None, None)


def test_what_is_neither_a_uri_nor_a_resource_is_refused(isoloss: Isoloss, store: Store) -> None:
    other = "scalingsweep.example.org/dense"
    for what in ("dense", "pod/dense", "scalingsweep/", "scalingsweep/-o", other):
        ended = isoloss("watch", what, "--once")
        assert "scalingsweep/NAME or hyperparamprediction/NAME" in ended.error
    assert "--namespace" in isoloss("watch", store.uri, "-n", "research").error
    assert isoloss("watch", store.uri, "--once").code == 2, "no sweep there"


# ------------------------------------------------------------------------------- a cluster


def test_a_sweep_in_a_cluster_is_shown_with_its_maps_from_the_store(
    isoloss: Isoloss, store: Store, tmp_path: Path, put_in_cluster: PutInCluster
) -> None:
    stored = ledger(done(1), record(2, rate=2e-3))
    write_ledger(store, stored)
    head = store.location(layout.ledger_in(layout.sweep_folder(stored.sweep, stored.uid)))
    sweep = resource(("Ready", "False", "Training"), ledger={"uri": head}, points={"total": 2})
    put_in_cluster(scalingsweep__dense=sweep)
    ended = isoloss("watch", "scalingsweep/dense", "-n", "research", "--once")
    assert ended.code == 0
    assert "sweep: Training: why" in ended.out
    assert "*4.000    =" in ended.out
    called = (tmp_path / "calls").read_text()
    assert called.startswith("get scalingsweep.isoloss.dev dense --namespace research -o json")


def test_without_the_store_a_cluster_still_tells_counts_cost_and_why_there_are_no_maps(
    isoloss: Isoloss, tmp_path: Path, put_in_cluster: PutInCluster
) -> None:
    away = f"file://{tmp_path}/away/sweeps/dense-1/ledger.jsonl.gz"
    sweep = resource(
        ("Ready", "False", "Training"),
        ledger={"uri": away},
        points={"total": 21, "succeeded": 5, "active": 2},
        spentFlops="1e15",
        plannedFlops="4e15",
    )
    put_in_cluster(scalingsweep__dense=sweep)
    said = isoloss("watch", "ssweep/dense", "--once").words
    assert "points 5/21, 2 active, Training" in said
    assert "cost so far 1e15 FLOPs, the whole grid 4e15" in said
    assert f"no maps: {away.removesuffix('/ledger.jsonl.gz')}: no sweep there" in said


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
    view = read_view(resource_name("hpred/next", ""))
    assert not view.is_ready
    shown = frame(Moment(view, None), 100)
    assert headline(view).endswith("batch size 64; probes 1/2 (2.5123), Training")
    assert "probes: Training: why" in shown
    assert "probes of 1,000,000 tokens: 1/2, 1e13 FLOPs of 2e13" in shown
    assert re.search(r"^3e-4 +64 +Succeeded +2\.5123$", shown, re.MULTILINE)
    assert re.search(r"^6e-4 +64 +Active$", shown, re.MULTILINE)

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
    assert re.search(r"^6e-4 +64 +Succeeded +2\.5300 +0\.0177 \+- 0\.004$", once, re.MULTILINE)
    assert "with the probes learning rate: 3e-4 [2e-4, 4e-4]" in once


@pytest.mark.parametrize(
    ("status", "reason", "ends"),
    [
        ("False", "BetterAnswerNearby", True),
        ("Unknown", "WithinNoise", True),
        ("Unknown", "ProbesNotPossible", True),
        ("Unknown", "BudgetTooSmall", True),
        ("Unknown", "DataRemoved", True),
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
    assert resource_name(argument, "research") == ResourceName(kind, "dense", "research")


@pytest.mark.parametrize("reason", ["LawsUnreadable", "DataRemoved"])
def test_a_stale_answer_is_called_so_with_what_the_watching_waits_for(reason: str) -> None:
    answer = {"learningRate": {"value": "3e-4"}, "batchSize": {"value": "64"}}
    stale = resource(("Ready", "True", "Predicted"), ("Stale", "True", reason), **answer)
    view = View(resource(("Ready", "True", "Fitted")), stale)
    shown = frame(Moment(view, None), 80)
    assert not view.is_settled
    assert headline(view).endswith(f"learning rate 3e-4, batch size 64, stale: {reason}")
    assert f"answer, stale: {reason}: why" in shown.splitlines()
    stale["status"]["conditions"][1]["status"] = "False"
    assert "stale" not in frame(Moment(view, None), 80)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_frame_is_folded_between_words_and_a_path_stays_whole(width: int) -> None:
    """A terminal cuts off what is wider than it."""
    losses = [f"2.65{n:02}" for n in range(5)]
    places = [{"learningRate": "2e-4", "batchSize": "64", "loss": loss} for loss in losses]
    prediction = resource(
        ("Ready", "True", "Predicted"),
        ("Validated", "True", "AnswerHolds"),
        learningRate={"value": "2.06e-4", "low": "1.2e-4", "high": "3.52e-4"},
        batchSize={"value": "64"},
        validation={"progress": "5/5", "tokens": 1_500_000_000, "places": places},
    )
    law = {"status": "Provisional", "formula": "LR = 0.001991 * L^0.8147 and more of its formula"}
    sweep = resource(("Ready", "True", "Fitted"), points={"total": 45}, learningRateLaw=law)
    path = f"file:///{'a-folder/' * 20}head.json:"
    moment = Moment(View(sweep, prediction), None, f"{path} not found")
    lines = frame(moment, width).splitlines()
    assert [line for line in lines if len(line) > width] == [path]
    assert " ".join(lines).startswith(headline(moment.view))


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
    assert "in the store needs none" in ended.error
