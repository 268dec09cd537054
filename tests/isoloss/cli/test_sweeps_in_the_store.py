"""RUNS and LAWS may name a sweep in the store: found by its URI, read strictly."""

import json
from pathlib import Path

import pytest

from isoloss.laws import laws_to_json
from isoloss.stored_sweeps import BadSweep, open_sweep, sweep_runs
from isoloss_contract import layout
from isoloss_contract.records import PointResult
from isoloss_contract.store import Store, StoreUnavailable
from tests.support.command_line import Isoloss
from tests.support.ledgers import with_head
from tests.support.pages import draw_empty_figures
from tests.support.stored_sweep import UID, write_sweep
from tests.support.synthetic_runs import fitted_laws, synthetic_runs


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """With the one sweep of `write_sweep`, for tests that write nothing to it."""
    store = Store(f"file://{tmp_path_factory.mktemp('swept')}")
    write_sweep(store)
    return store


@pytest.fixture(scope="module")
def twice_swept(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """With two sweeps, for tests that write nothing to them."""
    store = Store(f"file://{tmp_path_factory.mktemp('twice')}")
    write_sweep(store)
    write_sweep(store, name="dense-2", uid=UID.replace("1", "2"))
    return store


def write_laws(store: Store) -> None:
    """Those of the sweep of `write_sweep`."""
    content = json.dumps(laws_to_json(fitted_laws())).encode()
    store.write(layout.laws_in(layout.sweep_folder("dense", UID)), content)


@pytest.mark.parametrize("suffix", [f"/sweeps/dense-{UID}", "/sweeps/dense", "", "/"])
def test_a_sweep_is_found_by_folder_by_name_or_alone(swept: Store, suffix: str) -> None:
    assert open_sweep(swept.uri + suffix).ledger.sweep == "dense"


def test_a_bucket_called_sweeps_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def store(uri: str) -> Store:
        asked.append(uri)
        raise StoreUnavailable("no network here")

    monkeypatch.setattr("isoloss.stored_sweeps.Store", store)
    for uri in ("s3://sweeps/lm", "s3://sweeps/lm/sweeps/dense", "s3://lm/sweeps/dense"):
        with pytest.raises(BadSweep, match="no network here"):
            open_sweep(uri)
    assert asked == ["s3://sweeps/lm", "s3://sweeps/lm", "s3://lm"]


def test_a_sweep_gives_its_runs_with_their_states(swept: Store) -> None:
    found = sweep_runs(open_sweep(swept.uri))
    synthetic = {run.name: run for run in synthetic_runs()}
    assert {run.name for run in found.runs} == set(synthetic)
    for run in found.runs:
        assert run.diverged == synthetic[run.name].diverged
        assert run.finished == synthetic[run.name].finished
        assert run.losses.tolist() == synthetic[run.name].losses.tolist()
        assert run.loss_kind == "averaged"


def test_raw_weights_are_read_when_asked_for(swept: Store) -> None:
    run = sweep_runs(open_sweep(swept.uri), "raw").runs[0]
    assert run.losses.tolist() == pytest.approx((synthetic_runs()[0].losses + 0.01).tolist())


def test_a_fit_of_a_running_sweep_is_provisional(isoloss: Isoloss, swept: Store) -> None:
    document = isoloss("fit", swept.uri, "--json").document
    assert document["learning_rate"]["status"] == "provisional"


def test_laws_of_a_sweep_answer_predictions(isoloss: Isoloss, store: Store) -> None:
    write_sweep(store)
    write_laws(store)
    assert isoloss("predict", store.uri, "--total-flops", "3e19", "--json").code == 0


def test_a_report_says_what_a_search_has_chosen_as_the_operators_page_does(
    isoloss: Isoloss, store: Store, tmp_path: Path
) -> None:
    write_sweep(store)
    write_laws(store)
    metadata = {"name": "dense", "namespace": "research", "uid": UID, "generation": 1}
    search = {"finished": 3, "paused": 4, "savedFlops": "1.8e13"}
    beside = {"metadata": metadata, "status": {"search": search}}
    path = layout.page_status_in(layout.sweep_folder("dense", UID))
    store.write(path, json.dumps(beside).encode())
    page = tmp_path / "report.html"
    with draw_empty_figures:
        assert isoloss("report", store.uri, "--out", page).code == 0
    assert "3 finished, 4 stopped on the way; 1.8e13 FLOPs saved." in page.read_text()


def test_a_sweep_without_laws_yet_says_how_to_make_them(isoloss: Isoloss, swept: Store) -> None:
    assert "isoloss fit" in isoloss("predict", swept.uri, "--total-flops", "3e19", "--json").error


@pytest.mark.parametrize(
    ("suffix", "says"),
    [
        ("", "several sweeps there, name one of"),
        ("/sweeps/moe", "no sweep there"),
        ("/sweeps/dense/laws.json", "not a file inside it"),
    ],
)
def test_a_uri_that_names_no_single_sweep_is_refused(
    twice_swept: Store, suffix: str, says: str
) -> None:
    with pytest.raises(BadSweep, match=says):
        open_sweep(twice_swept.uri + suffix)
    assert open_sweep(f"{twice_swept.uri}/sweeps/dense").ledger.sweep == "dense"


def test_a_changed_trajectory_is_refused_by_its_uri(isoloss: Isoloss, store: Store) -> None:
    ledger = write_sweep(store)
    key = ledger.points[0].key
    result = store.read_record(layout.point_result(key), PointResult)
    path = layout.finished_trajectory(key, result.trajectory_sha256)
    store.write(path, store.read(path).replace(b'averaged_loss":4', b'averaged_loss":3'))
    ended = isoloss("fit", store.uri, "--json")
    assert path in ended.error
    assert "digest" in ended.error


def test_settings_of_a_point_that_were_changed_by_hand_are_refused_by_their_file(
    isoloss: Isoloss, store: Store
) -> None:
    """A point's folder is named by the digest of its settings: other ones would fit as smoothly."""
    path = layout.point_config(write_sweep(store).points[0].key)
    document = json.loads(store.read(path))
    document["learning_rate"] *= 2
    store.write(path, json.dumps(document).encode())
    assert f"{path}: is not the configuration that its folder" in isoloss("fit", store.uri).error


def test_a_count_of_parameters_that_was_changed_by_hand_is_refused_by_its_file(
    isoloss: Isoloss, store: Store
) -> None:
    """All points of a size have one model."""
    path = layout.point_result(write_sweep(store).points[0].key)
    document = json.loads(store.read(path))
    document["parameters"]["body_active"] *= 2
    store.write(path, json.dumps(document).encode())
    found = isoloss("fit", store.uri).error
    assert "parameters: are not those of" in found
    assert path in found


def test_a_damaged_ledger_is_refused_by_its_field(store: Store) -> None:
    write_sweep(store)
    path = layout.ledger_in(layout.sweep_folder("dense", UID))
    store.write(path, with_head(store.read(path), namespace=None))
    with pytest.raises(BadSweep, match=r"ledger\.jsonl\.gz: namespace"):
        open_sweep(f"{store.uri}/sweeps/dense-{UID}")


def test_the_damaged_ledger_of_another_sweep_is_not_read(store: Store) -> None:
    """Its name begins like that which is asked for."""
    write_sweep(store)
    store.write(layout.ledger_in(layout.sweep_folder("dense-2", UID)), b"{")
    assert open_sweep(f"{store.uri}/sweeps/dense").ledger.sweep == "dense"


def test_sweeps_on_different_corpora_are_not_mixed(isoloss: Isoloss, store: Store) -> None:
    write_sweep(store)
    write_sweep(store, name="other", uid=UID.replace("1", "3"), digest="b")
    ended = isoloss("fit", f"{store.uri}/sweeps/dense", f"{store.uri}/sweeps/other", "--json")
    assert "different corpora" in ended.error


def test_a_point_that_never_started_is_mentioned_and_left_out(store: Store) -> None:
    ledger = write_sweep(store)
    store.remove(layout.point_folder(ledger.points[-1].key))
    found = sweep_runs(open_sweep(store.uri))
    assert len(found.runs) == len(ledger.points) - 1
    assert found.warnings == (f"{ledger.points[-1].name}: not started",)
