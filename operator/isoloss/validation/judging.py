"""From the losses of short runs around an answer to a verdict on it, and to a refined answer.

The verdict rests on the probes alone, so that laws do not vouch for themselves: of the laws it uses the valley's
curvature (up to a factor) and how optima move with tokens. The refined answer adds the laws' interval as prior.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from isoloss import laws as engine
from isoloss.formatting import batch_size as batch_text
from isoloss.formatting import learning_rate as rate_text
from isoloss.formatting import loss as loss_text
from isoloss.formatting import number
from isoloss.usual import AT_THE_ANSWER, FEWEST_STEPS, SAME_VALUE, SURELY
from isoloss.validation.bowl import DRAWS, EVERYWHERE, Box, Normal, bowls
from isoloss.validation.caveats import caveats
from isoloss.validation.drift import drift, log_answer
from isoloss.validation.outcome import Comparison, Direction, Reason, Refined, Validation
from isoloss.validation.probe_length import answer_at
from isoloss.validation.probes import BEYOND_NOISE, SURE_OF_SIDE, InvalidProbes, Probe, log_places

TOLERANCE = 0.01
"""Nats at the full budget that an answer may lose and still hold: a tenth of the tokens, as is usual."""
CONFIDENCE = engine.FitOptions().interval
"""Probability from which on an answer's regret counts as tolerated, or as not."""
ANYWHERE = 1.5
"""Standard deviation of ln LR and ln B of an optimum that no law tells of: a factor of 4.5."""
FEWEST_INSIDE = DRAWS // 10
"""Draws of the optimum at the full budget that are on the answer's side of all probes that diverged."""
FEWEST_PROBES = 3
"""That did not diverge: the answer and one neighbour along each axis."""


@dataclass(frozen=True)
class _OptimumDraws:
    """Draws of the optimum at the full budget, and of the valley around it."""

    offset: engine.Array
    """(draws, 2) of ln(optimum / answer)."""
    curvature: engine.Array
    """(draws, 2, 2) nats."""

    @property
    def regret(self) -> engine.Array:
        """(draws,) nats that the answer loses."""
        return np.asarray(
            0.5 * np.einsum("ni,nij,nj->n", self.offset, self.curvature, self.offset), dtype=float
        )


def validate(
    laws: engine.Laws,
    query: engine.PredictionQuery,
    probes: Sequence[Probe],
    probe_flops: float,
    *,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Validation | engine.Refused:
    """Judge the laws' answer to `query` by `probes` of `probe_flops` each, and refine it.

    With a given batch size the learning rate alone is judged, by the probes there. Refused if the laws have no answer.
    Raises InvalidProbes if no probe is at the answer, probes are longer
    than the budget or of a model above the target's size or below a third of it, or the query has no budget of continued pre-training; ValueError for a query that contradicts
    itself.

    >>> from isoloss.validation import probes_of_runs
    >>> probes, tokens = probes_of_runs(isoloss.read_runs("probes.csv").runs)
    >>> judged = isoloss.validate(laws, query, probes, probe_flops=6 * 1e9 * tokens)
    >>> judged.reason.value
    'AnswerHolds'
    """
    if query.total_flops is not None:
        raise InvalidProbes(
            "probes continue a checkpoint: ask with its initial loss and a budget, not with total_flops"
        )
    answer = engine.predict(laws, query)
    if isinstance(answer, engine.Refused):
        return answer
    assert answer.cpt_flops is not None
    # Probes that all diverged reject the answer whatever their length.
    moves = Normal(np.zeros(2), np.zeros(2))
    if not _all_diverged(probes):
        found = _moves(laws, query, answer.cpt_flops, probe_flops)
        if isinstance(found, engine.Refused):
            return found
        moves = found
    judged = judge(
        answer,
        probes,
        moves,
        engine.loss_curvature(laws),
        tolerance,
        seed,
        rate_alone=query.batch_size is not None,
    )
    expected = answer.target_loss.value if answer.target_loss else None
    found_caveats = caveats(query, _at_the_answer(answer, probes), expected)
    return replace(judged, warnings=(*judged.warnings, *found_caveats))


def _moves(
    laws: engine.Laws, query: engine.PredictionQuery, budget_flops: float, probe_flops: float
) -> Normal | engine.Refused:
    """ln of the optimum at the budget over that at the probes' tokens. Raises InvalidProbes for longer probes."""
    if not 0.0 < probe_flops <= budget_flops * (1.0 + 1.0 / FEWEST_STEPS):
        raise InvalidProbes(
            f"probes of {probe_flops:.4g} FLOPs are longer than the budget of {budget_flops:.4g}"
        )
    flops = min(probe_flops, budget_flops)
    short, long = (answer_at(laws, query, each) for each in (flops, budget_flops))
    for each in (short, long):
        if isinstance(each, engine.Refused):
            return each
    assert isinstance(short, engine.Prediction) and isinstance(long, engine.Prediction)  # noqa: PT018
    return drift(short, long)


def judge(
    answer: engine.Prediction,
    probes: Sequence[Probe],
    moves: Normal,
    curvature: engine.Array,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    *,
    rate_alone: bool = False,
) -> Validation:
    """Judge an answer by probes, all of them alike in tokens, and refine it.

    `moves` is ln of the optimum at the full budget over that at the probes' tokens, `curvature` (2, 2) the Hessian of the
    loss over (ln LR, ln B) in nats, as the laws know it; `tolerance` is in nats at the full budget. With `rate_alone`
    the batch size is given: the learning rate is judged, by the probes at that batch size. Raises
    InvalidProbes if no probe is at the answer.
    """
    if rate_alone:
        probes = _at_its_batch_size(answer, probes)
        still = np.array([1.0, 0.0])
        moves = Normal(moves.mean * still, moves.deviation * still)
    middle = _at_the_answer(answer, probes)
    judged = Validation(
        None,
        Reason.TOO_FEW_PROBES,
        "",
        tuple(_comparison(middle, probe) for probe in probes if probe is not middle),
        warnings=tuple(_broken(probe) for probe in probes if _is_broken(probe, probes)),
    )
    if middle.diverged:
        where = (
            "at the answer and at every neighbour" if _all_diverged(probes) else "at the answer"
        )
        message = f"Training {where} diverged, so it cannot be the answer."
        return replace(
            judged,
            validated=False,
            reason=Reason.ANSWER_DIVERGED,
            message=message,
            direction=Direction("lower"),
        )
    kept = [probe for probe in probes if not probe.diverged]
    places = log_places(kept)
    varied = places[:, :1] if rate_alone else places
    if lacking := _lacking(varied):
        there = f" at {batch_text(answer.batch_size.value)} sequences" if rate_alone else ""
        message = f"Probes{there} that did not diverge: {len(kept)}{lacking}."
        return replace(judged, message=message)
    losses = np.array([probe.loss for probe in kept])
    errors = np.array([probe.standard_error for probe in kept])
    least = [probe.least_error for probe in kept if probe.least_error is not None]
    least_errors = np.array(least) if len(least) == len(kept) else None

    within = _within(answer, probes)

    def extrapolated(prior: Normal) -> _OptimumDraws | None:
        at_probes = Normal(prior.mean - moves.mean, np.hypot(prior.deviation, moves.deviation))
        found = bowls(
            places,
            losses,
            errors,
            at_probes,
            curvature,
            seed,
            least_errors=least_errors,
            within=within,
        )
        if len(found.minimum) < DRAWS // 2:
            return None
        moved = _moved(found.minimum, prior, at_probes, seed)
        # What diverges in a short run diverges in a long one.
        inside = within.holds(moved)
        if inside.sum() < FEWEST_INSIDE:
            return None
        return _OptimumDraws(moved[inside] - _log_given(answer), found.curvature[inside])

    anywhere = np.array([ANYWHERE, SAME_VALUE if rate_alone else ANYWHERE])
    alone = extrapolated(Normal(log_answer(answer), anywhere))
    with_laws = extrapolated(_prior(answer, rate_alone=rate_alone))
    if alone is None or with_laws is None or _on_a_ridge(answer, judged.comparisons):
        message = (
            "The probes' losses show no minimum: the answer's is above its neighbours'. Train more seeds, or "
            "neighbours a larger factor apart."
        )
        return replace(judged, reason=Reason.NO_MINIMUM, message=message)
    refined = _refined(answer, with_laws)
    if not rate_alone:
        return _verdict(replace(judged, refined=refined), alone, answer, tolerance, within)
    refined = replace(refined, batch_size=answer.batch_size)
    found = _verdict(replace(judged, refined=refined), alone, answer, tolerance, within)
    sizes = f"{batch_text(answer.batch_size.value)} sequences, the batch size that is given"
    note = f"The learning rate alone is judged, by the probes at {sizes}."
    return replace(found, message=f"{found.message} {note}")


def _all_diverged(probes: Sequence[Probe]) -> bool:
    return all(probe.diverged for probe in probes)


def _at_the_answer(answer: engine.Prediction, probes: Sequence[Probe]) -> Probe:
    """The probe that stands for the answer. Raises InvalidProbes without one."""
    at = _log_given(answer)
    found = min(
        probes,
        key=lambda probe: float(np.abs(np.array(probe.log_place) - at).max()),
        default=None,
    )
    if found is None or np.abs(np.array(found.log_place) - at).max() > AT_THE_ANSWER:
        raise InvalidProbes(
            f"no probe is at the answer, learning rate {rate_text(answer.learning_rate.value)} and "
            f"{batch_text(answer.batch_size.value)} sequences: train one there"
        )
    return found


def _at_its_batch_size(answer: engine.Prediction, probes: Sequence[Probe]) -> list[Probe]:
    """The probes at the answer's batch size, as if at exactly that one."""
    given = answer.batch_size.value
    near = [p for p in probes if abs(float(np.log(p.batch_size / given))) <= AT_THE_ANSWER]
    return [replace(probe, batch_size=given) for probe in near]


def _lacking(varied: engine.Array) -> str:
    """What places (n, 1 or 2) of ln LR and ln B lack to be judged, in words that follow their number; empty if nothing."""
    alike = [
        f"all at one {axis}; another one is needed"
        for axis, values in zip(("learning rate", "batch size"), varied.T, strict=False)
        if len(values) > 0 and np.ptp(values) <= 0.0
    ]
    few = [f"at least {FEWEST_PROBES} are needed"] if len(varied) < FEWEST_PROBES else []
    return "".join(f"; {each}" for each in (*few, *alike))


def _is_broken(lost: Probe, probes: Sequence[Probe]) -> bool:
    """Whether a probe diverged although one with a higher learning rate and no larger a batch did not."""
    if not lost.diverged:
        return False
    offsets = log_places([probe for probe in probes if not probe.diverged]) - lost.log_place
    return bool(np.any((offsets[:, 0] > AT_THE_ANSWER) & (offsets[:, 1] <= AT_THE_ANSWER)))


def _broken(lost: Probe) -> str:
    return (
        f"The probe at learning rate {rate_text(lost.learning_rate)} and {batch_text(lost.batch_size)} sequences diverged, and "
        "one at a higher learning rate did not: something else probably broke it. Look at its run, and repeat it."
    )


def _within(answer: engine.Prediction, probes: Sequence[Probe]) -> Box:
    """Where the optimum is: on the answer's side of every probe that diverged.

    A probe bounds the learning rate from above, or the batch size if it has the answer's learning rate; nothing that a
    stable probe contradicts.
    """
    at, low, high = _log_given(answer), EVERYWHERE.low.copy(), EVERYWHERE.high.copy()
    stable = log_places([probe for probe in probes if not probe.diverged])
    for place in log_places([probe for probe in probes if probe.diverged]):
        for axis, offset in enumerate(place - at):
            if abs(offset) <= AT_THE_ANSWER:
                continue
            if offset > 0.0 and stable[:, axis].max() < place[axis]:
                high[axis] = min(high[axis], place[axis])
                break
            if axis > 0 and offset < 0.0 and stable[:, axis].min() > place[axis]:
                low[axis] = max(low[axis], place[axis])
                break
    return Box(low, high)


def _log_given(answer: engine.Prediction) -> engine.Array:
    """(2,) ln LR and ln B as they were given, the batch size rounded."""
    given = np.array([answer.learning_rate.value, answer.batch_size.value])
    return np.asarray(np.log(given), dtype=float)


def _prior(answer: engine.Prediction, *, rate_alone: bool) -> Normal:
    """Intervals as normals of ln LR and ln B: of the best pair before rounding, or of the learning rate where the batch
    size is given."""
    intervals = (answer.learning_rate, answer.batch_size)
    mean = log_answer(answer)
    best = answer.best
    if answer.batch_size_given and not rate_alone and best is not None:
        # At a multiple far from the best batch size, which the answer itself does not tell of.
        intervals = (best.learning_rate, best.batch_size)
        mean = np.log(np.array([each.value for each in intervals], dtype=float))
    reach = NormalDist().inv_cdf(0.5 + answer.interval_level / 2)
    widths = [
        float(np.log(each.high / max(each.low, np.finfo(float).tiny))) / (2.0 * reach)
        for each in intervals
    ]
    return Normal(np.asarray(mean, dtype=float), np.clip(widths, SAME_VALUE, ANYWHERE))


def _moved(minima: engine.Array, prior: Normal, at_probes: Normal, seed: int) -> engine.Array:
    """Draws (n, 2) of the optimum at the budget, given those at the probes' tokens.

    The one is the other and an independent drift; the prior of both is normal, so that what the drift leaves
    open is closed by it.
    """
    gain = (prior.deviation / at_probes.deviation) ** 2
    left = prior.deviation * np.sqrt(np.maximum(1.0 - gain, 0.0))
    rng = np.random.default_rng([seed, 1])
    known = prior.mean + gain * (minima - at_probes.mean)
    return np.asarray(known + left * rng.standard_normal(minima.shape), dtype=float)


def _comparison(middle: Probe, neighbour: Probe) -> Comparison:
    error = float(np.hypot(middle.standard_error, neighbour.standard_error))
    if middle.diverged:
        return Comparison(neighbour, float("nan"), error, None)
    if neighbour.diverged:
        return Comparison(neighbour, float("inf"), error, "answer")
    difference = neighbour.loss - middle.loss
    if abs(difference) <= BEYOND_NOISE * error:
        return Comparison(neighbour, difference, error, None)
    return Comparison(neighbour, difference, error, "answer" if difference > 0 else "neighbour")


def _on_a_ridge(answer: engine.Prediction, comparisons: Sequence[Comparison]) -> bool:
    """Whether the neighbours on both sides of an axis are surely lower than the answer, which then lies on no valley's floor."""
    lower = [c.neighbour for c in comparisons if c.difference < -SURELY * c.standard_error]
    if not lower:
        return False
    offsets = log_places(lower) - _log_given(answer)
    on_axis = np.abs(offsets[:, ::-1]) <= AT_THE_ANSWER
    return bool(
        np.any(np.any(on_axis & (offsets > 0), axis=0) & np.any(on_axis & (offsets < 0), axis=0))
    )


def _refined(answer: engine.Prediction, found: _OptimumDraws) -> Refined:
    level, given = answer.interval_level, np.exp(_log_given(answer))
    rate, batch = (_interval(draws, level) for draws in np.exp(found.offset).T)
    return Refined(
        _times(rate, float(given[0])),
        _times(batch, float(given[1])),
        _interval(found.regret, level),
    )


def _interval(draws: engine.Array, level: float) -> engine.Interval:
    low, middle, high = np.quantile(draws, [0.5 - level / 2, 0.5, 0.5 + level / 2])
    return engine.Interval(float(middle), float(low), float(high))


def _times(interval: engine.Interval, factor: float) -> engine.Interval:
    return engine.Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def _verdict(
    judged: Validation,
    alone: _OptimumDraws,
    answer: engine.Prediction,
    tolerance: float,
    within: Box,
) -> Validation:
    regret = alone.regret
    interval, side = _interval(regret, answer.interval_level), _direction(alone, within)
    judged = replace(judged, regret=interval, direction=side)
    tolerated = float(np.mean(regret <= tolerance))
    loses = (
        f"it loses {loss_text(interval.value)} nats at the full budget "
        f"(between {loss_text(interval.low)} and {loss_text(interval.high)})"
    )
    if tolerated >= CONFIDENCE:
        message = f"The answer holds: {loses}."
        return replace(judged, validated=True, reason=Reason.ANSWER_HOLDS, message=message)
    if tolerated <= 1.0 - CONFIDENCE and side != Direction():
        message = f"The answer does not hold: {loses}. The better one lies at {side.in_words()}."
        return replace(
            judged, validated=False, reason=Reason.BETTER_ANSWER_NEARBY, message=message
        )
    # With four decimals as losses have them, or as many as it takes.
    few = loss_text(tolerance) if tolerance >= 1e-3 else number(tolerance)
    message = (
        f"The probes cannot show whether the answer holds: {loses}; {few} are tolerated. "
        + (
            "Train more seeds, or longer probes."
            if within.is_open
            else "Train a neighbour between it and the probe that diverged."
        )
    )
    return replace(judged, reason=Reason.WITHIN_NOISE, message=message)


def _direction(found: _OptimumDraws, within: Box) -> Direction:
    """The sides on which the optimum surely lies, none of them towards a probe that diverged.

    An answer is rejected for another one only: probes that tell nothing leave an optimum anywhere, where nearly every answer would
    lose much.
    """
    above = np.mean(found.offset > 0.0, axis=0)
    up = (above >= SURE_OF_SIDE) & np.isinf(within.high)
    down = (above <= 1.0 - SURE_OF_SIDE) & np.isinf(within.low)
    return Direction(
        "higher" if up[0] else "lower" if down[0] else None,
        "larger" if up[1] else "smaller" if down[1] else None,
    )
