"""Writes the exports beside this file that the tests read: one sweep as each tool exports it.

MLflow's, Trackio's and TensorBoard's files and the Trainer's logs are written by the tools themselves, in a virtual
environment of their own; W&B's four are built in the format that its documentation and its interface have, because only
its server exports them.

    python -m venv venv && venv/bin/pip install mlflow-skinny sqlalchemy alembic tensorboard tensorboardX trackio pandas scipy pydantic pytest
    PYTHONPATH=.:operator TRACKIO_DIR=$(mktemp -d) venv/bin/python -m tests.isoloss.tables.make_exports

The runs are those of `synthetic_runs` on two sizes, evaluated after whole steps.
"""

import csv
import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.synthetic_runs import NOISE, bowl

FOLDER = Path(__file__).parent / "exports"
LENGTH = 2048
STEP_TOKENS = 512 * LENGTH
"""Tokens are multiples of it, so that every batch size has them after whole steps."""
WARMUP = 50
"""Optimizer steps."""


@dataclass(frozen=True)
class Trained:
    """A run as its trainer knew it."""

    name: str
    params: int
    batch_size: int
    learning_rate: float
    steps: tuple[int, ...]
    losses: tuple[float, ...]

    def rate(self, step: int) -> float:
        """Of a schedule with a linear rise and a linear fall to a tenth."""
        if step < WARMUP:
            return self.learning_rate * step / WARMUP
        return self.learning_rate * (1 - 0.9 * (step - WARMUP) / (self.steps[-1] - WARMUP))

    def settings(self) -> dict[str, float]:
        """What the trainer tells its tracker of itself."""
        return {
            "params": self.params,
            "batch_size": self.batch_size,
            "sequence_length": LENGTH,
            "learning_rate": self.learning_rate,
        }

    def logged(self) -> Iterator[dict[str, float]]:
        """What the trainer logs: training losses now and then, and evaluations."""
        for step in (10, WARMUP):
            yield {"step": step, "loss": 9.5 - step / 25, "learning_rate": self.rate(step)}
        for step, loss in zip(self.steps, self.losses, strict=True):
            yield {"step": step, "loss": round(loss + 0.011, 4), "learning_rate": self.rate(step)}
            yield {"step": step, "eval_loss": loss}


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


def write(path: Path, rows: list[dict[str, Any]], *, quoting: int = csv.QUOTE_MINIMAL) -> None:
    """Rows as a CSV; what a row lacks stays empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, quoting=quoting, lineterminator="\n")  # type: ignore[arg-type]
        writer.writeheader()
        writer.writerows(rows)


def wandb(runs: list[Trained]) -> None:
    """The runs table and the line panel as the interface downloads them, histories as its API returns them."""
    folder = FOLDER / "wandb"
    write(
        folder / "runs.csv",
        [_runs_table_row(run, n) for run in runs for n in (6, 3, 2)],
        quoting=csv.QUOTE_ALL,
    )
    steps = sorted({step for run in runs for step in run.steps})
    panel = []
    for step in steps:
        row: dict[str, Any] = {"Step": step}
        for run in runs:
            loss = dict(zip(run.steps, run.losses, strict=True)).get(step, "")
            for ending in ("", "__MIN", "__MAX"):
                row[f"{run.name} - eval/loss{ending}"] = loss
        panel.append(row)
    write(folder / "panel.csv", panel, quoting=csv.QUOTE_ALL)
    history = [
        {
            "_step": row["step"],
            "_timestamp": 1.7e9 + row["step"],
            "train/loss": row.get("loss", ""),
            "eval/loss": row.get("eval_loss", ""),
            "run_id": _id(run),
        }
        for run in runs
        for row in run.logged()
    ]
    write(folder / "history.csv", history)
    import pyarrow
    import pyarrow.parquet

    columns = {
        name: [None if row[name] == "" else row[name] for row in history] for name in history[0]
    }
    pyarrow.parquet.write_table(
        pyarrow.table(columns), folder / "history.parquet", compression="zstd"
    )


def _id(run: Trained, evaluations: int = 6) -> str:
    """W&B's id of a run, eight letters and digits."""
    import hashlib

    return hashlib.sha256(f"{run.name}-{evaluations}".encode()).hexdigest()[:8]


def _runs_table_row(run: Trained, evaluations: int) -> dict[str, Any]:
    step = run.steps[evaluations - 1]
    return {
        "Name": run.name if evaluations == 6 else f"{run.name}-{step}",
        "ID": _id(run, evaluations),
        "State": "finished",
        "Notes": "-",
        "User": "ann",
        "Tags": "",
        "Created": "2026-11-02T10:07:18.000Z",
        "Runtime": 3 * step,
        "Sweep": "",
        "batch_size": run.batch_size,
        "learning_rate": run.learning_rate,
        "model": f"llama-{run.params // 10**6}m",
        "params": run.params,
        "sequence_length": LENGTH,
        "warmup_steps": WARMUP,
        "_step": step,
        "eval/loss": run.losses[evaluations - 1],
        "train/loss": round(run.losses[evaluations - 1] + 0.011, 4),
    }


def tensorboard(runs: list[Trained]) -> None:
    """Each run's scalars, downloaded from TensorBoard's own server code under the name that its interface gives."""
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.scalar import scalars_plugin
    from tensorboardX import SummaryWriter

    with tempfile.TemporaryDirectory() as logs:
        for run in runs:
            writer = SummaryWriter(f"{logs}/{run.name}")
            for step, loss in zip(run.steps, run.losses, strict=True):
                writer.add_scalar("eval/loss", loss, step, walltime=1.7e9 + step)
            writer.close()
        multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(logs)
        multiplexer.Reload()
        provider = data_provider.MultiplexerDataProvider(multiplexer, logs)
        plugin = scalars_plugin.ScalarsPlugin(base_plugin.TBContext(data_provider=provider))
        for run in runs:
            text, _ = plugin.scalars_impl(
                RequestContext(), "eval/loss", run.name, "", scalars_plugin.OutputFormat.CSV
            )
            path = FOLDER / "tensorboard" / f"{run.name}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, newline="\n")


def mlflow(runs: list[Trained]) -> None:
    """The table of `mlflow.search_runs`, and the metric histories of its client."""
    import mlflow as tracking
    import pandas

    with tempfile.TemporaryDirectory() as logs:
        tracking.set_tracking_uri(f"sqlite:///{logs}/mlflow.db")
        tracking.set_experiment("sweep")
        client = tracking.MlflowClient()
        ids = []
        for run in runs:
            with tracking.start_run(run_name=run.name) as started:
                tracking.log_params(run.settings())
                for step, loss in zip(run.steps, run.losses, strict=True):
                    tracking.log_metric("eval_loss", loss, step=step)
                ids.append(started.info.run_id)
        folder = FOLDER / "mlflow"
        folder.mkdir(parents=True, exist_ok=True)
        found = tracking.search_runs(order_by=["attributes.start_time"])
        # Not the tags that say whose machine this was.
        kept = [
            name
            for name in found.columns
            if not name.startswith(("artifact_uri", "tags.mlflow.source", "tags.mlflow.user"))
        ]
        found[kept].to_csv(folder / "runs.csv", index=False)
        history = [
            {**metric.to_dictionary(), "run_id": each}
            for each in ids
            for metric in client.get_metric_history(each, "eval_loss")
        ]
        pandas.DataFrame(history)[["run_id", "key", "value", "timestamp", "step"]].to_csv(
            folder / "history.csv", index=False
        )


def trackio(runs: list[Trained]) -> None:
    """The Parquet files that Trackio keeps of a project: metrics and configurations."""
    import trackio as tracking
    from trackio.sqlite_storage import SQLiteStorage

    for run in runs:
        started = tracking.init(project="sweep", name=run.name, config=run.settings())
        for row in run.logged():
            step = int(row["step"])
            if "eval_loss" in row:
                started.log({"eval/loss": row["eval_loss"], "train/global_step": step})
            else:
                started.log(
                    {
                        "train/loss": row["loss"],
                        "train/learning_rate": row["learning_rate"],
                        "train/global_step": step,
                    }
                )
        tracking.finish()
    folder = FOLDER / "trackio"
    with tempfile.TemporaryDirectory() as out:
        SQLiteStorage.export_for_static_space("sweep", Path(out))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.parquet").write_bytes((Path(out) / "metrics.parquet").read_bytes())
        (folder / "configs.parquet").write_bytes(
            (Path(out) / "aux" / "configs.parquet").read_bytes()
        )


def trainer(runs: list[Trained]) -> None:
    """`trainer_state.json` of each run, as the Trainer of transformers saves it."""
    from transformers.trainer_callback import TrainerState

    for run in runs:
        history = [{"epoch": round(row["step"] / run.steps[-1], 4), **row} for row in run.logged()]
        state = TrainerState(
            epoch=1.0,
            global_step=run.steps[-1],
            max_steps=run.steps[-1],
            train_batch_size=8,
            num_train_epochs=1,
            log_history=history,
        )
        path = FOLDER / "trainer" / run.name / "trainer_state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        state.save_to_json(str(path))
    settings = [
        {"run": run.name, "params": run.params, "batch_size": run.batch_size} for run in runs
    ]
    write(FOLDER / "trainer" / "settings.csv", settings)


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["wandb", "tensorboard", "mlflow", "trackio", "trainer"]
    for name in chosen:
        globals()[name](trained())
