"""What a spec leaves open: models of checkpoints, and the places of points of sizes without a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from isoloss.laws import RefusalReason
from isoloss.validation import Place
from isoloss_contract.ledger import KnownCheckpoint, Neighbourhood
from isoloss_contract.reading import ABSENT, Read, Unreadable, is_unknown, problem_of, value_of
from isoloss_operator.api import Proxy, ScalingSweepSpec
from isoloss_operator.decide.conditions import READY, STALE, Finding
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import (
    ObservedAnswer,
    ObservedCheckpoint,
    ObservedReference,
    ObservedSweep,
)
from isoloss_operator.decide.owners import sweep_ledger
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.planning.continued import (
    UnknownModel,
    checkpoint_model,
    neighbourhood_errors,
    places_around,
)
from isoloss_operator.planning.specs import (
    InvalidSpec,
    SpecError,
    checkpoint_uri,
    checkpoint_uris,
)

# ------------------------------------------------------------------- checkpoints that sizes continue


def known_checkpoints(
    observed: ObservedSweep, spec: ScalingSweepSpec
) -> tuple[KnownCheckpoint, ...]:
    """Those that sizes of the spec continue. What the ledger has stands while it cannot be read again.

    Raises InvalidSpec for one that is neither in the ledger nor a model in the store.
    """
    before = {each.uri: each for each in sweep_ledger(observed).ledger.checkpoints}
    found, errors = {}, []
    for field, uri in checkpoint_uris(spec).items():
        try:
            found[uri] = _known_checkpoint(uri, before.get(uri), observed.checkpoints.get(uri))
        except UnknownModel as error:
            errors.append(SpecError(field, f"{uri}/config.json: {error}"))
    if errors:
        raise InvalidSpec(errors)
    return tuple(found.values())


def _known_checkpoint(
    uri: str, before: KnownCheckpoint | None, seen: ObservedCheckpoint | None
) -> KnownCheckpoint:
    """Raises UnknownModel."""
    config, stamp = (seen.config, seen.stamp) if seen is not None else (ABSENT, ABSENT)
    found, known_stamp = value_of(config), value_of(stamp)
    if before is not None and (found is None or known_stamp is None):
        return before
    if found is None or isinstance(stamp, Unreadable):
        raise UnknownModel(problem_of(config) or problem_of(stamp) or "not found")
    return KnownCheckpoint(uri, known_stamp or "", checkpoint_model(found))


def unanswered_checkpoint(observed: ObservedSweep, spec: ScalingSweepSpec) -> str:
    """Why a checkpoint that no point was planned with yet is not known; empty: all are, or are known to be none."""
    before = {each.uri for each in sweep_ledger(observed).ledger.checkpoints}
    new = (uri for uri in checkpoint_uris(spec).values() if uri not in before)
    reads: list[Read[Any]] = []
    for seen in (observed.checkpoints.get(uri) for uri in new):
        reads += [] if seen is None else [seen.config, seen.stamp]
    return next((read.message for read in reads if is_unknown(read)), "")


# -------------------------------------------------------------------------- places around an answer


def neighbourhoods(
    observed: ObservedSweep, spec: ScalingSweepSpec
) -> tuple[Neighbourhood, ...] | Finding:
    """One for each size around an answer, or why it has no points yet: where its points are, if the answer is still near
    them, or there is none now.

    Raises InvalidSpec for a prediction whose answer cannot place them.
    """
    ledger, found = sweep_ledger(observed).ledger, []
    before = {(each.proxy, each.prediction): each for each in ledger.neighbourhoods}
    for index, proxy in enumerate(spec.proxies):
        if proxy.around is None:
            continue
        known = before.get((proxy.name, proxy.around.prediction))
        answer = _answer(observed, index, proxy)
        if isinstance(answer, Finding):
            if known is None:
                return answer
            found.append(known)
            continue
        records = (*ledger.points, *reversed(ledger.former))
        mine = [(r.learning_rate, r.batch_size) for r in records if r.proxy == proxy.name]
        known_places = dict.fromkeys((*(known.places if known else ()), *mine))
        placed = _neighbourhood(spec, proxy, answer, [Place(*each) for each in known_places])
        if errors := neighbourhood_errors(spec, placed):
            raise InvalidSpec(errors)
        found.append(placed)
    return tuple(found)


def _answer(observed: ObservedSweep, index: int, proxy: Proxy) -> ObservedAnswer | Finding:
    """A prediction with an answer to place points around. Raises InvalidSpec."""
    assert proxy.around is not None
    name, field = proxy.around.prediction, f"spec.proxies[{index}]"
    answer = observed.answers.get(name)
    if answer is None:
        message = (
            f"{field}.grid.around: there is no HyperparamPrediction {name} in this namespace."
        )
        return Finding.false(Reason.PREDICTION_NOT_FOUND, message)
    asked, ready, stale = answer.spec, answer.said.get(READY), answer.said.get(STALE)
    if isinstance(asked, InvalidSpec):
        message = f"The spec of HyperparamPrediction {name} is invalid: {asked}"
        return Finding.false(Reason.PREDICTION_NOT_READY, message)
    if asked.sweep_ref.name == observed.name:
        message = (
            f"HyperparamPrediction {name} answers from the laws of this sweep, which it would wait for: put the size into "
            "a ScalingSweep of its own"
        )
        raise InvalidSpec([SpecError(f"{field}.grid.around.prediction", message)])
    theirs = "" if asked.checkpoint is None else asked.checkpoint.uri.rstrip("/")
    if theirs != checkpoint_uri(proxy):
        message = f"HyperparamPrediction {name} is about {theirs or 'no checkpoint, but a given loss'}: name the same checkpoint"
        raise InvalidSpec([SpecError(f"{field}.checkpoint.uri", message)])
    if ready is None or ready.status != "True" or ready.observed_generation != answer.generation:
        said = "the operator has not processed it yet" if ready is None else ready.message
        reason = "" if ready is None else f" ({ready.reason})"
        message = f"HyperparamPrediction {name} is not ready{reason}: {said}"
        return Finding.false(Reason.PREDICTION_NOT_READY, message)
    if stale is not None and stale.status == "True":
        message = f"The answer of HyperparamPrediction {name} is about to change: {stale.message}"
        return Finding.false(Reason.PREDICTION_NOT_READY, message)
    if _answered(answer) is None:
        message = f"The status of HyperparamPrediction {name} has no answer that can be read."
        return Finding.false(Reason.PREDICTION_NOT_READY, message)
    return answer


def _neighbourhood(
    spec: ScalingSweepSpec, proxy: Proxy, answer: ObservedAnswer, known: Sequence[Place]
) -> Neighbourhood:
    """Of batch sizes in sequences of this sweep at equal tokens per step."""
    asked, found, length = answer.spec, _answered(answer), spec.data.sequence_length
    assert proxy.around is not None
    assert found is not None
    assert not isinstance(asked, InvalidSpec)
    learning_rate, batch_size = found
    batch_size = max(batch_size * (asked.target_sequence_length or length) / length, 1.0)
    multiple_of = 1 if asked.target_sequence_length else asked.batch_size_multiple_of
    if asked.batch_size is not None:
        multiple_of = round(batch_size)
    places = places_around(
        learning_rate,
        batch_size,
        float(proxy.around.factor),
        multiple_of,
        known=known,
    )
    if asked.batch_size is not None:
        # Which batch size is best is not asked: others would tell nothing of the learning rate at the given one.
        places = tuple(place for place in places if place.batch_size == places[0].batch_size)
    pairs = tuple((place.learning_rate, place.batch_size) for place in places)
    return Neighbourhood(proxy.name, proxy.around.prediction, pairs)


def _answered(answer: ObservedAnswer) -> tuple[float, float] | None:
    """Learning rate, and sequences of the target per batch; None if the status has none that can be read."""
    rate, batch = answer.told.learning_rate, answer.told.batch_size
    try:
        found = float((rate and rate.value) or "nan"), float((batch and batch.value) or "nan")
    except ValueError:
        return None
    return found if all(math.isfinite(each) and each > 0 for each in found) else None


# ------------------------------------------------------------------------- the laws of another sweep


def sweep_not_ready(reference: ObservedReference) -> Finding:
    """Why a sweep gives no answer yet, in the words of its own Ready."""
    name, ready = reference.name, reference.said.get(READY)
    if ready is None:
        return Finding.false(
            Reason.SWEEP_NOT_READY, f"The operator has not processed ScalingSweep {name} yet."
        )
    found = Finding.of(ready)
    if isinstance(found.reason, RefusalReason):
        message = f"The laws of ScalingSweep {name} were refused: {ready.message}"
        return Finding.false(found.reason, message, stalled=True)
    message = f"ScalingSweep {name} is not ready ({ready.reason}): {ready.message}"
    return Finding.false(Reason.SWEEP_NOT_READY, message)


def final_fit(reference: ObservedReference, read: Read[FitOutcome]) -> FitOutcome | Finding:
    """The final fit of a sweep's present generation, or why there is none. `read` is what is stored."""
    ready = reference.said.get(READY)
    if ready is None or ready.status != "True":
        return sweep_not_ready(reference)
    if ready.observed_generation != reference.generation:
        message = f"The operator has not processed the changed ScalingSweep {reference.name} yet."
        return Finding.false(Reason.SWEEP_CHANGED, message)
    if ready.reason == Reason.NOTHING_TO_FIT:
        message = f"ScalingSweep {reference.name} has no laws, as its points lie around answers: name the sweep whose laws answer"
        return Finding.false(Reason.SWEEP_INVALID, message, stalled=True)
    fit = value_of(read)
    if fit is None or fit.laws is None:
        return Finding.false(Reason.LAWS_UNREADABLE, "laws.json is missing or cannot be read.")
    if fit.laws_sha256 != reference.told.laws_sha256:
        message = "laws.json is not the one that the sweep's status names."
        return Finding.false(Reason.LAWS_UNREADABLE, message)
    return fit
