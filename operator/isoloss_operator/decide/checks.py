"""Whether a sweep may go on, checked from the most final problem down: its spec and what that names, the store's answers,
the checkpoints and answers that its sizes are to continue; later, whether the corpus is the one of its points.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isoloss.formatting import are, counted
from isoloss_contract import reading
from isoloss_contract.ledger import KnownCheckpoint, Ledger, Neighbourhood, Placement
from isoloss_contract.records import DataManifest
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide import conditions, continued
from isoloss_operator.decide.conditions import Findings
from isoloss_operator.decide.jobs.requests import by_attempt, store_label, store_uri
from isoloss_operator.decide.known_ledger import Recorded, sweep_ledger
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.reasons import Finding, Reason
from isoloss_operator.planning import specs
from isoloss_operator.planning.placement import place_sizes
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
    known = sweep_ledger(observed, spec)
    if message := _store_unanswered(observed, spec, known.ledger.checkpoints):
        # A sweep that was ready stays so: its laws do not depend on the store.
        found = Finding(Reason.STORAGE_UNREACHABLE, message)
        before = conditions.previous_findings(observed.previous_conditions, observed.generation)
        return replace(before or Findings(ready=found), accepted=found)
    try:
        return _accepted(observed, spec, known)
    except specs.InvalidSpec as error:
        return conditions.not_accepted(Reason.INVALID_SPEC, str(error))


def accepted_sweep(observed: ObservedSweep) -> AcceptedSweep:
    """The sweep, whatever the store says.

    Raises InvalidSpec if the spec is, a checkpoint is none, or no law places a grid.
    """
    spec = observed.spec
    if isinstance(spec, specs.InvalidSpec):
        raise specs.InvalidSpec(spec.errors)
    return _accepted(observed, spec, sweep_ledger(observed, spec))


def _accepted(observed: ObservedSweep, spec: ScalingSweepSpec, known: Recorded) -> AcceptedSweep:
    ledger, store = known.ledger, store_label(store_uri(spec))
    prepare_key = ledger.prepare_key
    checkpoints = continued.known_checkpoints(spec, ledger.checkpoints, observed.checkpoints)
    spec = continued.with_checkpoint_models(spec, checkpoints)
    around = continued.neighbourhoods(observed.name, spec, ledger, observed.answers)
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
    message = message or continued.unanswered_checkpoint(spec, known, observed.checkpoints)
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
    sizes = {proxy.name: proxy.checkpoint_uri for proxy in spec.fitted_proxies}
    hit = [r for r in ledger.points if r.trained_for > 0 and sizes.get(r.proxy) in replaced]
    if not hit:
        return None
    message = (
        f"The files of {sizes[hit[0].proxy]} were replaced, and {counted(len(hit), 'point')} {are(len(hit))} trained from the "
        "former ones. Put these back, or create another ScalingSweep for the new ones."
    )
    return conditions.not_accepted(Reason.CHECKPOINT_CHANGED, message)
