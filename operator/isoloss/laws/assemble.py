"""Combines the parts of a fit into the public result: ranges, exclusions, warnings, draws."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isoloss.laws import results
from isoloss.laws.data.trajectories import Collected, Trajectory
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.iso_loss.envelope import BEST_RUNS, ONE_BATCH_SIZE, ONE_SIZE
from isoloss.laws.iso_loss.estimate import IsoLossEstimate, IsoLossFit
from isoloss.laws.iso_loss.loss_compute import contradicted_floor
from isoloss.laws.iso_loss.optima import Frontier
from isoloss.laws.iso_loss.records import contours_of, frontier_results, size_optima_results
from isoloss.laws.model import DEFAULTS, NO_MINIMUM, FitOptions, Run, Status
from isoloss.usual import FEWEST_RUNS

ONE_TOKEN_COUNT = (
    "Every size was evaluated at one number of tokens, so the runs do not show the effect of tokens at one size. The joint surface "
    "takes it from the sizes, the learning rate at a given batch size from what is usual: for another ratio of tokens to size than "
    "the sweep's the two may differ by a factor of 2. Evaluate runs earlier as well, or train a size for other tokens."
)
KEPT_CONTOUR_POINTS = 20_000
"""Runs times levels above which contours are thinned, to keep the document small."""


@dataclass(frozen=True)
class Estimates:
    """The iso-loss laws, the joint surface and the law at a given batch size."""

    iso_loss: IsoLossFit
    surface: results.SurfaceLaw
    rate_at_batch: results.RateAtBatchLaw


OF_CHECKPOINTS = "The laws are of runs that continue checkpoints: tokens and compute are those of the continuation."


def assemble(
    runs: Sequence[Run],
    options: FitOptions,
    fitted: Status,
    collected: Collected,
    estimates: Estimates,
) -> Laws:
    """The public record of a fit."""
    iso_loss = estimates.iso_loss
    frontier, levels, laws = iso_loss.frontier, iso_loss.levels, iso_loss.estimate
    along_frontier = laws.learning_rate.refusal is None and laws.batch_size.refusal is None
    linear = options.form == "LinearInLogCompute"
    answers = estimates.surface.refusal is None or (linear and along_frontier)
    data = _data_range(runs, collected.trajectories, None if _of_best_runs(laws) else frontier)
    return Laws(
        status=fitted if answers else "refused",
        learning_rate=laws.learning_rate,
        batch_size=laws.batch_size,
        loss_compute=laws.loss_compute,
        surface=estimates.surface,
        optima=tuple(o for s in iso_loss.sizes for o in size_optima_results(s, levels, fitted)),
        frontier=() if frontier is None else frontier_results(frontier, fitted),
        contours=_kept_contours(iso_loss),
        excluded=collected.excluded,
        warnings=(
            *collected.warnings,
            *_warnings(iso_loss, one_batch_size=len(data.batch_sizes) == 1),
            *_of_one_token_count(estimates),
            *([OF_CHECKPOINTS] if runs[0].started_from == "Checkpoints" else []),
        ),
        data=data,
        draws=_kept_draws(estimates),
        sequence_length=runs[0].sequence_length,
        options=options,
        tokenizer=runs[0].tokenizer,
        loss_kind=runs[0].loss_kind,
        optimizer=runs[0].optimizer,
        started_from=runs[0].started_from,
        run_noise=collected.run_noise,
        rate_at_batch=estimates.rate_at_batch,
    )


def _kept_contours(iso_loss: IsoLossFit) -> tuple[results.Contour, ...]:
    """Every contour of a usual sweep; of a huge one, evenly spaced levels."""
    points = sum(len(s.size.trajectories) for s in iso_loss.sizes) * len(iso_loss.levels)
    every = 1 + points // KEPT_CONTOUR_POINTS
    kept = {float(np.exp(loss)) for loss in iso_loss.levels[::-every]}
    found = (c for s in iso_loss.sizes for c in contours_of(s, iso_loss.levels))
    return tuple(c for c in found if c.loss in kept)


def _warnings(iso_loss: IsoLossFit, *, one_batch_size: bool) -> tuple[str, ...]:
    found: list[str] = []
    curve = iso_loss.estimate.loss_compute
    if not curve.irreducible_loss_identified and curve.irreducible_loss_interval is not None:
        low, high = curve.irreducible_loss_interval.low, curve.irreducible_loss_interval.high
        found.append(
            f"The irreducible loss is poorly determined: the data allow {low:.3g} to {high:.3g} nats. "
            "Predictions include this uncertainty; set the irreducible loss if you know it."
            if high > 0.0
            else "The loss-compute law has no irreducible loss, and language has one: check tokens, without padding, and params of each "
            "size, or set the irreducible loss if you know it."
        )
    frontier, along_optima = iso_loss.frontier, iso_loss.estimate.learning_rate.refusal is None
    if frontier is not None and along_optima and not one_batch_size:
        used = frontier.found
        floor = contradicted_floor(
            curve, np.exp(frontier.log_loss[used]), frontier.log_flops[0, used]
        )
        found += [floor] if floor is not None else []
    if len(iso_loss.sizes) == 1 and curve.refusal is None:
        found.append(ONE_SIZE)
    if one_batch_size and curve.refusal is None:
        found.append(ONE_BATCH_SIZE)
    elif _of_best_runs(iso_loss.estimate):
        found.append(BEST_RUNS)
    if iso_loss.frontier is not None:
        used = iso_loss.frontier.found
        winners = np.unique(np.round(iso_loss.frontier.log_params[0, used], 6))
        if used.any() and len(winners) < 2:
            found.append(
                f"One size ({np.exp(winners[0]):.3g} parameters) needs the least compute at every loss "
                "level: the iso-loss laws describe that size only."
            )
    return tuple(found)


def _of_one_token_count(estimates: Estimates) -> tuple[str, ...]:
    both_answer = estimates.surface.refusal is None and estimates.rate_at_batch.refusal is None
    return (ONE_TOKEN_COUNT,) if both_answer and not estimates.rate_at_batch.shows_tokens else ()


def _of_best_runs(laws: IsoLossEstimate) -> bool:
    """Whether L(C) is not along optima, because single loss levels have none inside the grid."""
    refusal = laws.learning_rate.refusal
    return (
        refusal is not None and refusal.reason in NO_MINIMUM and laws.loss_compute.refusal is None
    )


def _data_range(
    runs: Sequence[Run], trajectories: Sequence[Trajectory], frontier: Frontier | None
) -> results.DataRange:
    flops = losses = np.zeros(0)
    if frontier is not None:
        flops = np.exp(frontier.log_flops[0, frontier.found])
        losses = np.exp(frontier.log_loss[frontier.found])
    usable = [t for t in trajectories if t.usable]
    return results.DataRange(
        runs=len(runs),
        evaluations=sum(len(r.tokens) for r in runs),
        sizes=tuple(sorted({t.params for t in trajectories})),
        batch_sizes=tuple(sorted({t.batch_size for t in trajectories})),
        learning_rates=tuple(sorted({t.learning_rate for t in trajectories})),
        smallest_flops=float(flops.min()) if len(flops) else None,
        largest_flops=_most_spent(usable),
        lowest_loss=float(losses.min()) if len(losses) else None,
        highest_loss=max((float(np.exp(t.log_losses.max())) for t in usable), default=None),
        smallest_tokens=min((float(np.exp(t.log_tokens[0])) for t in usable), default=None),
        largest_tokens=max((float(np.exp(t.log_tokens[-1])) for t in usable), default=None),
        stable_rates=_stable_rates(trajectories),
    )


def _stable_rates(trajectories: Sequence[Trajectory]) -> tuple[results.StableRate, ...]:
    rates: dict[tuple[float, float], tuple[list[float], list[float]]] = {}
    for t in trajectories:
        stable, diverged = rates.setdefault((t.params, t.batch_size), ([], []))
        if t.diverged:
            diverged.append(t.learning_rate)
        elif t.usable:
            stable.append(t.learning_rate)
    return tuple(
        results.StableRate(
            *of, max(stable), min((r for r in diverged if r > max(stable)), default=None)
        )
        for of, (stable, diverged) in sorted(rates.items())
        if stable
    )


def _most_spent(usable: Sequence[Trajectory]) -> float | None:
    """FLOPs that enough runs of one size were trained for to show an optimum: one longer run alone shows none."""
    spent = {
        params: sorted(
            t.flops_per_token * float(np.exp(t.log_tokens[-1]))
            for t in usable
            if t.params == params
        )
        for params in {t.params for t in usable}
    }
    enough = [own[-FEWEST_RUNS] for own in spent.values() if len(own) >= FEWEST_RUNS]
    return max(enough or [own[-1] for own in spent.values()], default=None)


def _kept_draws(estimates: Estimates) -> results.Draws:
    laws, kept = estimates.iso_loss.estimate, slice(DEFAULTS.bootstrap_samples)
    return results.Draws(
        laws.rate_draws and laws.rate_draws.take(kept),
        laws.batch_draws and laws.batch_draws.take(kept),
        laws.curve_draws and laws.curve_draws.take(kept),
    )
