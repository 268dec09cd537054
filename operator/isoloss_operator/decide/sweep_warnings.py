"""What to watch out for with a sweep, besides what the fit warns of."""

from __future__ import annotations

from isoloss.formatting import are, counted
from isoloss_contract.ledger import DONE, Ledger
from isoloss_contract.reading import is_unknown
from isoloss_operator.decide.sweep_view import PointsView
from isoloss_operator.decide.tasks.admit import slots_exceeded
from isoloss_operator.decide.tasks.findings import failed_in_words
from isoloss_operator.planning.points import repeated_domains


def warnings_of(view: PointsView) -> tuple[str, ...]:
    """One sentence each."""
    found, tasks = [], view.tasks
    if tasks.failed:
        failed = failed_in_words(tasks.failed)
        found.append(
            f"{counted(len(tasks.failed), 'point')} failed and {are(len(tasks.failed))} not used: {failed}"
        )
    if tasks.budget_spent:
        found.append(tasks.budget_spent)
    elif tasks.admission.unaffordable:
        found.append(tasks.admission.budget_message)
    repeated = repeated_domains(view.spec, view.manifest)
    if repeated:
        named = ", ".join(f"{name} {times:.1f} times" for name, times in repeated.items())
        found.append(f"The longest runs see some domains more than once: {named}.")
    if mixed := _mixed_versions(tasks.ledger):
        found.append(f"Points were trained with different versions: {mixed}.")
    if lost := [job for job in view.observed.jobs if job.lost]:
        found.append(f"{counted(len(lost), 'attempt')} given up, such as: {lost[0].message}.")
    awaited, unknown = tasks.unread.awaited, tasks.unread.unknown
    if awaited:
        found.append(
            f"{counted(len(awaited), 'Job')} succeeded without a result in the store yet."
        )
    if unknown:
        reads = (view.observed.results[key] for key in unknown)
        message = min(read.message for read in reads if is_unknown(read))
        found.append(f"{counted(len(unknown), 'result')} cannot be read for now: {message}")
    over = slots_exceeded(tasks.world, tasks.policy)
    if over > 0:
        found.append(
            f"{counted(over, 'Job')} more than the spec allows {are(over)} running; none is started."
        )
    return tuple(found)


def _mixed_versions(ledger: Ledger) -> str:
    """Versions in which the points done differ, such as "torch 2.8.0 and 2.9.0"; empty: none."""
    used = {r.versions for r in ledger.points if r.state in DONE and r.versions is not None}
    sets = [ledger.versions[index] for index in sorted(used)]
    names = dict.fromkeys(name for each in sets for name in each)
    found = {name: sorted({each.get(name, "unknown") for each in sets}) for name in names}
    return ", ".join(f"{n} {' and '.join(each)}" for n, each in found.items() if len(each) > 1)
