"""Whether a sweep may go on, checked from the most final problem down: its spec and what that names, the store's answers,
the checkpoints and answers that its sizes are to continue; later, whether the corpus is the one of its points.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from isoloss.formatting import are, counted
from isoloss.validation import Place
from isoloss_contract import reading
from isoloss_contract.ledger import KnownCheckpoint, Ledger, Neighbourhood, Placement
from isoloss_contract.records import DataManifest
from isoloss_operator.api import HyperparamPredictionSpec, Proxy, ScalingSweepSpec
from isoloss_operator.decide import conditions
from isoloss_operator.decide.conditions import Finding, Findings
from isoloss_operator.decide.jobs.requests import by_attempt, store_label, store_uri
from isoloss_operator.decide.known_ledger import Recorded, sweep_ledger
from isoloss_operator.decide.observation import (
    ObservedAnswer,
    ObservedCheckpoint,
    ObservedJob,
    ObservedSweep,
)
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.planning import continued, placement, specs
from isoloss_operator.planning.placement import placements
from isoloss_operator.planning.points import Continued


@dataclass(frozen=True)
class AcceptedSweep:
    """A sweep with a valid spec, and what that leaves open."""

    observed: ObservedSweep
    spec: ScalingSweepSpec
    """With a model for every size, and a grid for every size that is fitted."""
    known: Recorded
    """The ledger that the pass begins with."""
    prepare_key: str
    """Names what the spec asks for as its corpus, which has another key if the files at its addresses were replaced."""
    prepare_jobs: tuple[ObservedJob, ...]
    """Jobs that prepare it in the sweep's present store, in order of attempts."""
    manifest: DataManifest | None
    """The manifest of the tokenized corpus, once it is there and right."""
    manifest_problem: str
    """Why what is stored as the manifest is not this sweep's corpus; empty: it is, or nothing is."""
    placements: tuple[Placement, ...]
    """Placements of sizes whose grid the user left to the search."""
    former_placements: tuple[Placement, ...]
    """Placements of sizes that the search no longer places."""
    checkpoints: tuple[KnownCheckpoint, ...]
    """Those that sizes continue."""
    neighbourhoods: tuple[Neighbourhood, ...]
    """Places of sizes whose points lie around an answer."""
    unplaced: Finding | None
    """Why sizes wait for their first points; None: every size has places."""

    @property
    def continued(self) -> Continued:
        """What points of sizes that continue a checkpoint are planned by."""
        return Continued.of(self.checkpoints, self.neighbourhoods)


def check_sweep(observed: ObservedSweep) -> AcceptedSweep | Findings:
    """The sweep if it may go on, or what its conditions say if not."""
    spec, ledger = observed.spec, observed.ledger
    if isinstance(spec, specs.InvalidSpec):
        return conditions.not_accepted(Reason.INVALID_SPEC, str(spec))
    if observed.storage_refusal:
        return conditions.not_accepted(Reason.STORAGE_NOT_ALLOWED, observed.storage_refusal)
    if isinstance(ledger, reading.Newer):
        return conditions.not_accepted(
            Reason.LEDGER_NEWER, f"{ledger.message}. Upgrade the operator again."
        )
    key = specs.prepare_config(spec).key
    known = sweep_ledger(observed, spec, key)
    if message := _store_unanswered(observed, spec, known.ledger.checkpoints):
        # A sweep that was ready stays so: its laws do not depend on the store.
        found = Finding.false(Reason.STORAGE_UNREACHABLE, message)
        before = conditions.previous_findings(observed.previous_conditions, observed.generation)
        return replace(before or Findings(ready=found), accepted=found)
    try:
        return _accepted(observed, spec, key, known)
    except specs.InvalidSpec as error:
        return conditions.not_accepted(Reason.INVALID_SPEC, str(error))


def accepted_sweep(observed: ObservedSweep) -> AcceptedSweep:
    """The sweep, whatever the store says.

    Raises InvalidSpec if the spec is, a checkpoint is none, or no law places a grid.
    """
    spec = observed.spec
    if isinstance(spec, specs.InvalidSpec):
        raise specs.InvalidSpec(spec.errors)
    key = specs.prepare_config(spec).key
    return _accepted(observed, spec, key, sweep_ledger(observed, spec, key))


def _accepted(
    observed: ObservedSweep, spec: ScalingSweepSpec, prepare_key: str, known: Recorded
) -> AcceptedSweep:
    ledger, store = known.ledger, store_label(store_uri(spec))
    checkpoints = _known_checkpoints(spec, ledger.checkpoints, observed.checkpoints)
    spec = continued.with_checkpoint_models(spec, checkpoints)
    before = (*ledger.placements, *ledger.former_placements)
    placed = placements(spec, before)
    former = placement.former_places(before, placed, placement.former_names(spec, before))
    around = _neighbourhoods(observed.name, spec, ledger, observed.answers)
    problem = _manifest_problem(observed.manifest, spec, observed.corpus_key or prepare_key)
    return AcceptedSweep(
        observed=observed,
        spec=placement.with_placed_grids(spec, placed),
        known=known,
        prepare_key=prepare_key,
        prepare_jobs=by_attempt(
            job
            for job in observed.jobs
            if (job.kind, job.store, job.key) == ("prepare", store, prepare_key)
        ),
        manifest=None if problem else reading.value_of(observed.manifest),
        manifest_problem=problem,
        placements=placed,
        former_placements=former,
        checkpoints=checkpoints,
        neighbourhoods=() if isinstance(around, Finding) else around,
        unplaced=around if isinstance(around, Finding) else None,
    )


# -------------------------------------------------------------------------- the spec, and the store


def _store_unanswered(
    observed: ObservedSweep, spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint]
) -> str:
    """An error that says nothing about what is stored: nothing may be concluded from it. Empty: there is none."""
    results = tuple(observed.results.values())
    # A store that returns some results is there: what it withholds concerns those points alone.
    if not all(isinstance(result, reading.Unanswered) and not result.alone for result in results):
        results = ()
    reads = (observed.manifest, observed.ledger, *results)
    unanswered = (read.message for read in reads if isinstance(read, reading.Unanswered))
    message = observed.store_error or next(unanswered, "")
    message = message or _unanswered_checkpoint(
        specs.checkpoint_uris(spec).values(), known, observed.checkpoints
    )
    if isinstance(observed.manifest, reading.Newer):
        message = message or observed.manifest.message
    return message


def _manifest_problem(
    found: reading.Read[DataManifest], spec: ScalingSweepSpec, prepare_key: str
) -> str:
    """Why what is stored as the manifest is not the corpus of the spec; empty: it is, or nothing is."""
    if isinstance(found, reading.Unreadable):
        return found.message
    if not isinstance(found, DataManifest):
        return ""
    if found.prepare_key != prepare_key:
        return f"it is the manifest of {found.prepare_key}"
    wanted = {domain.name for domain in spec.data.domains}
    domains = {domain.name for domain in found.domains}
    if domains != wanted or found.sequence_length != spec.data.sequence_length:
        return "its domains or sequence length are not those of the spec"
    return ""


# ------------------------------------------------------------------- checkpoints that sizes continue

Checkpoints = Mapping[str, ObservedCheckpoint]


def _known_checkpoints(
    spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint], seen: Checkpoints
) -> tuple[KnownCheckpoint, ...]:
    """Those that sizes of the spec continue. What is `known` is kept while it cannot be read again.

    Raises InvalidSpec for one that is neither known nor a model in the store.
    """
    before = {each.uri: each for each in known}
    found, errors = {}, []
    for field, uri in specs.checkpoint_uris(spec).items():
        try:
            found[uri] = _known_checkpoint(uri, before.get(uri), seen.get(uri))
        except continued.UnknownModel as error:
            errors.append(specs.SpecError(field, f"{uri}/config.json: {error}"))
    if errors:
        raise specs.InvalidSpec(errors)
    return tuple(found.values())


def _known_checkpoint(
    uri: str, before: KnownCheckpoint | None, seen: ObservedCheckpoint | None
) -> KnownCheckpoint:
    """Raises UnknownModel."""
    seen = seen or ObservedCheckpoint(reading.ABSENT, reading.ABSENT)
    config, stamp = seen.config, seen.stamp
    found, known_stamp = reading.value_of(config), reading.value_of(stamp)
    if before is not None and (found is None or known_stamp is None):
        return before
    if found is None or isinstance(stamp, reading.Unreadable):
        raise continued.UnknownModel(
            reading.problem_of(config) or reading.problem_of(stamp) or "not found"
        )
    return KnownCheckpoint(uri, known_stamp or "", continued.checkpoint_model(found))


def _unanswered_checkpoint(
    uris: Iterable[str], known: Sequence[KnownCheckpoint], seen: Checkpoints
) -> str:
    """Why a checkpoint that no point was planned with yet is not known; empty: all are, or are known to be none."""
    before = {each.uri for each in known}
    reads: list[reading.Read[Any]] = []
    for uri in uris:
        if uri not in before and uri in seen:
            reads += [seen[uri].config, seen[uri].stamp]
    return next((read.message for read in reads if reading.is_unknown(read)), "")


# -------------------------------------------------------------------------- places around an answer


def _neighbourhoods(
    name: str, spec: ScalingSweepSpec, ledger: Ledger, answers: Mapping[str, ObservedAnswer]
) -> tuple[Neighbourhood, ...] | Finding:
    """One for each size around an answer, or why it has no points yet: where its points are, if the answer is still near
    them, or there is none now. `name` is the sweep's.

    Raises InvalidSpec for a prediction whose answer cannot place them.
    """
    found = []
    for index, proxy in enumerate(spec.proxies):
        if proxy.around is None:
            continue
        known = _known_neighbourhood(proxy, spec, ledger)
        names = {proxy.name} if known is None else {proxy.name, known.proxy}
        answer = _answer(answers.get(proxy.around.prediction), name, index, proxy)
        if isinstance(answer, Finding):
            if known is None:
                return answer
            found.append(replace(known, proxy=proxy.name))
            continue
        records = (*ledger.points, *reversed(ledger.former))
        mine = [(r.learning_rate, r.batch_size) for r in records if r.proxy in names]
        known_places = dict.fromkeys((*(known.places if known else ()), *mine))
        placed = _neighbourhood(spec, proxy, answer, [Place(*each) for each in known_places])
        if errors := continued.neighbourhood_errors(spec, placed):
            raise specs.InvalidSpec(errors)
        found.append(placed)
    return tuple(found)


def _known_neighbourhood(
    proxy: Proxy, spec: ScalingSweepSpec, ledger: Ledger
) -> Neighbourhood | None:
    """Where the ledger has the points of this size, also under a name that no size has any more."""
    assert proxy.around is not None
    present = {each.name for each in spec.proxies} - {proxy.name}
    known = {
        each.proxy: each
        for each in ledger.neighbourhoods
        if each.prediction == proxy.around.prediction and each.proxy not in present
    }
    return known.get(proxy.name) or (next(iter(known.values())) if len(known) == 1 else None)


@dataclass(frozen=True)
class _Answer:
    """A prediction with an answer to place points around."""

    asked: HyperparamPredictionSpec
    learning_rate: float
    batch_size: float
    """Sequences of the target."""


def _answer(
    answer: ObservedAnswer | None, sweep: str, index: int, proxy: Proxy
) -> _Answer | Finding:
    """Raises InvalidSpec."""
    assert proxy.around is not None
    name, field = proxy.around.prediction, f"spec.proxies[{index}]"
    if answer is None:
        message = (
            f"{field}.grid.around: there is no HyperparamPrediction {name} in this namespace."
        )
        return Finding.false(Reason.PREDICTION_NOT_FOUND, message)
    asked, found = answer.spec, answer.conditions
    ready, stale = found.get(conditions.READY), found.get(conditions.STALE)
    not_ready = partial(Finding.false, Reason.PREDICTION_NOT_READY)
    if isinstance(asked, specs.InvalidSpec):
        return not_ready(f"The spec of HyperparamPrediction {name} is invalid: {asked}")
    if asked.sweep_ref.name == sweep:
        message = (
            f"HyperparamPrediction {name} answers from the laws of this sweep, which it would wait for: put the size into "
            "a ScalingSweep of its own"
        )
        raise specs.InvalidSpec([specs.SpecError(f"{field}.grid.around.prediction", message)])
    theirs = "" if asked.checkpoint is None else asked.checkpoint.uri.rstrip("/")
    if theirs != specs.checkpoint_uri(proxy):
        message = f"HyperparamPrediction {name} is about {theirs or 'no checkpoint, but a given loss'}: name the same checkpoint"
        raise specs.InvalidSpec([specs.SpecError(f"{field}.checkpoint.uri", message)])
    if ready is None or ready.status != "True" or ready.observed_generation != answer.generation:
        cause = "the operator has not processed it yet" if ready is None else ready.message
        reason = "" if ready is None else f" ({ready.reason})"
        return not_ready(f"HyperparamPrediction {name} is not ready{reason}: {cause}")
    if stale is not None and stale.status == "True":
        return not_ready(
            f"The answer of HyperparamPrediction {name} is about to change: {stale.message}"
        )
    numbers = _numbers(answer)
    if numbers is None:
        return not_ready(
            f"The status of HyperparamPrediction {name} has no answer that can be read."
        )
    return _Answer(asked, *numbers)


def _numbers(answer: ObservedAnswer) -> tuple[float, float] | None:
    """Learning rate, and sequences of the target per batch; None if the status has none that can be read."""
    rate, batch = answer.parsed_status.learning_rate, answer.parsed_status.batch_size
    try:
        found = float((rate and rate.value) or "nan"), float((batch and batch.value) or "nan")
    except ValueError:
        return None
    return found if all(math.isfinite(each) and each > 0 for each in found) else None


def _neighbourhood(
    spec: ScalingSweepSpec, proxy: Proxy, answer: _Answer, known: Sequence[Place]
) -> Neighbourhood:
    """Of batch sizes in sequences of this sweep at equal tokens per step."""
    asked, length = answer.asked, spec.data.sequence_length
    assert proxy.around is not None
    batch_size = max(answer.batch_size * (asked.target_sequence_length or length) / length, 1.0)
    multiple_of = 1 if asked.target_sequence_length else asked.batch_size_multiple_of
    if asked.batch_size is not None:
        multiple_of = round(batch_size)
    places = continued.places_around(
        answer.learning_rate,
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


# ------------------------------------------------------------------ once it is known what they train on


def check_corpus(sweep: AcceptedSweep, corpus: DataManifest) -> Findings | None:
    """Other data or weights than those of the points that are trained; None: there are none."""
    ledger = sweep.known.ledger
    return _checkpoint_changed(sweep.spec, ledger, sweep.checkpoints) or _data_changed(
        sweep.prepare_key, ledger, corpus
    )


def _data_changed(prepare_key: str, ledger: Ledger, corpus: DataManifest) -> Findings | None:
    """Points of another corpus would take the place of those that are trained, and of their cost."""
    digest = corpus.digest
    trained = sum(record.trained_for > 0 for record in ledger.points)
    is_known = ledger.prepare_key == prepare_key and ledger.data_digest
    if not (is_known and trained) or ledger.data_digest == digest:
        return None
    message = (
        f"data/{corpus.prepare_key}/ in the store holds a corpus with the digest {digest[:16]}, and the results of "
        f"{counted(trained, 'point')} are of {ledger.data_digest[:16]}: it was prepared again, and its sources had changed. Put the former "
        "one back, or create another ScalingSweep for the new one."
    )
    return conditions.not_accepted(Reason.DATA_CHANGED, message)


def _checkpoint_changed(
    spec: ScalingSweepSpec, ledger: Ledger, checkpoints: Sequence[KnownCheckpoint]
) -> Findings | None:
    """Points of other weights would take the place of those that are trained, and of their cost. Those around an answer
    follow the prediction, which measures the other weights."""
    before = {each.uri: each.stamp for each in ledger.checkpoints}
    replaced = {
        each.uri for each in checkpoints if before.get(each.uri, "") not in ("", each.stamp)
    }
    sizes = {proxy.name: specs.checkpoint_uri(proxy) for proxy in spec.fitted_proxies}
    hit = [r for r in ledger.points if r.trained_for > 0 and sizes.get(r.proxy) in replaced]
    if not hit:
        return None
    message = (
        f"The files of {sizes[hit[0].proxy]} were replaced, and {counted(len(hit), 'point')} {are(len(hit))} trained from the "
        "former ones. Put these back, or create another ScalingSweep for the new ones."
    )
    return conditions.not_accepted(Reason.CHECKPOINT_CHANGED, message)
