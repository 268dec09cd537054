"""Whether a sweep may go on, checked from the most final problem down: its spec and what that names, the store's answers,
the checkpoints and answers that its sizes are to continue. The ledger that the pass begins with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from isoloss.formatting import shortened
from isoloss.numbers import to_significant_digits
from isoloss.validation import AT_THE_ANSWER, Place, probe_cross
from isoloss_contract import layout, reading
from isoloss_contract.ledger import (
    FAILED_FOR_GOOD,
    Attempts,
    IntentAction,
    KnownCheckpoint,
    Ledger,
    LostLedger,
    Neighbourhood,
    Placement,
    PointRecord,
    PointState,
    Spend,
)
from isoloss_contract.reading import Read, Unreadable, timestamp
from isoloss_contract.records import DataManifest, PrepareConfig
from isoloss_contract.records.points import whole_steps
from isoloss_operator.api import HyperparamPredictionSpec, Model, Proxy, ScalingSweepSpec
from isoloss_operator.decide.jobs import by_attempt, store_label, store_uri
from isoloss_operator.decide.observation import (
    ObservedAnswer,
    ObservedCheckpoint,
    ObservedJob,
    ObservedResource,
    ObservedSweep,
)
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.decide.reasons import READY, STALE, Finding, Reason
from isoloss_operator.planning.models import UnsupportedModel, checkpoint_model
from isoloss_operator.planning.points import Continued, place_sizes, prepare_config
from isoloss_operator.planning.specs import (
    InvalidSpec,
    SpecError,
    position_errors,
    same_model_errors,
)


@dataclass(frozen=True)
class Recorded:
    """A ledger, and what is quarantined for it."""

    ledger: Ledger
    quarantined: tuple[Quarantine, ...] = ()
    running: Sequence[tuple[str, Spend]] = ()
    """What each attempt under way has cost by now, with the size that it trains, once that is worked out."""


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
    continued: Continued
    """What their points are planned by."""
    unplaced: Finding | None
    """Why sizes wait for their first points; None: every size has places."""


def check_sweep(observed: ObservedSweep) -> AcceptedSweep | Finding:
    """The sweep if it may go on, or why it may not: stalled until somebody changes that, or the store answers."""
    spec, ledger = observed.spec, observed.ledger
    if isinstance(spec, InvalidSpec):
        return Finding(Reason.INVALID_SPEC, str(spec), stalled=True)
    if observed.storage_refusal:
        return Finding(Reason.STORAGE_NOT_ALLOWED, observed.storage_refusal, stalled=True)
    if isinstance(ledger, reading.Newer):
        message = f"{ledger.message}. Upgrade the operator again."
        return Finding(Reason.LEDGER_NEWER, message, stalled=True)
    known = sweep_ledger(observed, spec)
    if message := _store_unanswered(observed, spec, known.ledger.checkpoints):
        return Finding(Reason.STORAGE_UNREACHABLE, message)
    try:
        return _accepted(observed, spec, known)
    except InvalidSpec as error:
        return Finding(Reason.INVALID_SPEC, str(error), stalled=True)


def accepted_sweep(observed: ObservedSweep) -> AcceptedSweep:
    """The sweep, whatever the store says.

    Raises InvalidSpec if the spec is, a checkpoint is none, or no law places a grid.
    """
    spec = observed.spec
    if isinstance(spec, InvalidSpec):
        raise InvalidSpec(spec.errors)
    return _accepted(observed, spec, sweep_ledger(observed, spec))


def _accepted(observed: ObservedSweep, spec: ScalingSweepSpec, known: Recorded) -> AcceptedSweep:
    ledger, store = known.ledger, store_label(store_uri(spec))
    prepare_key = ledger.prepare_key
    checkpoints = known_checkpoints(spec, ledger.checkpoints, observed.checkpoints)
    spec = with_checkpoint_models(spec, checkpoints)
    around = neighbourhoods(observed.name, spec, ledger, observed.answers)
    placed = place_sizes(spec, (*ledger.placements, *ledger.former_placements))
    problem = _manifest_problem(observed.manifest, spec, observed.corpus_key or prepare_key)
    return AcceptedSweep(
        observed=observed,
        spec=placed.spec,
        known=known,
        prepare_key=prepare_key,
        prepare_jobs=by_attempt(
            job
            for job in observed.jobs
            if (job.kind, job.store, job.key) == ("prepare", store, prepare_key)
        ),
        manifest=None if problem else reading.value_of(observed.manifest),
        manifest_problem=problem,
        placements=placed.places,
        former_placements=placed.former,
        checkpoints=checkpoints,
        continued=Continued.of(checkpoints, () if isinstance(around, Finding) else around),
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
    message = message or unanswered_checkpoint(spec, known, observed.checkpoints)
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


# ------------------------------------------------------------------------------- its ledger


MAX_PROBLEM: Final = 600


def sweep_ledger(observed: ObservedSweep, spec: ScalingSweepSpec) -> Recorded:
    """Ledger of the points of a sweep under its present spec."""
    path = layout.ledger_in(layout.sweep_folder(observed.name, observed.uid))
    # Of a status that tells of attempts: there was a ledger then.
    numbers = (observed.status.get(name) for name in ("spentFlops", "acceleratorHours"))
    has_spent = any(str(number or "0") != "0" for number in numbers)
    template, max_failed = observed.operator_template, spec.failure_policy.max_failed_points
    known = known_ledger(observed, observed.ledger, path, template, has_spent=has_spent)
    changes = outdated_fields(known.ledger, observed.generation, template, max_failed)
    prepare_key = prepare_config(spec).key
    if known.ledger.prepare_key != prepare_key:
        changes |= {"prepare_key": prepare_key, "preparation": Attempts()}
        changes |= {"data_digest": "", "corpus": None}
    return replace(known, ledger=known.ledger.replace(**changes)) if changes else known


def known_ledger(
    parent: ObservedResource, stored: Read[Ledger], path: str, template: str, *, has_spent: bool
) -> Recorded:
    """The ledger stored at `path`; a new one if there is none or if what is stored is not that of `parent`.

    A new one finds all results again. What the former knew of failures, decisions and spend is lost, which it says.
    `template` is Ledger.template of a new one.
    """
    new = partial(
        Ledger, sweep=parent.name, namespace=parent.namespace, uid=parent.uid, template=template
    )
    match stored:
        case Ledger(uid=parent.uid) as ledger:
            return Recorded(ledger)
        case Ledger(uid=other):
            problem, suffix = f"It is the ledger of the resource with the uid {other}.", "foreign"
        case Unreadable(message):
            problem, suffix = message, "unreadable"
        case _ if parent.lost_ledger is not None:
            return Recorded(new(lost=parent.lost_ledger))
        case _ if has_spent:
            problem, suffix = f"There is no {path} any more.", ""
        case _:
            return Recorded(new())
    at = parent.lost_ledger.at if parent.lost_ledger else timestamp(parent.now)
    # Of the hour, so that a store that refuses what follows does not get one more object with each try.
    stamp = f"{at[:13].replace('-', '')}0000Z"
    request = Quarantine(path, f"{suffix}-{stamp}") if suffix else None
    lost = LostLedger(
        at,
        shortened(problem, MAX_PROBLEM),
        request.new_path if request else "",
    )
    return Recorded(new(lost=lost), (request,) if request else ())


def outdated_fields(
    ledger: Ledger, generation: int, template: str, max_failed: int
) -> dict[str, Any]:
    """Fields of the ledger that change, by name: without what was refused about an earlier generation of the spec, or under
    other pods than those of `template`, whose failures start at zero. `max_failed` is failurePolicy.maxFailedPoints."""
    changes: dict[str, Any] = {}
    error, points = ledger.configuration_error, ledger.points
    if error is not None and error.generation != generation:
        error = changes["configuration_error"] = None
    if template != ledger.template and template and ledger.template:
        if error is not None or _is_under_way(points, max_failed):
            reset = (replace(each, attempts=_reset_retries(each.attempts)) for each in points)
            changes["points"] = tuple(reset)
        changes |= {
            "template": template,
            "configuration_error": None,
            "preparation": _reset_retries(ledger.preparation),
            "evaluation": _reset_retries(ledger.evaluation),
        }
    return changes


def _is_under_way(points: Sequence[PointRecord], max_failed: int) -> bool:
    """Whether a point is still to train, or failures keep all from it: an upgrade of the operator must not begin a sweep
    again that has its laws."""
    if sum(record.state in FAILED_FOR_GOOD for record in points) > max_failed:
        return True
    pending = (record for record in points if record.state is PointState.PENDING)
    return any(record.intent.action is IntentAction.RUN for record in pending)


def _reset_retries(attempts: Attempts) -> Attempts:
    """Whatever was charged was so under another template."""
    return replace(attempts, template="")


def corpus_of_ledger(spec: ScalingSweepSpec, ledger: Ledger | None) -> PrepareConfig | None:
    """What the corpus of a sweep that has begun was prepared as; None: it has none yet."""
    asked = prepare_config(spec)
    if ledger is None or ledger.corpus is None or ledger.prepare_key != asked.key:
        return None
    if ledger.corpus.prepare_key == asked.key:
        return asked
    return prepare_config(spec, ledger.corpus.sources_stamp)


# ------------------------------------------------------------------- the checkpoints of its sizes


def with_checkpoint_models(
    spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint]
) -> ScalingSweepSpec:
    """The spec with the model of every checkpoint that sizes continue, all of which are `known`.

    Raises InvalidSpec if sequences are longer than a model takes, or sizes are one.
    """
    if not spec.checkpoint_uris:
        return spec
    models = {each.uri: Model(config=dict(each.config)) for each in known}
    proxies = tuple(
        proxy.model_copy(update={"model": models[proxy.checkpoint_uri]})
        if proxy.checkpoint is not None
        else proxy
        for proxy in spec.proxies
    )
    found = spec.model_copy(update={"proxies": proxies})
    if errors := [*position_errors(found), *same_model_errors(found)]:
        raise InvalidSpec(errors)
    return found


Checkpoints = Mapping[str, ObservedCheckpoint]


def known_checkpoints(
    spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint], seen: Checkpoints
) -> tuple[KnownCheckpoint, ...]:
    """Those that sizes of the spec continue. What is `known` is kept while it cannot be read again.

    Raises InvalidSpec for one that is neither known nor a model in the store.
    """
    found, errors = {each.uri: each for each in known}, []
    for field, uri in spec.checkpoint_uris.items():
        each = seen.get(uri) or ObservedCheckpoint(reading.ABSENT, reading.ABSENT)
        config, stamp = reading.value_of(each.config), reading.value_of(each.stamp)
        if uri in found and (config is None or stamp is None):
            continue
        problem = ""
        if config is None or isinstance(each.stamp, reading.Unreadable):
            problem = reading.problem_of(each.config) or reading.problem_of(each.stamp)
            problem = problem or "not found"
        else:
            try:
                found[uri] = KnownCheckpoint(uri, stamp or "", checkpoint_model(config))
            except UnsupportedModel as error:
                problem = str(error)
        if problem:
            errors.append(SpecError(field, f"{uri}/config.json: {problem}"))
    if errors:
        raise InvalidSpec(errors)
    return tuple(found[uri] for uri in dict.fromkeys(spec.checkpoint_uris.values()))


def unanswered_checkpoint(
    spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint], seen: Checkpoints
) -> str:
    """Why a checkpoint that no point was planned with yet is not known; empty: all are, or are known to be none."""
    before = {each.uri for each in known}
    reads: list[reading.Read[Any]] = []
    for uri in spec.checkpoint_uris.values():
        if uri not in before and uri in seen:
            reads += [seen[uri].config, seen[uri].stamp]
    return next((read.message for read in reads if reading.is_unknown(read)), "")


# ----------------------------------------------------------------------------- places around an answer


def neighbourhoods(
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
        if errors := neighbourhood_errors(spec, placed):
            raise InvalidSpec(errors)
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
        return Finding(Reason.PREDICTION_NOT_FOUND, message)
    asked, found = answer.spec, answer.conditions
    ready, stale = found.get(READY), found.get(STALE)
    not_ready = partial(Finding, Reason.PREDICTION_NOT_READY)
    if isinstance(asked, InvalidSpec):
        return not_ready(f"The spec of HyperparamPrediction {name} is invalid: {asked}")
    if asked.sweep_ref.name == sweep:
        message = (
            f"HyperparamPrediction {name} answers from the laws of this sweep, which it would wait for: put the size into "
            "a ScalingSweep of its own"
        )
        raise InvalidSpec([SpecError(f"{field}.grid.around.prediction", message)])
    theirs = "" if asked.checkpoint is None else asked.checkpoint.uri.rstrip("/")
    if theirs != proxy.checkpoint_uri:
        message = f"HyperparamPrediction {name} is about {theirs or 'no checkpoint, but a given loss'}: name the same checkpoint"
        raise InvalidSpec([SpecError(f"{field}.checkpoint.uri", message)])
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
    places = places_around(
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


KEPT_SHARE: Final = 0.25
"""Share of the distance between neighbours by which an answer may move, in ln LR and in ln B, and keep its points."""
MOST_KEPT: Final = 0.2
"""The same as a distance: if neighbours are far apart, a point must still stand for the answer (AT_THE_ANSWER)."""
ALIKE: Final = 1.05
"""Factor in tokens up to which runs are of one length."""


def places_around(
    learning_rate: float,
    batch_size: float,
    factor: float,
    multiple_of: int = 1,
    *,
    known: Sequence[Place] = (),
) -> tuple[Place, ...]:
    """The answer and its neighbours, the answer first; batch sizes in sequences.

    `known` are places that have points, those of the last answer first. The first one near the answer stands for it,
    with its neighbours: an answer that has hardly moved keeps its points, on whichever side of a rounding border it
    is. If none is near, both are rounded to two digits.
    """
    for place in known:
        if place.batch_size % multiple_of == 0 and _is_near(
            place, learning_rate, batch_size, factor, multiple_of
        ):
            return _about(place, factor, multiple_of, known)
    rate, batch = to_significant_digits(learning_rate, 2), to_significant_digits(batch_size, 2)
    return _cross(rate, batch, factor, multiple_of)


def _cross(
    learning_rate: float, batch_size: float, factor: float, multiple_of: int
) -> tuple[Place, ...]:
    places = probe_cross(learning_rate, batch_size, factor, multiple_of=multiple_of)
    return tuple(
        replace(place, learning_rate=to_significant_digits(place.learning_rate, 4))
        for place in places
    )


def _is_near(
    place: Place, learning_rate: float, batch_size: float, factor: float, multiple_of: int
) -> bool:
    """Whether a point there stands for an answer. A batch size may also have crossed one border of rounding."""
    reach = _reach(factor)
    batches = abs(math.log(place.batch_size / batch_size))
    is_next = abs(place.batch_size - batch_size) <= multiple_of
    return abs(math.log(place.learning_rate / learning_rate)) <= reach and (
        batches <= (AT_THE_ANSWER if is_next else reach)
    )


def _reach(factor: float) -> float:
    return min(KEPT_SHARE * math.log(factor), MOST_KEPT)


def _about(
    centre: Place, factor: float, multiple_of: int, known: Sequence[Place]
) -> tuple[Place, ...]:
    """A place with points and its neighbours: of batch sizes those that it had, which rounding may have made others."""
    row = [place for place in known if place.learning_rate == centre.learning_rate]
    row = [place for place in row if place.batch_size % multiple_of == 0]

    def had(neighbour: Place) -> Place:
        is_above = neighbour.batch_size > centre.batch_size
        wanted = centre.batch_size * (factor if is_above else 1.0 / factor)
        side = [p for p in row if p.batch_size != centre.batch_size]
        side = [p for p in side if (p.batch_size > centre.batch_size) is is_above]
        nearest = min(side, key=lambda p: abs(math.log(p.batch_size / wanted)), default=neighbour)
        is_close = abs(math.log(nearest.batch_size / wanted)) <= _reach(factor)
        return nearest if is_close else neighbour

    places = _cross(centre.learning_rate, centre.batch_size, factor, multiple_of)
    return tuple(p if p.batch_size == centre.batch_size else had(p) for p in places)


def neighbourhood_errors(spec: ScalingSweepSpec, found: Neighbourhood) -> list[SpecError]:
    """What keeps the points of a size from being trained, or from being compared once they are."""
    index = next(i for i, proxy in enumerate(spec.proxies) if proxy.name == found.proxy)
    tokens, length = spec.proxies[index].tokens, spec.data.sequence_length
    lengths = [whole_steps(tokens, batch, length) for _, batch in found.places]
    if max(lengths) <= ALIKE * min(lengths) and min(lengths) <= ALIKE * tokens:
        return []
    largest = max(batch for _, batch in found.places)
    message = (
        f"{tokens} tokens are too few steps of {largest} x {length} tokens, a batch next to the answer of "
        f"HyperparamPrediction {found.prediction}: points of different batch sizes would end at different tokens. Raise it"
    )
    return [SpecError(f"spec.proxies[{index}].tokens", message)]
