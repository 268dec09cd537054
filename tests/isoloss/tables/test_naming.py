"""Which column is taken for which, and every case where the right one cannot be known: refused, or said in a warning."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from isoloss import datasets, read_runs
from isoloss.tables import BadTable, Naming, RunTable, known_names, naming_of, parse_table
from tests.support.command_line import Isoloss
from tests.support.pages import CHECKOUT

Columns = Mapping[str, Sequence[Any]]
LOGGED: Columns = {
    "run": ["a", "a", "a", "b", "b", "b"],
    "params": [1e8] * 6,
    "batch_size": [64] * 6,
    "sequence_length": [2048] * 6,
    "learning_rate": [3e-4] * 3 + [6e-4] * 3,
    "global_step": [""] * 6,
    "train/global_step": [1000, 2000, 4000] * 2,
    "eval/loss": [3.4, 3.2, 3.0, 3.5, 3.3, 3.1],
}
"""Two runs of three evaluations as a tracker has them."""
SETTINGS: Columns = {
    "Name": ["a", "b"],
    "params": [1e8, 1e8],
    "batch_size": [64, 64],
    "sequence_length": [2048, 2048],
    "learning_rate": [3e-4, 6e-4],
}
PER_DEVICE: Columns = {
    **{name: cells for name, cells in LOGGED.items() if name != "batch_size"},
    "per_device_train_batch_size": [8] * 6,
    "gradient_accumulation_steps": [2] * 6,
}
"""With the batch of one device in place of all."""
TRACKED = ("run", "train/global_step", "eval/loss")
"""Columns of LOGGED without those of SETTINGS."""


CONSTANT_CELLS: Columns = {
    "params": [1e8] * 6,
    "batch_size": [64] * 6,
    "sequence_length": [2048] * 6,
    "learning_rate": [3e-4] * 6,
}


def changed(columns: Columns = LOGGED, /, **changes: Any) -> dict[str, Sequence[Any]]:
    """The columns with others; None: without one; a value that is no list: the same in all six rows."""
    return {
        name: cells if isinstance(cells, list) else [cells] * 6
        for name, cells in {**columns, **changes}.items()
        if cells is not None
    }


def content(columns: Columns) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([columns, *zip(*columns.values(), strict=True)])
    return text.getvalue().encode()


def read(columns: Columns, naming: Naming | None = None, source: str = "log.csv") -> RunTable:
    return parse_table(content(columns), source, naming or naming_of())


def read_with(settings: Columns, columns: Columns, tmp_path: Path) -> RunTable:
    """The columns of LOGGED that a tracker has, and these, with a table of settings."""
    (tmp_path / "settings.csv").write_bytes(content(settings))
    own = {name: cells for name, cells in LOGGED.items() if name in TRACKED}
    return read({**own, **columns}, naming_of(settings=str(tmp_path / "settings.csv")))


def refusal(columns: Columns, naming: Naming | None = None, source: str = "log.csv") -> str:
    with pytest.raises(BadTable) as refused:
        read(columns, naming, source)
    return str(refused.value)


def test_what_is_known_is_taken_and_said() -> None:
    table = read(LOGGED)
    assert [run.losses.tolist() for run in table.runs] == [[3.4, 3.2, 3.0], [3.5, 3.3, 3.1]]
    assert table.runs[0].tokens.tolist() == [n * 64 * 2048 for n in (1000, 2000, 4000)]
    assert table.warnings == ()
    assert table.read[0].in_words() == (
        "log.csv: tokens: train/global_step*batch_size*sequence_length; loss: eval/loss; "
        "as named: run, params, batch_size, sequence_length, learning_rate"
    )


LOSSES = LOGGED["eval/loss"]
STEPS = LOGGED["train/global_step"]
RISING = [1e-5, 3e-4, 3e-5, 1e-5, 6e-4, 6e-5]
"""Learning rates of two schedules."""
TAKEN: Mapping[str, tuple[Mapping[str, Any], str, Any, str]] = {
    # What LOGGED has else or besides; a field of its first run, its value, and what it was taken from.
    "two losses of one value are no question": ({"val/loss": LOSSES}, "losses", 3.4, "eval/loss"),
    "a held-out loss comes before a training loss": (
        {"train/loss": 3.0, "loss": 2.9},
        *("losses", 3.4, "eval/loss"),
    ),
    "the batch of one device is multiplied": (
        {**PER_DEVICE, "batch_size": None, "world_size": 4},
        *("batch_size", 64, "per_device_train_batch_size*gradient_accumulation_steps*world_size"),
    ),
    "a world size counts the devices of all nodes": (
        {**PER_DEVICE, "batch_size": None, "world_size": 4, "num_nodes": 2},
        *("batch_size", 64, "per_device_train_batch_size*gradient_accumulation_steps*world_size"),
    ),
    "a global batch comes before that of a device": (
        {"batch_size": None, "global_batch_size": 512, "micro_batch_size": 8},
        *("batch_size", 512, "global_batch_size"),
    ),
    "nanochat's batch is in tokens": (
        {
            "batch_size": None,
            "sequence_length": None,
            "total_batch_size": 524288,
            "max_seq_len": 2048,
            "device_batch_size": 32,
        },
        *("batch_size", 256, "total_batch_size/sequence_length"),
    ),
    "a schedule is taken at its peak": (
        {"learning_rate": None, "train/learning_rate": RISING},
        *("learning_rate", 3e-4, "peak of train/learning_rate"),
    ),
    "the peak may be in a row without a loss": (
        {"learning_rate": None, "lr": RISING, "eval/loss": [3.4, "", 3.0, 3.5, "", 3.1]},
        *("learning_rate", 3e-4, "peak of lr"),
    ),
    "tokens that are logged come before steps": (
        {"train/num_input_tokens_seen": [1e9, 2e9, 4e9] * 2, "train/global_step": None},
        *("tokens", 1e9, "train/num_input_tokens_seen"),
    ),
    **{
        f"tokens may lack padding, a share of {share}": (
            {"n_tokens_seen": [n * 64 * 2048 * share for n in STEPS]},
            *("tokens", 1000 * 64 * 2048 * share, "n_tokens_seen"),
        )
        for share in (1.0, 0.93, 0.6)
    },
    "nanoGPT's iterations come before a count of log calls": (
        {"train/global_step": None, "iter": [250, 500, 750] * 2, "_step": [0, 1, 2] * 2},
        *("tokens", 250 * 64 * 2048, "iter*batch_size*sequence_length"),
    ),
    "the trainer's step comes before a count of log calls": (
        {"_step": [1, 2, 3] * 2, "step": [0, 1, 2] * 2},
        *("tokens", 1000 * 64 * 2048, "train/global_step*batch_size*sequence_length"),
    ),
    "MLflow's settings have a prefix": (
        {"params": None, "params.params": 1e8},
        *("params", 1e8, "params.params"),
    ),
    "W&B's settings have a prefix": (
        {"params": None, "config.params": 1e8},
        *("params", 1e8, "config.params"),
    ),
    "routers that log nothing add nothing": (
        {"output_router_logits": False},
        *("losses", 3.4, "eval/loss"),
    ),
}


@pytest.mark.parametrize("fact", TAKEN)
def test_what_is_meant_is_taken_without_a_warning(fact: str) -> None:
    changes, field, value, taken_from = TAKEN[fact]
    table = read(changed(**changes))
    found = getattr(table.runs[0], field)
    assert (found if np.isscalar(found) else found[0]) == pytest.approx(value)
    assert table.read[0].columns["loss" if field == "losses" else field] == taken_from
    assert table.warnings == ()
    rates = [3e-4, 6e-4]
    assert [run.learning_rate for run in table.runs] == rates


TWO_LOSSES = "--column loss=eval/loss or --column loss=val/loss"
REFUSED: Mapping[str, tuple[Mapping[str, Any], *tuple[str, ...]]] = {
    # What LOGGED has else or besides, and what the message says.
    "two losses that differ": (
        {"val/loss": [3.41, 3.2, 3.0, 3.5, 3.3, 3.1]},
        "log.csv: row 2, column loss: eval/loss (3.4) and val/loss (3.41) could both be it",
        TWO_LOSSES,
    ),
    "two losses in different rows": (
        {"eval/loss": [3.4, "", 3.0, 3.5, "", 3.1], "val/loss": ["", 3.2, "", "", 3.3, ""]},
        TWO_LOSSES,
    ),
    "the mean training loss of a trainer": (
        {"eval/loss": None, "train/train_loss": LOSSES},
        *("column loss: missing", "did you mean train/train_loss?"),
    ),
    "losses that end with NaN in every run": (
        {"eval/loss": [3.4, 3.2, "NaN", 3.5, 3.3, "NaN"]},
        "row 4, column loss: every run has a loss of NaN",
    ),
    **{
        f"the batch of one device beside {', '.join(known) or 'nothing'}": (
            {"batch_size": None, "per_device_train_batch_size": 8, **known},
            "per_device_train_batch_size is the batch of one device: give the sequences per",
            "--column 'batch_size=per_device_train_batch_size*",
        )
        for known in (
            dict[str, int](),
            {"gradient_accumulation_steps": 4},
            {"world_size": 4},
            {"gradient_accumulation_steps": 2, "world_size": 4, "num_gpus": 8},
        )
    },
    "a batch size of another name": (
        {"batch_size": None, "bs": 64, "micro_batch": 8},
        "column batch_size: missing; found run",
    ),
    "two batch sizes": ({"global_batch_size": 512}, "could both be it"),
    "nanochat's learning rates of each kind of matrix": (
        {"learning_rate": None, "matrix_lr": 0.02, "embedding_lr": 0.3},
        *("column learning_rate: missing", "matrix_lr or embedding_lr"),
    ),
    "names of runs in another column": (
        {
            "run": None,
            "learning_rate": None,
            "lr": RISING,
            "experiment": [*"xyzuvw"],
            "train/global_step": [1, 2, 3, 4, 5, 6],
        },
        *("column run: missing", "--column run=experiment"),
    ),
    "neither names of runs nor steps": (
        {"run": None, "tokens": [1e9, 2e9, 4e9] * 2, "train/global_step": None},
        "column run: missing",
    ),
    "a setting among metrics": (
        {"params": None, "metrics.params": 1e8},
        "column params: missing",
    ),
    "a loss among settings": (
        {"eval/loss": None, "params.eval_loss": LOSSES},
        "column loss: missing",
    ),
    "dictionaries, as in the table that W&B's documentation of its API makes": (
        {
            **dict.fromkeys(LOGGED),
            "summary": "{'eval/loss': 3.0}",
            "config": "{'lr': 1}",
            "name": [*"abcdef"],
        },
        "summary and config are dictionaries: write each of their entries as a column",
    ),
}


@pytest.mark.parametrize("fact", REFUSED)
def test_what_could_be_another_thing_is_refused(fact: str) -> None:
    changes, *says = REFUSED[fact]
    message = refusal(changed(**changes))
    assert [words for words in says if words not in message] == []


OF_SEVERAL_TEXTS = {
    "eval/c4_loss": LOSSES,
    "validation/code/loss": LOSSES,
    "interval_loss": LOSSES,
}
"""The HF Trainer has a loss for each of its data sets."""
TRAINING = "loss: train/loss is a loss on training data: a held-out loss may have its optimum"
TEXTS = "eval/c4_loss, validation/code/loss may be held-out losses: --column loss=eval/c4_loss"
DOUBTED: Sequence[tuple[Mapping[str, Any], *tuple[str, ...]]] = [
    # What LOGGED has else or besides, and each warning.
    ({"eval/loss": None, "train/loss": LOSSES}, TRAINING),
    (OF_SEVERAL_TEXTS, TEXTS),
    ({"eval/loss": None, "train/loss": LOSSES, **OF_SEVERAL_TEXTS}, TRAINING, TEXTS),
    (
        {"learning_rate": None, "train/learning_rate": [3e-4, 2e-4, 3e-5, 6e-4, 5e-4, 6e-5]},
        "falls from its first value in 2 runs, such as a: if its peak came before",
    ),
    (
        {"train/global_step": None, "_step": STEPS},
        "_step counts W&B's log calls unless the trainer passes step=",
    ),
    (
        {"train/global_step": None, "step": STEPS, "timestamp": "t"},
        "step counts Trackio's log calls unless",
    ),
    (
        {"params": None, "model/num_parameters": 1e8},
        "params: model/num_parameters may count the embedding lookup too",
    ),
    ({"output_router_logits": True}, "output_router_logits is true"),
    ({"output_router_logits": "true"}, "compare runs of equal accumulation"),
    (
        {"label_smoothing_factor": 0.1},
        "label_smoothing_factor is 0.1: eval/loss may have label smoothing in it",
    ),
    ({"params.label_smoothing": "0.05"}, "label_smoothing is 0.05"),
    ({"train_module.z_loss_multiplier": 1e-5}, "may have a z-loss in it"),
    ({"softmax_auxiliary_loss": "True"}, "bring the cross entropy alone"),
    ({"mup_base_width": 256}, "with muP (mup_base_width) learning_rate may be the base"),
    ({"params.use_mup": "True"}, "with muP (params.use_mup) learning_rate may be the base"),
]


@pytest.mark.parametrize("row", DOUBTED, ids=lambda row: row[1])
def test_what_is_in_doubt_is_taken_with_a_warning(
    row: tuple[Mapping[str, Any], *tuple[str, ...]],
) -> None:
    changes, *says = row
    warnings = read(changed(**changes)).warnings
    assert all(words in warning for words, warning in zip(says, warnings, strict=True))


@pytest.mark.parametrize(("batch", "doubted"), [(2**20, True), (2**19, False), ("524288", False)])
def test_a_rate_that_nanochat_scales_by_the_batch_size_is_in_doubt(
    batch: object, doubted: bool
) -> None:
    columns = changed(learning_rate=None, matrix_lr=0.02, total_batch_size=batch)
    warnings = read(columns, naming_of(["learning_rate=matrix_lr"])).warnings
    assert any("trains at matrix_lr times the square root" in each for each in warnings) is doubted


@pytest.mark.parametrize("off", [0, 0.0, "0.0", False, "null", ""])
def test_a_setting_that_adds_nothing_to_the_loss_is_no_reason_for_a_warning(off: object) -> None:
    names = (
        "label_smoothing_factor",
        "params.label_smoothing",
        "softmax_auxiliary_loss",
        "use_mup",
    )
    assert not read(changed(**dict.fromkeys(names, off))).warnings


# ------------------------------------------------------------------------------------- losses


def test_the_option_settles_it() -> None:
    columns = changed(**{"val/loss": [4.0, 3.9, 3.8, 4.1, 3.9, 3.7]})
    table = read(columns, naming_of(["loss=val/loss"]))
    assert table.runs[0].losses.tolist() == [4.0, 3.9, 3.8]


def test_our_own_columns_with_a_held_out_loss_beside_them_say_which_loss_is_meant() -> None:
    losses = LOGGED["eval/loss"]
    ours = changed(**{"eval/loss": None, "tokens": [1e9, 2e9, 4e9] * 2, "loss": losses})
    assert len(read(changed(ours, val_loss=losses)).runs) == 2
    other = changed(ours, val_loss=[each + 0.1 for each in losses])
    for options in ([], ["sequence_length=2048"]):
        message = refusal(other, naming_of(options))
        assert "--column loss=val_loss" in message
        assert "--column loss=loss" in message
    for name in ("loss", "val_loss"):
        naming = naming_of([f"loss={name}"])
        assert read(other, naming).read[0].columns["loss"] == name


@pytest.mark.parametrize("given", ["sequence_length=4096", "params=2e8"])
def test_our_own_columns_mean_what_they_say_beside_an_option_too(given: str) -> None:
    """An option replaces or adds one column; loss, flops and seed are still those of this project."""
    ours = changed(**{"eval/loss": None, "train/global_step": None, "global_step": None})
    ours |= {"tokens": [1e9, 2e9, 4e9] * 2, "loss": LOGGED["eval/loss"]}
    ours |= {"flops": [9e17, 1.8e18, 3.6e18] * 2, "seed": [1, 1, 1, 2, 2, 2]}
    if given.startswith("params"):
        del ours["params"]
    table = read(ours, naming_of([given]))
    assert table.warnings == ()
    assert table.runs[0].flops_per_token == 9e8
    assert [run.seed for run in table.runs] == ["1", "2"]


@pytest.mark.parametrize("training", [None, [3.0] * 6])
def test_bits_per_byte_are_refused_with_what_to_do(training: Sequence[float] | None) -> None:
    """And not replaced by the training loss beside them."""
    columns = changed(
        **{"eval/loss": None, "train/loss": training, "val/bpb": [1.0, 0.9, 0.8, 1.1, 0.95, 0.85]}
    )
    words = refusal(columns)
    assert "val/bpb is in bits per byte, nats per token are expected" in words
    assert """--column 'loss='"'"'val/bpb'"'"'*0.6931*BYTES'""" in words
    table = read(columns, naming_of(["loss='val/bpb'*0.6931*4.8"]))
    assert table.runs[0].losses[0] == pytest.approx(0.6931 * 4.8)


def test_rows_without_a_loss_are_skipped_and_counted() -> None:
    columns = changed(**{"eval/loss": [3.4, "", 3.0, 3.5, "", 3.1]})
    table = read(columns)
    assert [run.losses.tolist() for run in table.runs] == [[3.4, 3.0], [3.5, 3.1]]
    assert "rows without a loss, skipped: 2" in table.read[0].in_words()


def test_a_table_without_any_loss_is_refused() -> None:
    assert "missing" in refusal(changed(**{"eval/loss": [""] * 6}))
    assert "no row has" in refusal(
        changed(**{"eval/loss": [""] * 6}), naming_of(["loss=eval/loss"])
    )


@pytest.mark.parametrize("written", ["NaN", "Infinity", "nan"])
def test_a_run_whose_loss_is_written_as_nan_has_diverged(written: str) -> None:
    table = read(changed(**{"eval/loss": [3.4, 3.2, 3.0, 3.5, 7.0, written]}))
    assert [run.diverged for run in table.runs] == [False, True]
    (warning,) = table.warnings
    assert "runs with a loss of NaN or infinity, taken as diverged: 1 (b)" in warning


def test_nan_before_a_number_is_a_row_without_a_loss() -> None:
    """As some programs write what is missing; no training comes back from NaN."""
    table = read(changed(**{"eval/loss": ["NaN", 3.2, "NaN", 3.5, "nan", 3.1]}))
    assert [run.diverged for run in table.runs] == [False, False]
    assert [run.losses.tolist() for run in table.runs] == [[3.2], [3.5, 3.1]]
    assert "rows without a loss, skipped: 3" in table.read[0].in_words()


def test_a_run_that_alone_ends_in_nan_is_in_doubt_where_nan_is_also_what_is_missing() -> None:
    table = read(changed(**{"eval/loss": ["NaN", 3.2, 3.0, 3.5, 3.3, "NaN"]}))
    assert [run.diverged for run in table.runs] == [False, False]
    (warning,) = table.warnings
    assert "Runs that end in NaN: 1 (b). Mark those that diverged in a column diverged" in warning
    everywhere = read(changed(**{"eval/loss": ["NaN", 3.2, "NaN", 3.5, 3.3, "NaN"]}))
    assert everywhere.warnings == ()


def test_nan_in_parquet_may_be_missing_and_is_refused(tmp_path: Path) -> None:
    columns = changed(**{"eval/loss": [3.4, 3.2, 3.0, 3.5, 3.3, math.nan], "global_step": None})
    path = tmp_path / "log.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(
        BadTable, match=r"row 6, column loss: nan is not finite.*\(loss is eval/loss\)"
    ):
        read_runs(path)


def test_an_evaluation_that_is_logged_twice_is_counted_once() -> None:
    twice = {name: [*cells, cells[-1]] for name, cells in LOGGED.items()}
    table = read(twice)
    assert table.runs[1].losses.tolist() == [3.5, 3.3, 3.1]
    assert "rows that repeat another, skipped: 1" in table.read[0].in_words()


def test_two_losses_at_one_step_are_refused() -> None:
    """Megatron-LM logs its test loss under the name of the validation loss."""
    twice = {name: [*cells, cells[-1]] for name, cells in LOGGED.items()}
    twice["eval/loss"][-1] = 3.05
    assert "already has 5.24288e+08 tokens" in refusal(twice)


# ------------------------------------------------------------------------------- batch sizes


@pytest.mark.parametrize(
    "name",
    ["gradient_accumulation_steps", "world_size", "params.num_processes", "num_nodes", "nnodes"],
)
def test_a_batch_size_beside_devices_or_accumulation_is_not_trusted(name: str) -> None:
    words = refusal(changed(**{name: [8] * 6}))
    assert "may be the batch of one device or of one forward pass" in words
    assert "--column batch_size=batch_size or --column 'batch_size=batch_size*" in words
    assert read(changed(**{name: [1] * 6})).runs[0].batch_size == 64
    assert (
        read(changed(**{name: [8] * 6}), naming_of(["batch_size=batch_size"])).runs[0].batch_size
        == 64
    )


@pytest.mark.parametrize(
    "name", ["num_nodes", "nnodes", "tensor_model_parallel_size", "pipeline_model_parallel_size"]
)
def test_devices_of_one_node_and_those_that_share_a_batch_are_not_all_devices(name: str) -> None:
    columns = changed(
        PER_DEVICE,
        num_gpus=[4] * 6,
        **{name: [2] * 6},
    )
    words = refusal(columns)
    assert f"with a column {name}, num_gpus may not be how many devices take a batch each" in words
    assert "--column 'batch_size=per_device_train_batch_size*gradient_accumulation_steps*" in words
    assert read(changed(columns, **{name: [1] * 6})).runs[0].batch_size == 64


def test_all_that_is_to_be_done_about_a_table_is_said_at_once() -> None:
    """A runs table of the HF Trainer at W&B."""
    columns = one_row_each(
        batch_size=None, sequence_length=None, per_device_train_batch_size=[8, 8],
        gradient_accumulation_steps=[4, 4], **{"val/loss": [9.0, 9.0]},
    )  # fmt: skip
    words = refusal(columns)
    assert "batch_size: per_device_train_batch_size is the batch of one device" in words
    assert "loss: eval/loss (3.0) and val/loss (9.0) could both be it" in words
    assert "also missing: sequence_length (--column sequence_length=EXPRESSION)" in words


def test_settings_that_a_log_has_in_its_first_row_are_those_of_the_run() -> None:
    first = {
        name: [LOGGED[name][0], "", "", LOGGED[name][3], "", ""]
        for name in SETTINGS
        if name in LOGGED
    }
    for options in ([], ["tokens='train/global_step'*batch_size*sequence_length"]):
        table = read(changed(**first), naming_of(options))
        assert table.runs[1].tokens.tolist() == [n * 64 * 2048 for n in (1000, 2000, 4000)]
        assert table.runs[1].learning_rate == 6e-4


def test_nan_of_an_expression_has_diverged_too() -> None:
    columns = changed(**{"eval/loss": [3.4, 3.2, 3.0, 3.5, 3.3, "nan"]})
    table = read(columns, naming_of(["loss='eval/loss'*1.0"]))
    assert [run.diverged for run in table.runs] == [False, True]


# ----------------------------------------------------------------------------- learning rates


def one_row_each(**changes: Any) -> dict[str, Sequence[Any]]:
    last = {name: [cells[2], cells[5]] for name, cells in LOGGED.items()}
    return changed(last, **changes)


def test_the_last_value_of_a_logged_learning_rate_is_refused() -> None:
    words = refusal(one_row_each(learning_rate=None, **{"train/learning_rate": [3e-5, 6e-5]}))
    assert "the schedule's last, not its peak" in words
    assert "--column learning_rate=train/learning_rate" in words


def test_a_setting_comes_before_the_last_value_of_what_was_logged() -> None:
    table = read(one_row_each(**{"train/learning_rate": [3e-5, 6e-5]}))
    assert [run.learning_rate for run in table.runs] == [3e-4, 6e-4]


@pytest.mark.parametrize("logged", ["train/learning_rate", "learning-rate"])
def test_a_setting_below_what_was_logged_is_not_what_the_run_was_trained_at(
    tmp_path: Path, logged: str
) -> None:
    """findings/rates-of-restored-optimizers: a resumed run may go on at the rate that it had before."""
    lower = {**SETTINGS, "learning_rate": [3e-4, 1e-5]}
    with pytest.raises(
        BadTable, match=r"is 1e-05 for run b, which was trained at 0\.0006"
    ) as words:
        read_with(lower, {logged: [3e-4] * 3 + [6e-4] * 3}, tmp_path)
    assert f"--column learning_rate={logged}" in str(words.value)
    warmed_up = {logged: [1e-5, 2e-4, 3e-4, 1e-6, 5e-6, 1e-5]}
    table = read_with(lower, warmed_up, tmp_path)
    assert [run.learning_rate for run in table.runs] == [3e-4, 1e-5]
    chosen = changed(LOGGED, learning_rate=[1e-5] * 6, **{"train/learning_rate": [3e-4] * 6})
    by_option = read(chosen, naming_of(["learning_rate=train/learning_rate"]))
    assert by_option.runs[0].learning_rate == 3e-4


def test_lr_with_one_value_for_each_run_is_taken_with_a_warning() -> None:
    table = read(one_row_each(learning_rate=None, lr=[3e-4, 6e-4]))
    warning, last = table.warnings
    assert "one row for each run: its last eval/loss and its last train/global_step*" in last
    assert (
        "learning_rate: lr has one value for each run: if it is a schedule's last value" in warning
    )


# ------------------------------------------------------------------------------ tokens and runs


@pytest.mark.parametrize("factor", [8, 1 / 8])
def test_tokens_and_steps_that_differ_by_a_whole_factor_are_refused(factor: float) -> None:
    """One of them is of one device."""
    tokens = [n * 64 * 2048 * factor for n in (1000, 2000, 4000)] * 2
    columns = changed(n_tokens_seen=tokens)
    words = refusal(columns)
    assert "row 2, column tokens: n_tokens_seen has" in words
    assert f"8 times {'fewer' if factor > 1 else 'as many'}" in words
    assert "--column tokens=n_tokens_seen, or --column batch_size=EXPRESSION" in words
    assert read(columns, naming_of(["tokens=n_tokens_seen"])).runs[0].tokens[0] == tokens[0]


@pytest.mark.parametrize("factor", [0.125, 1 / 3, 8])
def test_a_step_that_may_count_log_calls_is_heard_where_one_factor_holds_everywhere(
    factor: float,
) -> None:
    """The batch size may be that of one device; more steps than log calls there cannot be."""
    columns = changed(
        **{
            "train/global_step": None,
            "step": [round(n * factor) for n in (3000, 6000, 12000)] * 2,
        },
        tokens=[n * 64 * 2048 for n in (3000, 6000, 12000)] * 2,
    )
    if factor > 1:
        assert "8 times as many" in refusal(columns)
        return
    (warning,) = read(columns).warnings
    assert (
        f"tokens are {1 / factor:g} times step*batch_size*sequence_length in every row" in warning
    )


def test_whole_steps_stay_whole_in_arithmetic() -> None:
    """Tokens from epochs differ from whole steps by rounding alone."""
    epochs = [n * 64 * 2048 / 3e9 for n in (1000, 2000, 4000)] * 2
    columns = changed(**{"train/global_step": None}, epoch=epochs)
    assert read(columns, naming_of(["tokens=epoch*3e9"])).warnings == ()


BETWEEN = {
    "run": ["a"] * 6,
    "learning_rate": [3e-4] * 6,
    "n_tokens_seen": [1.31e8, "", 2.62e8, "", 5.2e8, ""],
    "train/global_step": [1000, 1000, 2000, 2000, 4000, 4000],
    "eval/loss": ["", 3.4, "", 3.2, "", 3.0],
}
"""Tokens in rows of training, held-out losses in rows between them."""


def test_tokens_that_only_rows_of_training_have_are_counted_by_steps() -> None:
    table = read(changed(**BETWEEN))
    assert table.runs[0].tokens[0] == 1000 * 64 * 2048


@pytest.mark.parametrize("step", ["step", "train/global_step", "_step"])
def test_steps_that_the_tokens_of_other_rows_contradict_are_refused(step: str) -> None:
    """litgpt's CSV counts forward passes as steps, from 0, and has tokens in rows of training alone."""
    passes = [1000 * 8 - 1, 1000 * 8 - 1, 2000 * 8 - 1, 2000 * 8 - 1, 4000 * 8 - 1, 4000 * 8 - 1]
    columns = changed(**{**BETWEEN, "train/global_step": None, step: passes})
    words = refusal(columns)
    product = f"{step!r}" if "/" in step else step
    assert "row 6, column tokens: n_tokens_seen has 5.2e+08 tokens" in words
    assert "8 times as many: one of them is of one device or of one forward pass" in words
    assert "*SEQUENCES*sequence_length' with those of one forward pass" in words
    table = read(columns, naming_of([f"tokens={product}*8*sequence_length"]))
    assert table.runs[0].tokens[0] == (1000 * 8 - 1) * 8 * 2048


def test_a_resumed_run_that_counted_from_0_again_is_refused() -> None:
    """Its second part would be put between the evaluations of the first."""
    columns: Columns = {
        "run": ["a"] * 6,
        **CONSTANT_CELLS,
        "train/global_step": [1000, 2000, 4000, 500, 1500, 2500],
        "eval/loss": [3.4, 3.2, 3.0, 2.95, 2.9, 2.8],
    }
    words = refusal(columns)
    assert (
        "row 5, column tokens: run 'a' has 6.5536e+07 tokens here and 5.24288e+08 in row 4"
        in words
    )
    assert "counted from 0 again" in words
    backwards = {name: cells[::-1] for name, cells in columns.items()}
    assert "counted from 0 again" in refusal(backwards)


@pytest.mark.parametrize(
    ("steps", "losses"),
    [
        ([1000, 2000, 4000, 3000, 5000, 6000], [3.4, 3.2, 3.0, 3.1, 2.95, 2.9]),
        ([4000, 5000, 6000, 1000, 2000, 3000], [3.0, 2.95, 2.9, 3.4, 3.2, 3.1]),
        ([6000, 5000, 4000, 3000, 2000, 1000], [3.2, 3.1, 3.0, 2.9, 2.8, 2.7]),
        ([3000, 1000, 6000, 2000, 5000, 4000], [3.1, 3.4, 2.9, 3.2, 2.95, 3.0]),
    ],
)
def test_rows_of_a_run_may_be_in_any_order(steps: list[int], losses: list[float]) -> None:
    columns = {
        "run": ["a"] * 6, **CONSTANT_CELLS, "train/global_step": steps, "eval/loss": losses
    }  # fmt: skip
    assert len(read(columns).runs[0].losses) == 6


@pytest.mark.parametrize("tokens", [[131072] * 2, [262144, 3.9e6]])
def test_runs_of_a_few_steps_are_in_doubt(tokens: Sequence[float]) -> None:
    """Tokens of one step, or in thousands."""
    columns = one_row_each(**{"train/global_step": None, "tokens": tokens, "batch_size": [65] * 2})
    columns["sequence_length"] = [2016] * 2
    assert any(
        "no run has 30 steps by its tokens" in warning
        and "of one step, or in thousands" in warning
        for warning in read(columns).warnings
    )


@pytest.mark.parametrize("name", ["_step", "Step", "step"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_count_of_log_calls_is_not_taken_for_steps(name: str, first: int) -> None:
    columns = changed(**{"train/global_step": None, name: [first, first + 1, first + 2] * 2})
    words = refusal(columns)
    assert f"{name} grows by one in each row of a run: it may count log calls" in words
    assert f"--column 'tokens={name}*batch_size*sequence_length'" in words


def test_the_history_of_one_run_has_its_file_s_name() -> None:
    columns = {name: cells[:3] for name, cells in changed(run=None).items()}
    (run,) = read(columns, source="logs/n100m-lr3e-4.csv").runs
    assert run.name == "n100m-lr3e-4"


def test_two_runs_of_one_displayed_name_are_not_one_run() -> None:
    """W&B and MLflow let names repeat, and a second seed is a run of the same settings."""
    columns = changed(run=None, Name=["t"] * 6, ID=["x"] * 3 + ["y"] * 3, learning_rate=[3e-4] * 6)
    columns["train/global_step"] = [1000, 2000, 4000, 1100, 2200, 4400]
    words = refusal(columns)
    assert "row 5, column run: the name 't' is that of two IDs, 'x' and 'y'" in words
    assert "--column run=ID, or --column run=Name if one run was resumed" in words
    assert [run.name for run in read(columns, naming_of(["run=ID"])).runs] == ["x", "y"]
    assert [run.name for run in read(columns, naming_of(["run=Name"])).runs] == ["t"]


def test_columns_that_tools_use_in_other_senses_are_not_taken() -> None:
    table = read(changed(flops=[3.1e14] * 6, seed=[1, 1, 1, 2, 2, 2]))
    assert [warning.partition(" was not")[0] for warning in table.warnings] == [
        "log.csv: the column flops",
        "log.csv: the column seed",
    ]
    assert (table.runs[0].flops_per_token, table.runs[0].seed) == (None, None)
    assert read(changed(seed=[42] * 6)).warnings == ()
    assert read(changed(seed=[1] * 6), naming_of(["seed=seed"])).runs[0].seed == "1"


def test_an_optimizer_in_a_few_rows_is_that_of_the_run() -> None:
    table = read(changed(optimizer=["AdamW", "", "", "Muon", "", ""]))
    assert [run.optimizer for run in table.runs] == ["AdamW", "Muon"]


# ---------------------------------------------------------------------------------- settings


def test_settings_come_by_run_from_another_table(tmp_path: Path) -> None:
    table = read_with(SETTINGS, {}, tmp_path)
    assert [run.learning_rate for run in table.runs] == [3e-4, 6e-4]
    assert f"from {tmp_path}/settings.csv: params, batch_size, sequence_length, learning_rate" in (
        table.read[0].in_words()
    )


@pytest.mark.parametrize(
    ("settings", "columns", "says"),
    [
        (
            {"Name": ["a", "bb"]},
            {},
            r"settings.csv: column Name: no row for run 'b' of log.csv \(did you mean bb\?\)",
        ),
        (
            {name: [*cells, cells[0]] for name, cells in SETTINGS.items()},
            {},
            "run 'a' is in rows 2 and 4: one row per run",
        ),
        ({"Name": None, "label": ["a", "b"]}, {}, r"settings.csv: row 1, column run: missing"),
        (
            {},
            {"batch_size": [128] * 6},
            r"batch_size \(.*settings.csv\) \(64\) and batch_size \(128\) could both",
        ),
    ],
)
def test_settings_that_are_not_those_of_the_runs_are_refused(
    tmp_path: Path, settings: dict[str, Any], columns: Columns, says: str
) -> None:
    with pytest.raises(BadTable, match=says):
        read_with(changed(SETTINGS, **settings), columns, tmp_path)


@pytest.mark.parametrize("metric", ["", " - eval/loss"])
def test_a_table_with_a_column_for_each_run_is_named(metric: str, tmp_path: Path) -> None:
    log = {"train/global_step": STEPS[:3], **{f"{run}{metric}": [3.4, 3.2, 3.0] for run in "ab"}}
    (tmp_path / "settings.csv").write_bytes(content(SETTINGS))
    naming = naming_of(settings=str(tmp_path / "settings.csv"))
    with pytest.raises(BadTable, match=f"columns are of one run each, such as a{metric}"):
        parse_table(content(log), "log.csv", naming)


def test_files_of_one_run_each_say_alike_that_their_rates_fall() -> None:
    falling: Columns = {"learning_rate": None, "train/learning_rate": [3e-4, 2e-4, 1e-4]}
    one = {name: cells[:3] for name, cells in changed(run=["a"] * 6).items()}
    (warning,) = read(changed(one, **falling)).warnings
    assert "falls from its first value: if its peak came before" in warning


def test_a_schedule_in_the_table_does_not_contradict_the_settings(tmp_path: Path) -> None:
    table = read_with(SETTINGS, {"learning_rate": RISING}, tmp_path)
    assert [run.learning_rate for run in table.runs] == [3e-4, 6e-4]


def test_the_last_value_of_a_schedule_in_the_settings_is_not_taken(tmp_path: Path) -> None:
    last = changed(SETTINGS, learning_rate=None, lr=[3e-5, 6e-5])
    table = read_with(last, {"lr": RISING}, tmp_path)
    assert [run.learning_rate for run in table.runs] == [3e-4, 6e-4]


def test_a_loss_and_tokens_are_never_taken_from_the_settings(tmp_path: Path) -> None:
    """They are each run's last, and would be put beside every step."""
    settings = {**SETTINGS, "eval/loss": [3.0, 3.1], "tokens": [4e9, 4e9]}
    table = read_with(settings, {}, tmp_path)
    assert table.runs[0].losses.tolist() == [3.4, 3.2, 3.0]
    assert table.runs[0].tokens[0] == 1000 * 64 * 2048
    (tmp_path / "settings.csv").write_bytes(content(settings))
    log = {name: LOGGED[name] for name in ("run", "train/global_step")} | {
        "Value": LOGGED["eval/loss"]
    }
    for options in ([], ["loss=eval/loss"], ["loss='eval/loss'*2"]):
        naming = naming_of(options, str(tmp_path / "settings.csv"))
        assert "column loss" in refusal(log, naming)


# ----------------------------------------------------------------------------- shapes of exports


def panel(**cells: Any) -> dict[str, Sequence[Any]]:
    columns: dict[str, Sequence[Any]] = {"Step": [1000, 2000, 4000]}
    for run in ("a", "b - 2"):
        for ending in ("", "__MIN", "__MAX"):
            columns[f"{run} - eval/loss{ending}"] = [3.4, 3.2, 3.0]
    return {**columns, **cells}


CONSTANTS = ["params=1e8", "batch_size=64", "sequence_length=2048", "learning_rate=3e-4"]


def test_a_run_of_a_panel_may_have_a_dash_in_its_name_and_no_value_at_a_step() -> None:
    cells = {f"b - 2 - eval/loss{ending}": ["", 3.3, 3.1] for ending in ("", "__MIN", "__MAX")}
    table = read(panel(**cells), naming_of(CONSTANTS))
    assert [(run.name, run.losses.tolist()) for run in table.runs] == [
        ("a", [3.4, 3.2, 3.0]),
        ("b - 2", [3.3, 3.1]),
    ]


def test_a_panel_over_the_trainer_s_step_has_the_tracker_s_beside_it() -> None:
    """As W&B draws runs of the HF Trainer."""
    columns: dict[str, Sequence[Any]] = {"train/global_step": [1000, 2000, 4000]}
    for ending in ("", "__MIN", "__MAX"):
        columns[f"a - _step{ending}"] = [3, 7, 11]
        columns[f"a - eval/loss{ending}"] = [3.4, 3.2, 3.0]
    table = read(columns, naming_of(CONSTANTS))
    assert table.runs[0].tokens.tolist() == [n * 64 * 2048 for n in (1000, 2000, 4000)]
    assert table.warnings == ()


def test_a_point_of_a_panel_that_is_a_mean_is_refused() -> None:
    words = refusal(panel(**{"a - eval/loss__MIN": [3.4, 3.1, 3.0]}), naming_of(CONSTANTS))
    assert "row 3, column a - eval/loss: stands for several values, from 3.1 to 3.2" in words
    assert "Ungroup the panel, or export the runs' histories" in words


def test_a_smoothed_panel_is_refused() -> None:
    """One value lies behind each point, and the point is another."""
    words = refusal(panel(**{"a - eval/loss": [3.4, 3.3, 3.1]}), naming_of(CONSTANTS))
    assert "row 3, column a - eval/loss: 3.3, but from 3.2 to 3.2 lies behind it" in words
    assert "smoothing" in words
    other = {f"b - 2 - eval/loss{each}": [3.5, 3.3, "NaN"] for each in ("", "__MIN", "__MAX")}
    near = panel(**{"a - eval/loss": [3.4, 3.2000000000000006, 3.0], **other})
    assert read(near, naming_of(CONSTANTS)).runs[0].losses[1] == pytest.approx(3.2)


def test_a_panel_over_another_axis_than_steps_is_refused() -> None:
    columns = {
        ("Relative Time (Process)" if name == "Step" else name): cells
        for name, cells in panel().items()
    }
    assert "column tokens: missing" in refusal(columns, naming_of(CONSTANTS))


METRICS: Columns = {
    "run_id": ["a", "a", "b", "b"],
    "key": ["eval_loss"] * 4,
    "value": [3.4, 3.2, 3.5, 3.3],
    "step": [1000, 2000] * 2,
}


def test_a_metric_that_mlflow_has_twice_at_a_step_is_refused() -> None:
    words = refusal(changed(METRICS, step=[1000, 1000] * 2), naming_of(CONSTANTS))
    assert "row 3, column key: eval_loss has a value at step 1000 already" in words


def test_nan_in_the_database_of_mlflow_is_not_zero() -> None:
    columns = changed(
        METRICS, value=[3.4, 0, 3.5, 3.3], is_nan=["False", "True", "False", "False"]
    )
    table = read(columns, naming_of(CONSTANTS))
    assert [run.diverged for run in table.runs] == [True, False]
    assert table.runs[0].losses.tolist() == [3.4]


@pytest.mark.parametrize("name", ["run_name", "Name", "name"])
def test_a_history_of_metrics_may_name_its_runs(name: str) -> None:
    """A join of MLflow's tables; the runs' steps differ, so that no metric is there twice."""
    columns = changed(METRICS, run_id=None, step=[1000, 2000, 1500, 3000])
    table = read({name: METRICS["run_id"], **columns}, naming_of(CONSTANTS))
    assert [(run.name, run.losses.tolist()) for run in table.runs] == [
        ("a", [3.4, 3.2]),
        ("b", [3.5, 3.3]),
    ]


def test_what_else_a_history_of_metrics_has_tells_its_runs_apart() -> None:
    columns = changed(METRICS, run_id=None, step=[1000, 2000, 1500, 3000])
    columns |= {"trial": METRICS["run_id"], "lr": [3e-4, 3e-4, 6e-4, 6e-4]}
    assert "--column run=trial" in refusal(columns, naming_of(CONSTANTS))
    for steps in ([1000, 2000, 1500, 3000], [1000, 2000] * 2):
        columns["step"] = steps
        table = read(columns, naming_of([*CONSTANTS[:3], "learning_rate=lr", "run=trial"]))
        assert [(run.name, run.learning_rate) for run in table.runs] == [("a", 3e-4), ("b", 6e-4)]


# ------------------------------------------------------------------------------ the reference


def test_the_reference_has_every_known_name_and_no_other() -> None:
    page = (CHECKOUT / "docs" / "reference" / "cli.md").read_text()
    rows = page.partition("| column | taken from, in this order |")[2].partition("\n\n")[0]
    for line in rows.splitlines()[2:]:
        ours, theirs = line.strip("| ").split("|", 1)
        name = ours.strip(" `")
        written = set(re.findall("`([^`]+)`", theirs)) - {"trainer_state.json"}
        assert written == names_of(name), name


def names_of(column: str) -> set[str]:
    if column == "run":
        return set(known_names.RUN)
    own = {known.name for tier in known_names.TIERS[column] for known in tier.names}
    also = {
        "tokens": names_of("step") if column == "tokens" else set(),
        "batch_size": set(known_names.TOKENS_PER_STEP),
    }
    return own | also.get(column, set())


# ------------------------------------------------------------------------------ command line


def test_probes_are_read_as_runs_are_and_that_is_said(
    isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    head, *lines = datasets.sample_text(datasets.PROBES).splitlines()
    probes = tmp_path / "probes.csv"
    probes.write_text("\n".join([head.replace("loss", "held out"), *lines]))
    question = ("--initial-loss", "2.75", "--cpt-tokens", "5e9", "--params", "1e9")
    ended = isoloss("validate", synthetic_laws, probes, *question, "--column", "loss=held out")
    assert ended.code in (0, 3), ended.err
    assert f"{probes}: loss: held out; as named: run, params" in ended.out
    assert "column loss: missing" in isoloss("validate", synthetic_laws, probes, *question).error
