"""Runs whose last losses were evaluated after the learning rate was decayed are named; flattening and noisy ones are not."""

import csv
import gzip
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import isoloss
from benchmarks.science.tables import data_folder
from isoloss.laws import Run
from isoloss.tables.decayed_ends import decay_warning
from tests.support.synthetic_runs import synthetic_runs

SCHEDULES = data_folder() / "hagele_schaipp_lr_schedule_trajectories.csv.gz"


def decayed(run: Run, nats: float, share: float) -> Run:
    """The run with a learning rate that falls over the last share of its tokens."""
    through = np.maximum(run.tokens / run.tokens[-1] - 1.0 + share, 0.0) / share
    return replace(run, losses=run.losses - nats * through)


@pytest.mark.parametrize(
    ("nats", "share", "which", "evaluations", "says"),
    [
        (0.05, 1e-6, lambda at: True, 24, "of 72 of 72 runs are 0.048 nats below"),
        (0.02, 0.1, lambda at: True, 24, "nats below the course of their earlier ones (n30m-"),
        (0.05, 0.2, lambda at: at % 2 == 0, 24, "of 36 of 72 runs are"),
        (0.06, 0.35, lambda at: True, 24, "of 72 of 72 runs are"),
        (0.05, 0.1, lambda at: at in (10, 40), 24, "of 2 of 72 runs are"),
        (0.05, 1e-6, lambda at: True, 4, "runs are 0.02"),
        (0.05, 1e-6, lambda at: True, 5, "runs are 0.02"),
    ],
)
def test_ends_below_their_runs_course_are_named(
    nats: float, share: float, which: Callable[[int], bool], evaluations: int, says: str
) -> None:
    runs = synthetic_runs(evaluations=evaluations)
    runs = [
        decayed(r, nats, share) if which(i) and len(r.losses) else r for i, r in enumerate(runs)
    ]
    warning = decay_warning(runs)
    assert warning is not None
    assert says in warning
    assert "leave these evaluations out" in warning


@pytest.mark.parametrize("evaluations", [4, 5, 6, 12, 24])
@pytest.mark.parametrize("noise", [0.0, 0.0015, 0.01])
def test_runs_at_one_rate_are_not(evaluations: int, noise: float) -> None:
    assert decay_warning(synthetic_runs(evaluations=evaluations, noise=noise)) is None


def test_fits_say_it_first() -> None:
    runs = [decayed(run, 0.05, 0.1) for run in synthetic_runs()]
    assert "after the learning rate was decayed" in isoloss.fit_laws(runs).warnings[0]


@pytest.mark.skipif(not SCHEDULES.exists(), reason="the published sweeps are not at hand")
@pytest.mark.parametrize(
    ("schedule", "every", "found"),
    [
        ("wsd_decay0_", 1, None),
        ("wsd_decay0_", 30, None),
        ("wsd_decay0_", 100, None),
        ("wsd_decay0.2_linear", 1, "2 of 2 runs are 0.18"),
        ("wsd_decay0.2_linear", 30, "2 of 2 runs are 0.17"),
    ],
)
def test_published_runs_that_were_decayed_are_told_from_others(
    schedule: str, every: int, found: str | None
) -> None:
    curves: dict[str, list[tuple[float, float]]] = {}
    with gzip.open(SCHEDULES, "rt") as lines:
        for row in csv.DictReader(lines):
            whole = row["resumed"] == row["is_final_full_eval"] == "0"
            if whole and row["val_loss"] and schedule in row["schedule"] and row["tokens"] != "0":
                curves.setdefault(row["run_id"], []).append(
                    (float(row["tokens"]), float(row["val_loss"]))
                )
    runs = []
    for name, curve in curves.items():
        tokens, losses = np.array(sorted(curve))[::-1][::every][::-1].T
        runs.append(Run(name, 1e8, 200, 512, 1e-3, tokens, losses))
    warning = decay_warning(runs)
    assert (warning is None) if found is None else (warning is not None and found in warning)
