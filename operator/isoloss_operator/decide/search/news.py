"""What a search tells its users: events about each step, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isoloss.formatting import flops as flops_in_words
from isoloss.progress.words import ENDINGS
from isoloss_contract.ledger import IntentAction, Ledger
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.events import MAX_EVENT_MESSAGE, NAMED
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.search_steps import PointDecision, SearchStep

RUN_ON, ADDED, REPEATED, PRUNED = "run on", "added", "repeated with other seeds", "pruned"


def ended_in_words(ended: str) -> str:
    """Why the search is over, by one of isoloss.search.StopReason."""
    return f"The search is over ({ended}): {ENDINGS.get(ended, ended)}."


def search_events(ledger: Ledger, step: SearchStep | None, told: str) -> tuple[Event, ...]:
    """One event about a step: its points, named as in the ledger, or that the search is over.

    `told` is why it ended by the status as observed.
    """
    if step is None or (step.ended and step.ended == told):
        return ()
    if step.ended:
        return (Event("Normal", Reason.SEARCH_STEP, ended_in_words(step.ended)),)
    names: dict[tuple[str, int, float], str] = {}
    for r in ledger.points:  # replicates come after the point that they repeat
        names.setdefault((r.proxy, r.batch_size, r.learning_rate), r.name)
    groups: dict[str, list[PointDecision]] = {
        words: [] for words in (RUN_ON, ADDED, REPEATED, PRUNED)
    }
    for decision in step.decisions:
        groups[_group(decision)].append(decision)
    parts = (_part(found, words, names) for words, found in groups.items())
    message = shortened("; ".join(part for part in parts if part), MAX_EVENT_MESSAGE)
    return (Event("Normal", Reason.SEARCH_STEP, message),)


def _group(decision: PointDecision) -> str:
    if decision.action is IntentAction.PRUNE:
        return PRUNED
    if decision.replicate:
        return REPEATED
    return ADDED if decision.added else RUN_ON


def _part(
    decisions: Sequence[PointDecision], words: str, names: dict[tuple[str, int, float], str]
) -> str:
    if not decisions:
        return ""
    flops = sum(decision.flops for decision in decisions)
    verb = "saving" if words == PRUNED else "for"
    more = f" and {len(decisions) - NAMED} more" if len(decisions) > NAMED else ""
    shown = ", ".join(_named(d, names) for d in decisions[:NAMED])
    return f"{len(decisions)} {words}, {verb} {flops_in_words(flops)} FLOPs: {shown}{more}"


def _named(decision: PointDecision, names: dict[tuple[str, int, float], str]) -> str:
    place = decision.size, decision.batch_size, decision.learning_rate
    facts: Iterable[str] = [decision.reason]
    if decision.bound is not None:
        facts = [decision.reason, f"by {decision.bound:.2g} nats", f"risk {decision.risk:.1e}"]
    return f"{names.get(place, decision.size)} ({', '.join(facts)})"
