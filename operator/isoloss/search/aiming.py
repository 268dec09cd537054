"""Where the cheaper sizes' laws put a larger size's optimum, and how well they know it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from isoloss import laws as engine
from isoloss.published import NotApplicable, published_law
from isoloss.search.lattice import grid_points, nearest_cell, neighbours
from isoloss.search.model import Point, Seen, Size

TREND = "published:step-law"
"""How optima move with size if laws do not say: the aim may be off, and racing mends it."""


@dataclass(frozen=True)
class BeyondGrid:
    """An optimum that the laws' refusal puts at or beyond the outermost value tried."""

    quantity: str
    """"batch_size" or "learning_rate", as the fields of Point."""
    larger: bool
    """Whether larger values are wanted, else smaller ones."""
    params: float | None
    """Size that it concerns; None: any size."""


@dataclass(frozen=True)
class NoDiagonal:
    """Too few rows and columns at a size for the laws to tell how its valley lies."""

    params: float


Lack = BeyondGrid | NoDiagonal
"""What one more point mends."""


@dataclass(frozen=True)
class Located:
    """An optimum with its interval."""

    learning_rate: engine.Interval
    batch_size: engine.Interval
    regret: float
    """Nats that the answer is expected to cost above the optimum: half of the surface's curvature times the
    intervals' variance. Infinite if there is no surface."""
    lack: Lack | None = None
    """For which the laws have no loss-compute law, so that they could place no checkpoint."""

    def within(self, learning_rate: float, batch_size: float) -> bool:
        """Whether both intervals are within these factors of their answers, in geometric mean."""
        return _half_width(self.learning_rate) <= math.log(learning_rate) and _half_width(
            self.batch_size
        ) <= math.log(batch_size)


def _half_width(interval: engine.Interval) -> float:
    if not 0.0 < interval.low <= interval.high:
        return math.inf
    return 0.5 * math.log(interval.high / interval.low)


def aim(runs: Sequence[engine.Run], size: Size, options: engine.FitOptions) -> Located | None:
    """Where runs of cheaper sizes put the optimum of a size at its tokens; None if their laws refuse, as those of one size do."""
    if not runs:
        return None
    found = locate(runs, size, options)
    return found if isinstance(found, Located) else None


def locate(
    runs: Sequence[engine.Run],
    size: Size,
    options: engine.FitOptions,
    screened: engine.Screened | None = None,
) -> Located | Lack | None:
    """The optimum of a size at its tokens by the laws of these runs, or what they lack if they can name it."""
    laws = engine.fit_laws(runs, options, screened=screened)
    per_token = _flops_per_token(runs, size)
    query = engine.PredictionQuery(
        total_flops=per_token * size.tokens, params=size.params, flops_per_token=per_token
    )
    found = engine.predict(laws, query)
    if not isinstance(found, engine.Prediction):
        # What is lacking at one size is the nearer aim than what is lacking at all of them.
        ordered = sorted(found.refusals, key=lambda refusal: "params" not in refusal.figures)
        named = (_lack(refusal.figures) for refusal in ordered)
        return next((lack for lack in named if lack is not None), None)
    batch = replace(found.batch_size, value=found.batch_size_raw)
    regret = _expected_regret(laws, found.learning_rate, batch)
    # L(C) of the best runs would do, but one along the optima costs a few of the cheapest points.
    refusal = laws.loss_compute.refusal or laws.learning_rate.refusal
    lack = None if refusal is None else _lack(refusal.figures)
    return Located(found.learning_rate, batch, regret, lack)


def _flops_per_token(runs: Sequence[engine.Run], size: Size) -> float:
    """FLOPs per token of a size as the laws count them: its own runs', else by the ratio of the size nearest to it.

    `Size.flops_per_token` is what budgets count; runs of a table may be counted otherwise.
    """
    nearest = min(runs, key=lambda run: abs(math.log(run.params / size.params)))
    counted = nearest.flops_per_token or 6.0 * nearest.params
    return counted * size.params / nearest.params


def _lack(figures: Mapping[str, Any]) -> Lack | None:
    if figures.get("missing") == "diagonal":
        return NoDiagonal(float(figures["params"]))
    if not {"quantity", "direction"} <= figures.keys():
        return None
    params, larger = figures.get("params"), figures["direction"] == "larger"
    return BeyondGrid(figures["quantity"], larger, None if params is None else float(params))


def _expected_regret(laws: engine.Laws, rate: engine.Interval, batch: engine.Interval) -> float:
    """The two errors taken as independent: along a ridge they cancel in part, so that this is an upper bound."""
    curvature, steepness = laws.surface.curvature, laws.surface.token_slope
    if curvature is None or steepness is None:
        return math.inf
    reach = NormalDist().inv_cdf(0.5 + laws.options.interval / 2)
    variances = [(_half_width(interval) / reach) ** 2 for interval in (rate, batch)]
    return 0.5 * steepness * float(curvature[0, 0] * variances[0] + curvature[1, 1] * variances[1])


def aimed_cells(
    size: Size, seen: Sequence[Seen], located: Located | None, fallback: tuple[float, float]
) -> tuple[Point, ...]:
    """The grid's cells to begin with: the nearest to the optimum, and along each axis its neighbour on that side.

    `fallback` is (ln LR, ln B), for laws that refused: there, the neighbours on all sides.
    """
    at = fallback
    if located is not None:
        at = (math.log(located.learning_rate.value), math.log(located.batch_size.value))
    centre = nearest_cell(size, *at)
    grid = set(grid_points(size))
    around = [p for p in neighbours(size, seen, centre) if p in grid]
    if located is None:
        return (centre, *around)
    return (centre, *_towards(around, centre, at))


def _towards(around: Sequence[Point], centre: Point, at: tuple[float, float]) -> Iterator[Point]:
    """Along each axis the neighbour that is nearer to a place (ln LR, ln B)."""

    def apart(point: Point) -> float:
        return math.hypot(
            math.log(point.learning_rate) - at[0], math.log(point.batch_size) - at[1]
        )

    for same_batch in (True, False):
        along = [p for p in around if (p.batch_size == centre.batch_size) is same_batch]
        if along:
            yield min(along, key=apart)


def moved_by_trend(leader: Point, here: Size, there: Size) -> tuple[float, float]:
    """(ln LR, ln B) of one size's leader carried to another by the published law's ratio.

    If that law does not apply, the leader's own: neighbours that are missing are tried from there.
    """
    law = published_law(TREND)
    try:
        a, b = (
            law.evaluate(total_flops=6.0 * s.params * s.tokens, params=s.params)
            for s in (here, there)
        )
    except NotApplicable:
        return math.log(leader.learning_rate), math.log(leader.batch_size)
    return (
        math.log(leader.learning_rate * b.learning_rate / a.learning_rate),
        math.log(leader.batch_size * b.batch_size_tokens / a.batch_size_tokens),
    )
