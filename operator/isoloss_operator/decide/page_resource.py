"""A sweep as the page beside it is to show it: its status, with the laws that are on the page."""

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from isoloss.laws import Laws
from isoloss_operator.decide import conditions
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.law_status import law_statuses, laws_finding


def page_resource(
    resource: Mapping[str, Any], laws: Laws, points: int, *, final: bool
) -> dict[str, Any]:
    """`resource` with laws of `points` runs. With final laws its conditions say what the next pass will say of them.

    A sweep that was stalled before stays so: laws do not change that.
    """
    status = dict(resource.get("status", {}))
    if laws.data.runs:
        shown = law_statuses(laws, provisional=not final)
        status |= {to_camel(name): law.document() for name, law in shown.items()}
    before = {each["type"]: each["status"] for each in status.get("conditions", ())}
    if final and before.get(conditions.STALLED) != "True":
        found = laws_finding(laws, points, final=True)
        by_type = {
            conditions.READY: found,
            conditions.FIT_READY: found,
            conditions.STALLED: conditions.stalled(found),
            conditions.RECONCILING: conditions.reconciling(found, ""),
        }
        status["conditions"] = [
            _as(each, by_type.get(each["type"])) for each in status.get("conditions", ())
        ]
    return {**resource, "status": status}


def _as(condition: Mapping[str, Any], found: Finding | None) -> dict[str, Any]:
    """The condition as a finding has it."""
    if found is None:
        return dict(condition)
    return {
        **condition,
        "status": found.status,
        "reason": str(found.reason),
        "message": found.message,
    }
