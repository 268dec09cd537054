"""What to watch out for with a sweep, besides what the fit warns of."""

from __future__ import annotations

from isoloss_contract.ledger import DONE
from isoloss_contract.reading import ABSENT, is_unknown
from isoloss_operator.decide.admission import slots_exceeded
from isoloss_operator.decide.sweep_status import failed_in_words
from isoloss_operator.decide.sweep_view import PointsView
from isoloss_operator.planning.points import repeated_domains


def warnings_of(view: PointsView) -> tuple[str, ...]:
    """One sentence each."""
    found = []
    if view.failed:
        failed = failed_in_words(view.failed)
        found.append(f"{len(view.failed)} points failed and are not used: {failed}")
    if view.budget_spent:
        found.append(view.budget_spent)
    elif view.admission.unaffordable:
        found.append(view.admission.budget_message)
    repeated = repeated_domains(view.spec, view.manifest)
    if repeated:
        named = ", ".join(f"{name} {times:.1f} times" for name, times in repeated.items())
        found.append(f"The longest runs see some domains more than once: {named}.")
    if mixed := _mixed_versions(view):
        found.append(f"Points were trained with different versions: {mixed}.")
    if lost := [job for job in view.observed.jobs if job.lost]:
        found.append(f"{len(lost)} attempts were given up, such as: {lost[0].message}.")
    if view.awaited:
        found.append(f"{len(view.awaited)} Jobs succeeded and their results are not there yet.")
    if unread := view.unanswered - view.awaited:
        reads = (view.observed.results.get(key, ABSENT) for key in unread)
        message = min(read.message for read in reads if is_unknown(read))
        found.append(f"{len(unread)} results cannot be read and wait: {message}")
    over = slots_exceeded(view.observed, view.spec)
    if over > 0:
        found.append(f"{over} Jobs more than the spec allows are running; none is started.")
    return tuple(found)


def _mixed_versions(view: PointsView) -> str:
    """Versions in which the points done differ, such as "torch 2.8.0 and 2.9.0"; empty: none."""
    used = {r.versions for r in view.ledger.points if r.state in DONE and r.versions is not None}
    sets = [view.ledger.versions[index] for index in sorted(used)]
    names = dict.fromkeys(name for each in sets for name in each)
    found = {name: sorted({each.get(name, "unknown") for each in sets}) for name in names}
    return ", ".join(f"{n} {' and '.join(each)}" for n, each in found.items() if len(each) > 1)
