"""Whether losses fall with tokens and size as training makes them: several epochs, a column in the wrong order, or another
unit do not."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.data.cells import LATER
from isoloss.laws.data.outliers import NAMED_NATS
from isoloss.laws.data.smoothing import DENSE
from isoloss.laws.data.trajectories import RISE_NATS, Trajectory
from isoloss.laws.results import SurfaceLaw
from isoloss.usual import FEWEST_RUNS, SURELY, USUAL_SLOPES

CONSIDERABLE = 0.2
"""Share of the runs that rise from which there is a warning: a few at high learning rates do in healthy sweeps."""
WORSE, NEXT_SIZE = 0.03, 1.2
"""By how much the ln L of a larger size is above that of a smaller one before it is said, and what counts as larger."""
SMOOTH, ROUGH = 1e-4, 0.01
"""Scatter of ln L between late evaluations. Below, they are no single ones: those of published trajectories scatter by 0.0006 and more,
and means over the run so far by 0.0001 and less. Above, and up and down, they are not of one text: published runs do by 0.0012 in the median,
tiny models (docs/evidence/transfer_stacked.jsonl) by 0.0029."""
JUMP, TIMES = 0.004, 10.0
"""ln L by which the course of a run jumps, and in medians of what its evaluations are off it: one of 21 published runs at a constant rate does,
and 98% of runs to which 0.05 nats are added on the way."""
FALLS, OUT_OF_LINE = (0.2, 1.5), 0.02
"""Fall of ln L per ln N from one size to the next, in that from the size before (0.7 to 1.04 in the published dense sweep, 0.25 and
0.9 in that of mixtures), and how far ln L may be off."""


def rising_warnings(trajectories: Sequence[Trajectory], surface: SurfaceLaw) -> Iterator[str]:
    """Sentences if most runs diverge, if many end above their lowest loss, and if losses hardly depend on tokens, or too much."""
    diverged = [t for t in trajectories if t.diverged]
    # Losses in the wrong order look like that.
    if 2 * len(diverged) > len(trajectories):
        yield (
            f"{len(diverged)} of {len(trajectories)} runs are marked as diverged, or end more than {RISE_NATS:g} nat above their "
            f"lowest loss ({diverged[0].name} first). They count up to that loss alone. If they did not diverge, check that each "
            "loss belongs to its tokens."
        )
    watched = [t for t in trajectories if len(t.log_tokens) >= DENSE and not t.diverged]
    rising = [t for t in watched if _rises(t)]
    if watched and len(rising) > CONSIDERABLE * len(watched):
        yield (
            f"The losses of {len(rising)} of {len(watched)} runs rise over the second half of their tokens ({rising[0].name} "
            "first). The laws count a loss as reached once a run was there. If the text was repeated, leave out what was trained after "
            "the lowest losses; if not, check that each loss belongs to its tokens."
        )
    long = [t for t in watched if len(t.log_tokens) >= 2 * DENSE]
    scatter = np.median([_late_scatter(t) for t in long] or [0.0])
    rough = np.median([_late_turns(t) for t in watched] or [0.0])
    if 0.0 < scatter < SMOOTH:
        yield (
            f"Late losses scatter by {scatter:.1g} of themselves about a smooth curve, and those of single evaluations by 0.0005 and "
            "more. If they are means over the run so far, or smoothed, give those of single evaluations: means lag behind the run, and "
            "a checkpoint's initial loss is none."
        )
    if rough > ROUGH:
        yield (
            f"Late losses scatter by {rough:.2g} of themselves from one evaluation to the next, and those on one held-out text by a tenth of that. "
            "If rows of a run are of several texts, metrics or processes, or of single batches, bring the held-out loss on one text alone."
        )
    jumping = [t for t in long if _jumps(t)]
    if len(jumping) > CONSIDERABLE * len(long):
        yield (
            f"The losses of {len(jumping)} of {len(long)} runs jump on the way ({jumping[0].name} first), as where the held-out text, the "
            "sequence length, the batch size or the learning rate was changed. Laws are of losses of one kind: leave out those before or after it."
        )
    low, high = USUAL_SLOPES
    if surface.token_slope is not None and not low <= surface.token_slope <= high:
        yield (
            f"At the end of the largest size's runs the loss falls by {surface.token_slope:.2g} nats per factor e of tokens; "
            f"{low:g} to {high:g} are usual. Check the units of tokens and losses, and whether the text was repeated."
        )


def _late_scatter(t: Trajectory) -> float:
    """Of the last evaluations: root mean square by which each is off the line through its neighbours."""
    return float(np.sqrt(np.mean(_off_course(t)[2 - DENSE :] ** 2)))


def _late_turns(t: Trajectory) -> float:
    """The same of that from one evaluation to the next: half a turn of losses of two kinds, and hardly anything of a bend."""
    return float(np.sqrt(np.mean(np.diff(_off_course(t)[2 - DENSE :]) ** 2))) / 2.0


def _jumps(t: Trajectory) -> bool:
    """Whether some loss is off that line by far more than the others; the first ones are on no line yet."""
    off = np.abs(_off_course(t))[len(t.log_tokens) // 4 :]
    return bool(off.max() > max(JUMP, TIMES * np.median(off)))


def _off_course(t: Trajectory) -> Array:
    """By how much each evaluation but the first and the last is off the line through its neighbours."""
    x, y = t.log_tokens, t.log_losses
    before, after = np.diff(x)[:-1], np.diff(x)[1:]
    off: Array = y[1:-1] - (y[:-2] * after + y[2:] * before) / (before + after)
    return off


def worse_sizes(trajectories: Sequence[Trajectory]) -> Iterator[str]:
    """A sentence if a size's best loss is well above that of a smaller one at the same tokens, or the losses of three sizes lie as
    on no law: those of one are in another unit, or of another text or tokenizer."""
    sizes: dict[float, list[Trajectory]] = {}
    for t in trajectories:
        if t.usable and not t.diverged:
            sizes.setdefault(t.params, []).append(t)
    before: tuple[float, float] | None = None
    for small, large in pairwise(sorted(sizes)):
        if large <= NEXT_SIZE * small:
            continue
        ends = [max(t.log_tokens[-1] for t in sizes[size]) for size in (small, large)]
        best = [_best_at(min(ends), sizes[size]) for size in (small, large)]
        apart, fall = np.log(large / small), best[0] - best[1]
        if fall < -WORSE:
            yield (
                f"At {np.exp(min(ends)):.3g} tokens the best loss of {large:.3g} parameters, {np.exp(best[1]):.3f}, is above that of "
                f"{small:.3g}, {np.exp(best[0]):.3f}. Check that the losses of all sizes are of one unit, text and tokenizer."
            )
            return
        if before is not None:
            low, high = sorted(share * before[1] * apart for share in FALLS)
            if fall < low - OUT_OF_LINE or fall > high + OUT_OF_LINE:
                yield (
                    f"At equal tokens ln(loss) falls by {before[1]:.3f} per factor e of size from {before[0]:.3g} to {small:.3g} "
                    f"parameters and by {fall / apart:.3f} from there to {large:.3g}: no law of size does that. Check that the losses "
                    "of all sizes are of one unit, text and tokenizer, and params, sequence_length and tokens of each."
                )
                return
        if np.isfinite(fall):
            before = small, fall / apart


def stopped_rates(trajectories: Sequence[Trajectory]) -> Iterator[str]:
    """A sentence if so few learning rates of a size were trained as long as its longest that they show no minimum there, and others were
    stopped before."""
    for size in sorted({t.params for t in trajectories}):
        ends: dict[float, float] = {}
        for t in trajectories:
            if t.params == size and t.usable and not t.diverged:
                ends[t.learning_rate] = max(t.log_tokens[-1], ends.get(t.learning_rate, 0.0))
        last = max(ends.values(), default=0.0)
        full = [rate for rate, end in ends.items() if end > last + np.log(LATER)]
        if len(full) < FEWEST_RUNS <= len(ends):
            stopped = sorted(ends.keys() - full)
            share = np.exp(max(ends[rate] for rate in stopped) - last)
            yield (
                f"At {size:.3g} parameters the runs at learning rates of {', '.join(f'{rate:.3g}' for rate in stopped[:5])} end at {share:.0%} of the "
                "others' tokens: beyond, too few are compared to show how the best one changes with tokens. Train them on."
            )
            return


def _best_at(log_tokens: float, runs: Sequence[Trajectory]) -> float:
    """The lowest ln L there, or at as many tokens but for whole steps; nan if no run was there."""
    found = [
        float(np.interp(log_tokens, t.log_tokens, t.log_losses))
        for t in runs
        if t.log_tokens[0] <= log_tokens <= t.log_tokens[-1] + OUT_OF_LINE
    ]
    return min(found, default=float("nan"))


def _rises(t: Trajectory) -> bool:
    """Whether a straight line through the late evaluations, those of its second half or half of the fewest, surely rises, by more than
    noise."""
    late = int((t.log_tokens >= t.log_tokens[-1] + np.log(LATER)).sum())
    last = slice(-max(late, DENSE // 2), None)
    x, y = t.log_tokens[last], t.log_losses[last]
    x = x - x.mean()
    spread = float((x**2).sum())
    slope = float((x * y).sum()) / spread
    residuals = y - y.mean() - slope * x
    error = float(np.sqrt((residuals**2).sum() / (len(x) - 2) / spread))
    return slope > SURELY * error and slope * float(np.ptp(x)) > NAMED_NATS
