"""The story of one point as rows of a label and a text: pure, from what is known of it."""

from __future__ import annotations

from typing import Any

from isoloss import formatting
from isoloss.progress.point_facts import PointFacts
from isoloss.progress.words import bound_in_words, reason_in_words
from isoloss_contract.ledger import NOT_CHOSEN, AddedPoint, IntentAction, PointState
from isoloss_contract.records import WARMUP_MULTIPLE

Row = tuple[str, str]
"""A label, and a text."""

_STATES = {
    PointState.PENDING: "not finished",
    PointState.SUCCEEDED: "reached the tokens that were wanted",
    PointState.DIVERGED: "its loss is no longer finite or has blown up; it is not trained again",
    PointState.OUT_OF_MEMORY: "failed for good: no micro-batch fits the memory that the pod template gives",
    PointState.FAILED: "for good, after more failures than failurePolicy.retriesPerPoint allows",
}

_REACHED = "tokens", "wanted_tokens", "loss", "averaged_loss", "cooled_tokens", "cooled_loss"
_COUNTED = ("ended", "interruptions", "vanished", "charged", "micro_batch_halvings")


def story(facts: PointFacts) -> tuple[Row, ...]:
    """Everything about the point, in the order in which people ask."""
    record = facts.record
    rows = [
        ("point", record.name),
        ("key", record.key),
        ("settings", _settings(facts)),
        ("state", f"{record.state}: {_STATES[record.state]}"),
        ("wanted", _wanted(facts)),
        ("trained", _trained(facts)),
        ("training now", _training(facts)),
        ("attempts", _attempts(facts)),
        *_failures(facts),
        ("cost", _cost(facts)),
        ("versions", _versions(facts)),
        ("in the fit", "; ".join(fit_use(facts))),
        ("files", facts.uri),
        *(("", each) for each in _files(facts)),
        *(("unreadable", message) for message in facts.unreadable),
    ]
    return tuple((label, text) for label, text in rows if text)


def story_text(rows: tuple[Row, ...], width: int) -> str:
    """The rows as lines of at most `width` characters, if no single word is longer."""
    indent = max((len(label) for label, _ in rows), default=0) + 2
    lines = []
    for label, text in rows:
        for number, line in enumerate(formatting.wrapped(text, max(width - indent, 20))):
            lines.append(f"{'' if number else label:<{indent}}{line}".rstrip())
    return "\n".join(lines)


def document(facts: PointFacts) -> dict[str, Any]:
    """The same for programs. Losses in nats per token."""
    record, attempts = facts.record, facts.record.attempts
    added = _added(facts)
    return {
        "sweep": facts.ledger.sweep,
        "name": record.name,
        "key": record.key,
        "size": record.proxy,
        "batch_size": record.batch_size,
        "learning_rate": record.learning_rate,
        "added": added.reason if added else None,
        "former": facts.is_former,
        "adopted": record.adopted,
        "state": record.state.value,
        "intent": {
            "action": record.intent.action.value,
            "tokens": record.intent.tokens or None,
            "reason": record.intent.reason or None,
            "bound": record.intent.bound,
        },
        **{name: getattr(record, name) for name in _REACHED},
        "training": facts.is_training,
        "attempts": {
            **{name: getattr(attempts, name) for name in _COUNTED},
            "failures": [each.model_dump() for each in attempts.failures],
        },
        "spent_flops": record.spent_flops,
        "accelerator_seconds": record.spent_accelerator_seconds,
        "fit": list(fit_use(facts)),
        "uri": facts.uri,
        "files": list(facts.files),
        "checkpoints": list(facts.checkpoints),
        "unreadable": list(facts.unreadable),
    }


def _settings(facts: PointFacts) -> str:
    record = facts.record
    rate = formatting.learning_rate(record.learning_rate)
    sequences = formatting.counted(record.batch_size, "sequence")
    text = f"size {record.proxy}, {sequences} per step, learning rate {rate}"
    if facts.config is not None:
        text += f", seed {facts.config.seed}"
    if facts.is_former:
        text += "; an edit of the spec dropped it"
    if (added := _added(facts)) is not None:
        text += f"; added to the grid ({reason_in_words(added.reason)})"
    return text


def _added(facts: PointFacts) -> AddedPoint | None:
    return facts.ledger.addition_of(facts.record)


def _wanted(facts: PointFacts) -> str:
    record, intent = facts.record, facts.record.intent
    whole = formatting.count(record.wanted_tokens)
    if intent.action is IntentAction.PRUNE:
        text = f"pruned after {formatting.count(record.trained_for)} of {whole} tokens"
    elif intent.reason == NOT_CHOSEN:
        text = f"nothing yet of {whole} tokens in all"
    elif intent.action is IntentAction.PAUSE:
        text = f"paused, of {whole} tokens in all"
    elif 0 < intent.tokens < record.wanted_tokens:
        text = f"{formatting.count(intent.tokens)} of {whole} tokens for now"
    else:
        text = f"all {whole} tokens"
    why = [reason_in_words(intent.reason), bound_in_words(intent)]
    return "; ".join([text, *(each for each in why if each)])


def _trained(facts: PointFacts) -> str:
    record, rows = facts.record, facts.trajectory
    if not record.tokens and not rows:
        return "nothing yet"
    tokens = record.tokens or (rows[-1].tokens if rows else 0)
    parts = [f"{formatting.count(tokens)} tokens"]
    if rows:
        parts.append(formatting.counted(len(rows), "evaluation"))
    loss = record.loss if record.loss is not None or not rows else rows[-1].loss
    averaged = (
        record.averaged_loss
        if record.averaged_loss is not None or not rows
        else rows[-1].averaged_loss
    )
    if loss is not None:
        parts.append(f"loss {formatting.loss(loss)} nats per token")
    if averaged is not None:
        parts.append(f"of averaged weights {formatting.loss(averaged)}")
    if record.cooled_tokens is not None and record.cooled_loss is not None:
        cooled = formatting.count(record.cooled_tokens)
        parts.append(f"cooled down at {cooled} tokens {formatting.loss(record.cooled_loss)}")
    if facts.result is not None and facts.result.diverged_at_tokens is not None:
        parts.append(f"diverged at {formatting.count(facts.result.diverged_at_tokens)} tokens")
    if record.adopted:
        parts.append("found in the store, not trained by this sweep")
    return ", ".join(parts)


def _training(facts: PointFacts) -> str:
    progress = facts.progress
    if progress is None or not facts.is_training:
        return ""
    done, wanted = formatting.count(progress.tokens), formatting.count(progress.wanted_tokens)
    parts = [f"attempt {progress.claimant.attempt}", f"{done} of {wanted} tokens"]
    if progress.loss is not None:
        parts.append(f"loss {formatting.loss(progress.loss)}")
    if progress.tokens_per_second:
        parts.append(f"{formatting.count(progress.tokens_per_second)} tokens per second")
    return f"{', '.join(parts)}, reported at {progress.updated_at}"


def _attempts(facts: PointFacts) -> str:
    attempts = facts.record.attempts
    if not attempts.ended:
        return "none has ended"
    parts = [f"{attempts.ended} ended"]
    if attempts.interruptions:
        parts.append(f"{attempts.interruptions} interrupted (not charged)")
    if attempts.vanished:
        parts.append(f"{attempts.vanished} whose pods were gone")
    parts += [f"{count} charged as {name}" for name, count in sorted(attempts.charged.items())]
    if attempts.micro_batch_halvings:
        parts.append(
            f"micro-batch halved {formatting.counted(attempts.micro_batch_halvings, 'time')}"
        )
    last = attempts.last_failure or "with a result"
    ended_at = f" at {attempts.last_ended_at}" if attempts.last_ended_at else ""
    return f"{', '.join(parts)}; the last{ended_at}: {last}"


def _failures(facts: PointFacts) -> list[Row]:
    return [
        (
            f"attempt {each.attempt}",
            f"{each.failure}: {each.message}" if each.message else each.failure,
        )
        for each in facts.record.attempts.failures
    ]


def _cost(facts: PointFacts) -> str:
    record = facts.record
    parts = [f"{formatting.flops(record.spent_flops)} FLOPs"]
    if record.flops_per_token:
        whole = record.flops_per_token * record.wanted_tokens
        parts.append(f"of {formatting.flops(whole)} to its end")
    if record.spent_accelerator_seconds:
        hours = formatting.number(record.spent_accelerator_seconds / 3600)
        parts.append(f", {hours} accelerator hours")
    return " ".join(parts).replace(" ,", ",")


def _versions(facts: PointFacts) -> str:
    index = facts.record.versions
    if index is None or index >= len(facts.ledger.versions):
        return ""
    return ", ".join(f"{name} {v}" for name, v in sorted(facts.ledger.versions[index].items()))


def fit_use(facts: PointFacts) -> tuple[str, ...]:
    """Whether the laws use the point, and what of it they leave out and why."""
    record = facts.record
    if facts.is_former:
        return ("not used: it is no longer part of the sweep",)
    if not record.is_fitted:
        return (f"not used: {_why_not_fitted(facts)}",)
    if facts.laws_are_unreadable:
        return ("not known: the laws cannot be read",)
    if facts.laws is None:
        return ("to be used: there are no laws yet",)
    reasons = [each.reason for each in facts.laws.excluded if each.run == record.name]
    used = "used as a run that diverged" if record.state is PointState.DIVERGED else "used"
    if reasons:
        used = f"not used, or not all of it: {'; '.join(reasons)}"
    return tuple(each for each in (used, _warmup(facts), _laws_age(facts)) if each)


def _laws_age(facts: PointFacts) -> str:
    fitted = sum(record.is_fitted for record in facts.ledger.points)
    if facts.fit is None or facts.fit.points >= fitted:
        return ""
    return f"the laws are from {formatting.counted(facts.fit.points, 'point')}, and there are results of {fitted} by now"


def _why_not_fitted(facts: PointFacts) -> str:
    record = facts.record
    if record.state in (PointState.FAILED, PointState.OUT_OF_MEMORY):
        return "it failed for good"
    if record.intent.action is IntentAction.PAUSE and not record.tokens:
        return reason_in_words(record.intent.reason) or "it is paused"
    return "it has no result yet"


def _warmup(facts: PointFacts) -> str:
    """Evaluations that runs.run_from_point leaves out."""
    if facts.config is None or not facts.trajectory:
        return ""
    start = WARMUP_MULTIPLE * facts.config.optimizer.warmup_tokens
    early = sum(row.tokens <= start for row in facts.trajectory)
    if not early:
        return ""
    return (
        f"without {early} of {len(facts.trajectory)} evaluations, up to {formatting.count(start)} tokens, "
        "because of the warm-up"
    )


def _files(facts: PointFacts) -> list[str]:
    parts = [name for name in facts.files if name != "checkpoints"]
    if facts.checkpoints:
        parts.append(f"checkpoints ({len(facts.checkpoints)}, newest {facts.checkpoints[-1]})")
    return [", ".join(parts) or "nothing is stored yet"]
