"""Published sweeps, where their tables are at hand: regret, the boundary case, and losses not to be mixed."""

import csv
import gzip
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.science.cases import Case, Row
from benchmarks.science.contenders import ENGINE, PLAIN, PUBLISHED
from benchmarks.science.judging import judge, quadratic, terms
from benchmarks.science.scores import RowScores, score_row
from benchmarks.science.tables import (
    DENSE,
    MOE,
    Table,
    data_folder,
    load,
)
from isoloss import laws as engine
from isoloss.laws.data.cells import make_cells
from isoloss.laws.data.trajectories import collect
from isoloss.laws.surface.joint_fit import SurfaceFit, fit_surface
from isoloss.laws.surface.terms import optimum_law, trends
from tests.support.synthetic_runs import answered, refusal_of

CRITICAL_BATCH = "critical_batch_size_steps_to_target.csv"
SCHEDULES = "hagele_schaipp_lr_schedule_trajectories.csv.gz"
OPTIONS = engine.FitOptions(bootstrap_samples=60)

pytestmark = pytest.mark.skipif(
    not (data_folder() / DENSE).exists(), reason="the published sweeps are not at hand"
)


@cache
def table(name: str) -> Table:
    return load(data_folder() / name)


def scores_of(name: str, held: Sequence[float]) -> RowScores:
    """Every contender fitted to the other sizes and asked at these."""
    found = table(name)
    runs = tuple(run for run in found.runs if run.params not in held)
    targets = tuple((n, d, j) for (n, d), j in found.judges().items() if n in held)
    return score_row(Row(name, (Case(runs, targets),)), engine.FitOptions(bootstrap_samples=100))


def test_dense_sizes_predict_the_two_larger_ones():
    """Fitted on 215M to 429M, scored on the five cells of 537M and 1.07B."""
    scores = scores_of(DENSE, table(DENSE).sizes[3:]).scores
    ours = scores[ENGINE]
    assert ours.asked == len(ours.regrets) == 5
    assert np.mean(ours.regrets) <= 0.0006
    assert np.max(ours.regrets) <= 0.0014
    for rival in (PLAIN, PUBLISHED):
        assert np.mean(ours.regrets) < np.mean(scores[rival].regrets)


@pytest.mark.parametrize(("at", "mean"), [(0, 0.0010), (1, 0.0010), (2, 0.0012), (3, 0.0012)])
def test_three_shapes_of_experts_predict_the_fourth(at, mean):
    """The last has twice the active parameters of any other.

    The third: the judge moved, the engine did not. Its four answers are to four digits those of when 0.0010 was set
    and quadratics judged, which still charge 0.0004 (below); cubic readings, which predict that size's best
    runs better in all four cells (errors of 2.9 instead of 3.5 to 4.0 millinats in the dearest), charge 0.0011,
    of which 0.0006 in a cell of 20 runs near the optimum, where readings differ by 0.0017. The plain
    regression costs 0.0010 there.

    The fourth cost 0.0006 while a doubtful trend was left out altogether, and costs 0.0011 since half of it is kept, which
    in flat valleys of three synthetic sizes saves more than that (surface/estimate.py). The plain regression costs 0.0011.
    """
    ours = scores_of(MOE, [table(MOE).sizes[at]]).scores[ENGINE]
    assert len(ours.regrets) == 4
    assert np.mean(ours.regrets) <= mean
    assert np.max(ours.regrets) <= {2: 0.0026, 3: 0.0022}.get(at, 0.0020)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_three_shapes_predict_the_fourth_by_quadratics_as_when_the_limit_was_set(at):
    held = table(MOE).sizes[at]
    laws = shown(MOE, (held,))
    regrets = []
    for (n, d), points in table(MOE).points.items():
        if n == held:
            found = engine.predict(laws, engine.PredictionQuery(total_flops=6 * n * d, params=n))
            reading = quadratic(points)
            regrets.append(reading.regret(found.learning_rate.value, found.batch_size_raw))
    assert np.mean(regrets) <= 0.0010
    assert np.max(regrets) <= 0.0020


def test_every_other_learning_rate_is_answered_as_well_as_all_of_them():
    """The iso-loss laws would cost 0.0034 nats on average here, and 0.0110 at worst."""
    dense = table(DENSE)
    rates: list[float] = []
    for rate in sorted({run.learning_rate for run in dense.runs}):
        if not rates or rate > 1.01 * rates[-1]:
            rates.append(rate)
    kept = [
        r for r in dense.runs if np.argmin(np.abs(np.log(np.array(rates) / r.learning_rate))) % 2
    ]
    half, every = regrets_of_cells(kept), regrets_of_cells(dense.runs)
    assert np.mean(half) < 0.0005
    assert np.max(half - every) < 0.0003


def regrets_of_cells(runs: Sequence[engine.Run]) -> np.ndarray:
    """Of the default answer in every cell of the dense table."""
    laws = engine.fit_laws(runs, OPTIONS)
    assert laws.surface.optimum is not None
    found = []
    for (n, d), truth in table(DENSE).judges().items():
        answer = engine.predict(laws, engine.PredictionQuery(total_flops=6 * n * d, params=n))
        found.append(truth.regret(answer.learning_rate.value, answer.batch_size_raw))
    return np.array(found)


def test_the_skewed_valley_of_the_dense_sweep_is_followed_to_its_bottom():
    """Raw losses near the answers, smoothed locally: a parabola's optimum is 0.0018 nats above this one's."""
    dense = table(DENSE)
    trajectories = collect(dense.runs).trajectories
    cells = make_cells(trajectories)
    skewed, design = fit_surface(trajectories, cells), parabola_only(trajectories, cells)
    gains = []
    for (n, d), points in dense.points.items():
        losses = [
            local_loss(points, np.array(law.at(np.log(n), np.log(d))))
            for law in (design, planes_of(skewed))
        ]
        gains.append(losses[0] - losses[1])
    assert np.mean(gains) > 0.001
    assert np.mean(gains) > 3 * np.std(gains) / np.sqrt(len(gains))


def planes_of(fit: SurfaceFit) -> engine.OptimumTrends:
    return trends(optimum_law(fit.valley.coefficients, fit.centre)[0], fit.centre)


def parabola_only(trajectories, cells) -> engine.OptimumTrends:  # type: ignore[no-untyped-def]
    """The law of a parabola through all that wastes less than 0.5 of ln D."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isoloss.laws.surface.skew.USUAL_ASYMMETRY", np.zeros(4))
        patch.setattr("isoloss.laws.surface.joint_fit.NEAR", (0.15,))
        return planes_of(fit_surface(trajectories, cells))


def local_loss(points: np.ndarray, at: np.ndarray, width: float = 0.5) -> float:
    """Loss at (ln LR, ln B) by a quadratic through the points near it."""
    apart = points[:, :2] - at
    weights = np.exp(-0.5 * (apart**2).sum(axis=1) / width**2)
    weights = weights * (points[:, 2] < points[:, 2].min() + 0.15)
    root = np.sqrt(weights)
    solution = np.linalg.lstsq(terms(apart) * root[:, None], points[:, 2] * root, rcond=None)
    return float(solution[0][0])


@cache
def shown(name: str, held: tuple[float, ...]) -> engine.Laws:
    return engine.fit_laws([r for r in table(name).runs if r.params not in held], OPTIONS)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_shapes_that_differ_in_their_experts_share_a_learning_rate(at):
    """All four are as wide and as deep: at equal tokens the best learning rate does not follow N."""
    laws = shown(MOE, (table(MOE).sizes[at],))
    assert laws.surface.halved_trends == ("learning_rate",)


def test_dense_sizes_keep_their_trends():
    laws = shown(DENSE, tuple(table(DENSE).sizes[3:]))
    assert laws.surface.halved_trends == ()
    assert laws.surface.optimum.learning_rate.of_params < -0.5


def test_intervals_hold_most_held_out_optima_of_published_sweeps():
    """Of 21 cells; the cells' own optima are blurred by noise beside."""
    held_rate, held_batch = [], []
    for name in (DENSE, MOE):
        sizes = table(name).sizes
        for held in [tuple(sizes[3:])] if name == DENSE else [(n,) for n in sizes]:
            laws = shown(name, held)
            for (n, d), points in table(name).points.items():
                if n not in held:
                    continue
                found = engine.predict(
                    laws, engine.PredictionQuery(total_flops=6 * n * d, params=n)
                )
                rate, batch = np.exp(judge(points).vertex)
                held_rate.append(found.learning_rate.low <= rate <= found.learning_rate.high)
                held_batch.append(found.batch_size.low <= batch <= found.batch_size.high)
    assert len(held_rate) == 21
    assert np.mean(held_rate) >= 0.7
    assert np.mean(held_batch) >= 0.6


def test_a_capped_learning_rate_is_an_edge_and_not_an_optimum():
    capped = [r for r in table(DENSE).runs if r.learning_rate <= 5.5e-4]
    laws = engine.fit_laws(capped, OPTIONS)
    fitted = [o for o in laws.optima if o.status == "fitted" and o.params < 1e9]
    assert not fitted
    assert laws.learning_rate.status == "refused"
    assert laws.surface.refusal.reason is engine.RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE
    assert laws.surface.refusal.figures["direction"] == "larger"


def test_tokens_to_a_target_loss_without_a_minimum_in_the_batch_size():
    laws = engine.fit_laws(critical_batch_runs(), OPTIONS)
    assert laws.status == "refused"
    assert laws.batch_size.refusal.reason is engine.RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE
    assert laws.batch_size.refusal.figures["direction"] == "smaller"
    assert laws.batch_size.refusal.figures["edge"] == pytest.approx(64)
    assert not [o for o in (*laws.optima, *laws.frontier) if o.status != "refused"]
    refusal_of(laws, engine.PredictionQuery(total_flops=1e20, params=1e9))


def critical_batch_runs() -> list[engine.Run]:
    with (data_folder() / CRITICAL_BATCH).open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["val_loss"] and row["lr_peak"]]
    return [
        engine.Run(
            row["run_id"],
            float(row["n_params_active"]),
            float(row["batch_size_sequences"]),
            512,
            float(row["lr_peak"]),
            np.array([float(row["tokens"])]),
            np.array([float(row["val_loss"])]),
        )
        for row in rows
        if row["tokens"]
    ]


@cache
def schedule_runs() -> tuple[engine.Run, ...]:
    """Every run with its schedule; cooldown branches of a constant trunk are annealed."""
    rows: dict[str, list[dict[str, str]]] = {}
    with gzip.open(data_folder() / SCHEDULES, "rt") as lines:
        for row in csv.DictReader(lines):
            if row["val_loss"] and float(row["tokens"]) > 0 and row["is_final_full_eval"] == "0":
                rows.setdefault(row["run_id"], []).append(row)
    return tuple(_schedule_run(name, found) for name, found in rows.items())


def _schedule_run(name: str, rows: list[dict[str, str]]) -> engine.Run:
    rows = sorted(rows, key=lambda row: float(row["tokens"]))
    annealed = rows[0]["resumed"] == "1" or "cos" in rows[0]["schedule"]
    return engine.Run(
        name,
        float(rows[0]["n_params_active"]),
        float(rows[0]["batch_size_sequences"]),
        512,
        float(rows[0]["lr_peak"]),
        np.array([float(row["tokens"]) for row in rows]),
        np.array([float(row["val_loss"]) for row in rows]),
        loss_kind="annealed" if annealed else "constant",
    )


def test_annealed_and_constant_losses_are_not_mixed():
    kinds = {run.loss_kind for run in schedule_runs()}
    assert kinds == {"annealed", "constant"}
    laws = engine.fit_laws(schedule_runs(), OPTIONS)
    assert {r.reason for r in laws.refusals} == {engine.RefusalReason.MIXED_LOSS_KINDS}


def test_unlabelled_branches_of_one_trunk_are_found_out():
    """Without labels, the same configuration has two losses at the same tokens."""
    unlabelled = [replace(run, loss_kind=None) for run in schedule_runs()]
    laws = engine.fit_laws(unlabelled, OPTIONS)
    assert {r.reason for r in laws.refusals} == {engine.RefusalReason.DUPLICATED_RUN}
    assert "annealed" in laws.refusals[0].message


def at_one_batch_size(batch: float) -> tuple[list[float], list[bool]]:
    """Regrets at that batch size, and whether intervals hold the best learning rate there, each size left out in turn."""
    found = table(DENSE)
    chosen = [
        (r, key) for r, key in zip(found.runs, found.cells, strict=True) if r.batch_size == batch
    ]
    regrets, held = [], []
    for size in found.sizes:
        laws = engine.fit_laws([r for r, _ in chosen if r.params != size], OPTIONS)
        for n, d in sorted({key for _, key in chosen if key[0] == size}):
            own = sorted(
                (np.log(r.learning_rate), r.losses[-1]) for r, key in chosen if key == (n, d)
            )
            x, losses = np.array(own).T
            query = engine.PredictionQuery(total_flops=6 * n * d, params=n, batch_size=batch)
            answer = answered(laws, query)
            rate = answer.learning_rate
            regrets.append(float(np.interp(np.log(rate.value), x, losses) - losses.min()))
            best = int(np.argmin(losses))
            near = slice(max(best - 2, 0), best + 3)
            bend, slope, _ = np.polyfit(x[near] - x[best], losses[near], 2)
            vertex = x[best] - slope / (2 * bend) if bend > 0 else x[best]
            held.append(bool(np.log(rate.low) <= vertex <= np.log(rate.high)))
    return regrets, held


def test_the_learning_rate_at_one_batch_size_is_found_from_runs_at_that_one_alone():
    """About 190 runs each: a tenth of the sweep, which has no answer without the batch size."""
    everything = []
    for batch in (64.0, 128.0, 256.0, 512.0):
        regrets, held = at_one_batch_size(batch)
        assert len(regrets) >= 16
        assert np.mean(regrets) <= 0.0026
        assert np.max(regrets) <= 0.006
        everything += held
    assert 0.75 <= np.mean(everything) <= 0.95


def test_the_learning_rate_at_a_batch_size_of_many_saturates_later_the_more_tokens():
    """Linear in ln B it lost 0.0026 nats in the mean, and 0.0085: too low a rate at large batches and few tokens."""
    found, regrets = table(DENSE), []
    for size in found.sizes:
        laws = engine.fit_laws([r for r in found.runs if r.params != size], OPTIONS)
        for n, d in sorted({key for key in found.cells if key[0] == size}):
            for batch in (64.0, 128.0, 256.0, 512.0):
                own = sorted(
                    (np.log(r.learning_rate), r.losses[-1])
                    for r, key in zip(found.runs, found.cells, strict=True)
                    if key == (n, d) and r.batch_size == batch
                )
                if len(own) >= 5:
                    x, losses = np.array(own).T
                    query = engine.PredictionQuery(
                        total_flops=6 * n * d, params=n, batch_size=batch
                    )
                    rate = np.log(answered(laws, query).learning_rate.value)
                    regrets.append(float(np.interp(rate, x, losses) - losses.min()))
    assert np.mean(regrets) <= 0.0018
    assert np.max(regrets) <= 0.006
