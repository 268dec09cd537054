"""Exports of trackers and logs of trainers give the runs that were trained, and say what was taken for what.

What the folder `exports` has, the tools wrote themselves, by the script that commit c1145d82 has; W&B's are in its format.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from isoloss import read_runs
from isoloss.errors import BadInput
from isoloss.runs import RunSet
from tests.support.command_line import Isoloss
from tests.support.synthetic_runs import NOISE, bowl

FOLDER = Path(__file__).parent / "exports"
LENGTH = 2048
STEP_TOKENS = 512 * LENGTH
"""Tokens are multiples of it, so that every batch size has them after whole steps."""


@dataclass(frozen=True)
class Trained:
    """A run as its trainer knew it."""

    name: str
    params: int
    batch_size: int
    learning_rate: float
    steps: tuple[int, ...]
    losses: tuple[float, ...]


def trained() -> list[Trained]:
    """The runs of the sweep, on the surface of `synthetic_runs`."""
    rng = np.random.default_rng(0)
    found = []
    for size, batch, rate in itertools.product(
        (30e6, 100e6), (32, 128, 512), (1.25e-4, 3.5e-4, 1e-3)
    ):
        ends = np.geomspace(0.5e9, 60 * size + 3e9, 6)
        tokens = np.round(ends / STEP_TOKENS) * STEP_TOKENS
        losses = 1.7 + 400 / size**0.34 + 410 / tokens**0.28 + bowl(rate, batch, size, tokens)
        losses += NOISE * rng.standard_normal(6)
        found.append(
            Trained(
                name=f"n{size / 1e6:.0f}m-b{batch}-lr{rate:g}",
                params=int(size),
                batch_size=batch,
                learning_rate=rate,
                steps=tuple(int(each) for each in tokens / batch / LENGTH),
                losses=tuple(round(float(each), 4) for each in losses),
            )
        )
    return found


TRAINED = {run.name: run for run in trained()}
WANDB_RUNS = f"{FOLDER}/wandb/runs.csv"
EXPORTS: Mapping[str, tuple[str, tuple[str, ...], str | None]] = {
    "W&B's line panel": ("wandb/panel.csv", (), WANDB_RUNS),
    "W&B's history": ("wandb/history.csv", (), WANDB_RUNS),
    "W&B's history as Parquet": ("wandb/history.parquet", (), WANDB_RUNS),
    "TensorBoard": ("tensorboard/*.csv", ("loss=Value",), WANDB_RUNS),
    "MLflow": ("mlflow/history.csv", (), f"{FOLDER}/mlflow/runs.csv"),
    "Trackio": ("trackio/metrics.parquet", (), f"{FOLDER}/trackio/configs.parquet"),
    "HF Trainer": (
        "trainer/*/trainer_state.json",
        (f"sequence_length={LENGTH}",),
        f"{FOLDER}/trainer/settings.csv",
    ),
}
"""Files, `--column` and `--settings`."""


def read(export: str) -> RunSet:
    files, columns, settings = EXPORTS[export]
    return read_runs(*sorted(FOLDER.glob(files)), columns=columns, settings=settings)


def by_name(found: RunSet) -> dict[str, Trained]:
    """The runs as they were trained; those that have only an id come in the order of training."""
    names = {run.name: run.name for run in found.runs}
    if not set(names) & set(TRAINED):
        names = dict(zip(names, TRAINED, strict=True))
    return {
        names[run.name]: Trained(
            names[run.name],
            int(run.params),
            int(run.batch_size),
            run.learning_rate,
            tuple(int(each / run.batch_size / run.sequence_length) for each in run.tokens),
            tuple(round(float(each), 4) for each in run.losses),
        )
        for run in found.runs
    }


def test_a_table_of_settings_among_the_runs_is_told_where_it_belongs() -> None:
    with pytest.raises(
        BadInput, match=r"tokens, loss; .* it has settings alone: give it as --sett"
    ):
        read_runs(*sorted(FOLDER.glob("trackio/*.parquet")))


def test_a_log_in_the_folder_where_the_command_is_typed_is_named_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (first, *_) = sorted(FOLDER.glob("trainer/*"))
    monkeypatch.chdir(first)
    given = read_runs(
        "trainer_state.json",
        columns=(f"sequence_length={LENGTH}",),
        settings=f"{FOLDER}/trainer/settings.csv",
    )
    assert [run.name for run in given.runs] == [first.name]


@pytest.mark.parametrize("export", EXPORTS)
def test_an_export_gives_the_runs_that_were_trained(export: str) -> None:
    assert by_name(read(export)) == TRAINED


@pytest.mark.parametrize(
    ("export", "rows"),
    [("W&B's history", 144), ("Trackio", 144), ("W&B's line panel", 0), ("MLflow", 0)],
)
def test_rows_without_a_loss_are_counted(export: str, rows: int) -> None:
    assert read(export).read[0].rows_without_loss == rows


def test_the_runs_table_of_wandb_has_the_last_evaluation_of_each_run() -> None:
    found = read_runs(WANDB_RUNS)
    assert len(found.runs) == 54
    for run in found.runs:
        if run.name in TRAINED:
            own = TRAINED[run.name]
            assert run.losses.tolist() == [own.losses[-1]]
            assert run.tokens.tolist() == [own.steps[-1] * own.batch_size * LENGTH]
    counts, last = found.warnings
    assert "step: _step counts W&B's log calls unless the trainer passes step=" in counts
    assert (
        "its last eval/loss and its last _step*batch_size*sequence_length are taken for one"
        in last
    )


def test_a_warning_of_many_tables_is_said_once(tmp_path: Path) -> None:
    for run in list(TRAINED.values())[:3]:
        lines = [f"{step},{loss}" for step, loss in zip(run.steps, run.losses, strict=True)]
        (tmp_path / f"{run.name}.csv").write_text("\n".join(["_step,eval/loss", *lines]))
    found = read_runs(*sorted(tmp_path.glob("*.csv")), settings=WANDB_RUNS)
    (warning,) = found.warnings
    assert " and 2 more: step: _step counts" in warning


@pytest.mark.parametrize("name", ["run-NAME-tag-eval_loss.csv", "run-NAME-tag-eval_loss (1).csv"])
def test_the_tag_in_a_file_of_tensorboard_says_what_its_value_is(
    tmp_path: Path, name: str
) -> None:
    own = TRAINED["n30m-b32-lr0.001"]
    file = tmp_path / name.replace("NAME", own.name)
    file.write_bytes((FOLDER / "tensorboard" / f"{own.name}.csv").read_bytes())
    found = read_runs(file, settings=WANDB_RUNS)
    assert by_name(found) == {own.name: own}
    assert found.read[0].columns["loss"] == "eval/loss"


def test_an_index_that_pandas_wrote_hides_no_export_of_tensorboard(tmp_path: Path) -> None:
    own = TRAINED["n30m-b32-lr0.001"]
    header, *lines = (FOLDER / "tensorboard" / f"{own.name}.csv").read_text().splitlines()
    rows = [f"{number},{line}" for number, line in enumerate(lines)]
    file = tmp_path / f"{own.name}-tag-eval_loss.csv"
    file.write_text("\n".join([f",{header}", *rows]))
    assert by_name(read_runs(file, settings=WANDB_RUNS)) == {own.name: own}


@pytest.mark.parametrize(
    "folder", ["NAME/version_0", "NAME", "lightning_logs/NAME", "logs/NAME/version_12"]
)
def test_a_log_of_lightning_is_named_as_its_folder(tmp_path: Path, folder: str) -> None:
    own = TRAINED["n30m-b32-lr0.001"]
    file = tmp_path / folder.replace("NAME", own.name) / "metrics.csv"
    file.parent.mkdir(parents=True)
    rows = [f"{step},,{loss}" for step, loss in zip(own.steps, own.losses, strict=True)]
    file.write_text("\n".join(["step,train_loss,val_loss", *rows]))
    found = read_runs(file, settings=WANDB_RUNS)
    assert by_name(found) == {own.name: own}
    assert found.read[0].columns["run"] == "the folder's name"


def test_versions_that_lightning_numbered_are_told_apart(tmp_path: Path) -> None:
    for number in (0, 1):
        folder = tmp_path / "lightning_logs" / f"version_{number}"
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(f"step,val_loss,lr\n100,3.{number},1e-3")
    given = ("params=1e8", "batch_size=64", "sequence_length=512", "learning_rate=lr")
    found = read_runs(*sorted(tmp_path.rglob("*.csv")), columns=given)
    assert [run.name for run in found.runs] == ["version_0", "version_1"]


@pytest.mark.parametrize(("run", "loss"), [("run.hash", "held out"), ("Run (id)", "val-loss")])
def test_columns_that_are_no_words_are_taken_beside_settings(
    tmp_path: Path, run: str, loss: str
) -> None:
    own = TRAINED["n30m-b32-lr0.001"]
    rows = [f"{own.name},{s},{loss}" for s, loss in zip(own.steps, own.losses, strict=True)]
    (tmp_path / "log.csv").write_text("\n".join([f"{run},step,{loss}", *rows]))
    columns = (f"run={run}", f"loss={loss}")
    found = read_runs(tmp_path / "log.csv", columns=columns, settings=WANDB_RUNS)
    assert by_name(found) == {own.name: own}


def test_one_option_may_be_text(tmp_path: Path) -> None:
    own = FOLDER / "tensorboard" / "n30m-b32-lr0.001.csv"
    assert read_runs(own, columns="loss=Value", settings=WANDB_RUNS).runs


def test_tensorboard_does_not_tell_whose_value_it_is_where_no_tag_is_in_the_name() -> None:
    file = next((FOLDER / "tensorboard").glob("*.csv"))
    with pytest.raises(
        BadInput,
        match=r"column loss: missing; found step, Value; name it: --column loss=EXPRESSION \(did you mean Value",
    ):
        read_runs(file, settings=WANDB_RUNS)


def test_steps_that_a_resumed_run_did_again_are_refused(tmp_path: Path) -> None:
    """TensorBoard's reader gives both, the earlier ones first (findings/steps-of-resumed-runs-in-tensorboard.sh)."""
    name = "n100m-b128-lr0.000125.csv"
    text = (FOLDER / "tensorboard" / name).read_text()
    *_, last = text.splitlines()
    wall, step, loss = last.split(",")
    (tmp_path / name).write_text(f"{text}{wall},{step},{float(loss) - 0.1}\n")
    with pytest.raises(
        BadInput, match="steps that a resumed run repeated: remove the earlier rows"
    ):
        read_runs(tmp_path / name, columns=("loss=Value",), settings=WANDB_RUNS)


def test_a_checkpoint_of_the_trainer_is_named_as_its_run(tmp_path: Path) -> None:
    own = TRAINED["n30m-b32-lr0.001"]
    folder = tmp_path / own.name / "checkpoint-500"
    folder.mkdir(parents=True)
    text = (FOLDER / "trainer" / own.name / "trainer_state.json").read_text()
    (folder / "trainer_state.json").write_text(text)
    found = read_runs(folder / "trainer_state.json", settings=WANDB_RUNS)
    assert by_name(found) == {own.name: own}


NO_LOG = "trainer_state.json: not a trainer_state.json: it has no"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(
            (text, NO_LOG)
            for text in ("", "[]", "{}", '{"log_history": 3}', '{"log_history": [1]}')
        ),
        (
            '{"log_history": [{"step": 1, "eval_loss": 2.5, "eval_loss": 3.5}]}',
            "trainer_state.json: the key 'eval_loss' is there twice",
        ),
        ('{"log_history": []}', "empty"),
    ],
)
def test_what_is_no_log_of_the_trainer_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "trainer_state.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=says):
        read_runs(file)


def test_data_frames_are_read_as_exports_are() -> None:
    history = pyarrow.parquet.read_table(FOLDER / "trackio" / "metrics.parquet")
    configs = pyarrow.parquet.read_table(FOLDER / "trackio" / "configs.parquet")
    assert by_name(read_runs(history, settings=configs)) == TRAINED


# ------------------------------------------------------------------------- from a file to an answer


@pytest.mark.parametrize("export", ["W&B's runs table", *EXPORTS])
def test_from_an_export_to_an_answer_in_two_commands_and_in_one(
    isoloss: Isoloss, tmp_path: Path, export: str
) -> None:
    files, columns, settings = EXPORTS.get(export, ("wandb/runs.csv", (), None))
    options = [part for each in columns for part in ("--column", each)]
    options += ["--settings", settings] if settings else []
    laws = tmp_path / "laws.json"
    fitted = isoloss(
        "fit", *sorted(FOLDER.glob(files)), *options, "--out", laws, "--bootstrap-samples", 20
    )
    assert fitted.code == 0, fitted.err
    assert "loss: " in fitted.out.splitlines()[0]
    question = ("--initial-loss", "3.0", "--cpt-tokens", "2B", "--params", "200M")
    answer = isoloss("predict", laws, *question, "--json").document
    at_once = isoloss(
        "predict", *sorted(FOLDER.glob(files)), *options, *question, "--json"
    ).document
    assert at_once["learning_rate"]["value"] == pytest.approx(answer["learning_rate"]["value"])
    # The optimum of the surface is 3.3e-4 and 100 sequences for 10B tokens in all, of which 2B are to come.
    assert 1.5e-4 / 2 < answer["learning_rate"]["value"] < 1.5e-4 * 2
    assert 180 / 2 < answer["batch_size"]["value"] < 180 * 2


def test_what_was_read_is_in_the_json_of_a_fit(isoloss: Isoloss) -> None:
    document = isoloss(
        "fit",
        FOLDER / "wandb/history.csv",
        "--settings",
        WANDB_RUNS,
        "--bootstrap-samples",
        20,
        "--json",
    ).document
    (read,) = document["read"]
    assert read["columns"]["loss"] == "eval/loss"
    assert read["rows_without_loss"] == 144
    assert read["from_settings"] == ["params", "batch_size", "sequence_length", "learning_rate"]


@pytest.mark.parametrize("command", ["predict", "validate"])
def test_what_was_read_is_in_the_json_of_a_refusal(
    isoloss: Isoloss, synthetic_laws: Path, command: str
) -> None:
    files, _, settings = EXPORTS["W&B's history"]
    laws = [synthetic_laws] if command == "validate" else []
    asked = ("--initial-loss", "2.9", "--cpt-flops", "1e27", "--settings", settings, "--json")
    ended = isoloss(command, *laws, FOLDER / files, *asked)
    assert ended.code == 3, ended.err
    (read,) = ended.document["read"]
    assert read["columns"]["loss"] == "eval/loss"


def test_a_table_with_our_columns_says_nothing_of_what_was_read(
    isoloss: Isoloss, synthetic_table: Path
) -> None:
    ended = isoloss("fit", synthetic_table, "--bootstrap-samples", 20, "--json")
    assert ended.document["read"] == []


@pytest.mark.parametrize(
    ("log", "settings", "state", "reported"),
    [
        (
            "wandb/runs.csv",
            None,
            ("finished", "crashed"),
            "State: runs that did not finish (crashed): 1 (",
        ),
        (
            "wandb/history.csv",
            "wandb/runs.csv",
            ("finished", "killed"),
            "): runs that did not finish (killed): 1 (",
        ),
        (
            "mlflow/history.csv",
            "mlflow/runs.csv",
            ("FINISHED", "FAILED"),
            "): runs that did not finish (failed): 1 (",
        ),
    ],
)
def test_runs_that_the_tracker_says_did_not_finish_are_named(
    tmp_path: Path, log: str, settings: str | None, state: tuple[str, str], reported: str
) -> None:
    changed = tmp_path / "runs.csv"
    changed.write_text((FOLDER / (settings or log)).read_text().replace(*state, 1))
    found = read_runs(
        FOLDER / log if settings else changed, settings=changed if settings else None
    )
    assert [
        each for each in found.warnings if reported in each and "mark those that diverged" in each
    ]
