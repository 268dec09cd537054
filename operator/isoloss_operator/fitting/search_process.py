"""Runs in the process of a fit: what the search wants next, from the trajectories that the fit has read."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from isoloss import search
from isoloss.laws import FitOptions, Run
from isoloss_contract.ledger import IntentAction
from isoloss_operator.decide.fits import PointDecision, SearchRequest, SearchStep

SHORT_OF_WANTED = 0.99
"""Share of its wanted tokens below which a run that ended has not been evaluated near its end."""


def search_step(
    request: SearchRequest, runs: Mapping[str, Run], fit_options: FitOptions
) -> SearchStep:
    """What follows from the runs by point key. Raises ValueError if a run's numbers are impossible."""
    sizes = {size.name: size for size in request.sizes}
    seen = [
        _seen(replace(known, run=runs.get(key)), sizes[known.point.size])
        for key, known in request.points.items()
        if known.point.size in sizes
    ]
    samples = request.options.fit.bootstrap_samples
    options = replace(
        request.options,
        budget_flops=_budget(request.flops_left, sizes, seen),
        fit=replace(fit_options, bootstrap_samples=samples),
    )
    step = search.next_step(request.sizes, seen, options)
    wanted = {s.point: s.wanted for s in seen}
    decisions = tuple(
        _decision(decision) for decision in step.decisions if _is_new(decision, wanted)
    )
    nothing = "" if decisions else search.StopReason.NOTHING_LEFT
    return SearchStep(
        decisions, str(step.stop or nothing), step.first_rung_flops, step.first_rung_seconds
    )


def _seen(seen: search.Seen, size: search.Size) -> search.Seen:
    # It has ended, or nothing would be decided now: what it lacks is evaluations with a finite loss.
    is_short = seen.tokens < SHORT_OF_WANTED * seen.wanted
    # An added one, if the size's tokens were lowered since.
    lacks_a_step = seen.point.batch_size * (size.sequence_length or 0) > size.tokens
    return replace(seen, failed=True) if is_short or lacks_a_step else seen


def _budget(
    left: float | None, sizes: Mapping[str, search.Size], seen: Iterable[search.Seen]
) -> float | None:
    """FLOPs for everything seen and still to come: the search counts what others trained as well."""
    if left is None:
        return None
    spent = (sizes[s.point.size].token_flops * s.tokens for s in seen)
    return max(left, 0.0) + sum(spent)


def _is_new(decision: search.Decision, wanted: Mapping[search.Point, float]) -> bool:
    """Whether it asks for more than is wanted already."""
    is_run = decision.action is IntentAction.RUN
    return not is_run or round(decision.tokens) > wanted.get(decision.point, 0.0)


def _decision(decision: search.Decision) -> PointDecision:
    point = decision.point
    return PointDecision(
        size=point.size,
        batch_size=round(point.batch_size),
        learning_rate=point.learning_rate,
        action=decision.action,
        tokens=round(decision.tokens) if decision.action is IntentAction.RUN else 0,
        reason=str(decision.reason),
        bound=decision.bound,
        flops=decision.flops,
        risk=decision.risk,
        added=decision.added,
        replicate=point.replicate,
    )
