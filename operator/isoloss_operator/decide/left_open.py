"""What a spec leaves open: models that are like a checkpoint's, and the first places of sizes without a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isoloss.laws import Laws, PredictionQuery, RefusalReason, Refused, predict
from isoloss.placement import rounded_place
from isoloss.runs import training_flops_per_token
from isoloss_contract.ledger import Placement
from isoloss_contract.reading import Read, problem_of, value_of
from isoloss_contract.store import BadRecord, NotFound, StoreError
from isoloss_operator.api import Proxy, ScalingSweepSpec
from isoloss_operator.decide.conditions import FIT_READY, READY, Finding
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.law_status import refused_in_words
from isoloss_operator.decide.observation import ObservedReference, ObservedSweep
from isoloss_operator.decide.owners import sweep_ledger
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.planning.parameters import attention_shape, parameter_counts
from isoloss_operator.planning.placement import kept_places, model_key, sizes_to_place
from isoloss_operator.planning.specs import (
    InvalidSpec,
    SpecError,
    model_config,
    with_derived_proxies,
)

# -------------------------------------------------------------------------- models like a checkpoint


def without_likenesses(observed: ObservedSweep, spec: ScalingSweepSpec) -> ScalingSweepSpec:
    """The spec with its models derived: from the ledger or, if that does not know a model yet, from the checkpoint's
    config.json.

    Raises InvalidSpec if a proxy cannot be derived.
    """
    configs = {uri: _model_config(uri, read) for uri, read in observed.like_configs.items()}
    return with_derived_proxies(spec, configs, sweep_ledger(observed).ledger.derived)


def _model_config(
    checkpoint: str, read: Read[Mapping[str, Any]]
) -> Mapping[str, Any] | StoreError:
    if problem := problem_of(read):
        return BadRecord(problem)
    config = value_of(read)
    return NotFound(f"{checkpoint}/config.json: not found") if config is None else config


# ------------------------------------------------------------------------- the laws of another sweep


def sweep_not_ready(reference: ObservedReference) -> Finding:
    """Why a sweep gives no answer yet, in the words of its own Ready."""
    name, said = reference.name, reference.said
    ready, fitted = said.get(READY), said.get(FIT_READY)
    if ready is None:
        return Finding.false(
            Reason.SWEEP_NOT_READY, f"The operator has not processed ScalingSweep {name} yet."
        )
    found = Finding.of(ready)
    # Ready may also say that the laws of another sweep place no points of this one.
    are_refused = fitted is not None and fitted.status == "False" and fitted.reason == ready.reason
    if are_refused and isinstance(found.reason, RefusalReason):
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
    fit = value_of(read)
    if fit is None or fit.laws is None:
        return Finding.false(Reason.LAWS_UNREADABLE, "laws.json is missing or cannot be read.")
    if fit.laws_sha256 != reference.told.laws_sha256:
        message = "laws.json is not the one that the sweep's status names."
        return Finding.false(Reason.LAWS_UNREADABLE, message)
    return fit


# ------------------------------------------------------------------------------ places by those laws


def prior_to_read(observed: ObservedSweep) -> str | None:
    """Name of the sweep whose laws are to place a size now; None: there is none, or all are placed."""
    spec = observed.spec
    if (
        isinstance(spec, InvalidSpec)
        or spec.search.prior is None
        or spec.search.prior.name == observed.name
    ):
        return None
    if value_of(observed.manifest) is None:
        return None
    ledger = sweep_ledger(observed).ledger
    try:
        derived = without_likenesses(observed, spec)
    except InvalidSpec:
        return None
    placed = kept_places(derived, (*ledger.placements, *ledger.former_placements))
    is_placed = all(proxy.name in placed for proxy in sizes_to_place(spec))
    return None if is_placed else spec.search.prior.name


def placements_by_prior(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    known: Sequence[Placement],
    vocabulary: int | None,
) -> tuple[Placement, ...] | Finding:
    """One for each size to place: as `known`, else by the prior's laws; or why these place none yet. Raises InvalidSpec
    if the sweep is its own prior.

    `spec` has no `like` any more, and a prior; `vocabulary` is that of the corpus, once it is prepared.
    """
    kept = kept_places(spec, known)
    if all(proxy.name in kept for proxy in sizes_to_place(spec)):
        return tuple(kept[proxy.name] for proxy in sizes_to_place(spec))
    found = _laws(observed, spec)
    if isinstance(found, Finding):
        return found
    placed = []
    for proxy in sizes_to_place(spec):
        placement = kept.get(proxy.name) or _by_laws(found, spec, proxy, vocabulary)
        if isinstance(placement, Finding):
            return placement
        placed.append(placement)
    return tuple(placed)


def _laws(observed: ObservedSweep, spec: ScalingSweepSpec) -> tuple[str, int, Laws] | Finding:
    """Name and sequence length of the prior, and its final laws."""
    assert spec.search.prior is not None
    name, prior = spec.search.prior.name, observed.prior
    if name == observed.name:
        message = "a sweep cannot be its own: name one that is finished"
        raise InvalidSpec([SpecError("spec.search.prior", message)])
    if prior is None or prior.reference is None:
        message = f"spec.search.prior: there is no ScalingSweep {name} in this namespace."
        return Finding.false(Reason.SWEEP_NOT_FOUND, message)
    if prior.storage_refusal:
        message = f"spec.search.prior: {prior.storage_refusal}"
        return Finding.false(Reason.STORAGE_NOT_ALLOWED, message, stalled=True)
    if isinstance(prior.reference.spec, InvalidSpec):
        message = f"spec.search.prior: the spec of ScalingSweep {name} is invalid."
        return Finding.false(Reason.SWEEP_INVALID, message)
    fit = final_fit(prior.reference, prior.fit)
    if not isinstance(fit, FitOutcome):
        return fit
    assert fit.laws is not None  # final_fit says LawsUnreadable otherwise
    return name, prior.reference.spec.data.sequence_length, fit.laws


def _by_laws(
    found: tuple[str, int, Laws], spec: ScalingSweepSpec, proxy: Proxy, vocabulary: int | None
) -> Placement | Finding:
    name, length, laws = found
    model = model_config(proxy.model, vocabulary)
    counts = parameter_counts(model)
    per_token = 6.0 * counts.active
    if laws.flops_convention == "WithAttention":
        per_token = training_flops_per_token(counts, attention_shape(model), length)
    query = PredictionQuery(
        total_flops=per_token * proxy.tokens, params=counts.active, flops_per_token=per_token
    )
    answer = predict(laws, query)
    if isinstance(answer, Refused):
        reason, said = refused_in_words(answer)
        message = f"The laws of ScalingSweep {name} place no points of {proxy.name}: {said}"
        return Finding.false(reason, message, stalled=True)
    # The laws are of tokens per batch: the same in sequences of this sweep's length.
    length = laws.sequence_length or length
    batch_size = answer.batch_size_raw * length / spec.data.sequence_length
    place = rounded_place(answer.learning_rate.value, batch_size)
    source = f"ScalingSweep {name}"
    return Placement(proxy.name, place.learning_rate, place.batch_size, source, model_key(proxy))
