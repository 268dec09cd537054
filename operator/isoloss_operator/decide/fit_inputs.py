"""What a fit depends on: a fit of equal inputs is needed no second time."""

from collections.abc import Sequence
from typing import Final

from isoloss_contract.ledger import PointRecord
from isoloss_contract.records import content_key
from isoloss_operator.api import ScalingSweepSpec

FEWEST_FOR_PROVISIONAL: Final = 4
"""Below this many points no law is worth fitting."""


def fitted_records(
    spec: ScalingSweepSpec, records: Sequence[PointRecord]
) -> tuple[PointRecord, ...]:
    """Points whose trajectories the fit uses: none of those around an answer."""
    sizes = {proxy.name for proxy in spec.fitted_proxies}
    return tuple(record for record in records if record.is_fitted and record.proxy in sizes)


def fit_inputs(
    spec: ScalingSweepSpec, records: Sequence[PointRecord], *, final: bool, search: bool = False
) -> str:
    """Hash of all that a fit depends on, with a step of the search if `search`."""
    fitted = [
        [r.key, r.name, r.trajectory_sha256, str(r.state), r.taken_back, r.is_finished]
        for r in fitted_records(spec, records)
    ]
    content = [fitted, spec.fit.model_dump(mode="json"), final]
    return content_key([*content, *(_search_inputs(spec, records) if search else ())])


def _search_inputs(spec: ScalingSweepSpec, records: Sequence[PointRecord]) -> list[object]:
    """What a step depends on in addition to trajectories: a different one is another step."""
    sizes = [
        [proxy.name, proxy.tokens, spec.grid_of(proxy).model_dump(mode="json")]
        for proxy in spec.proxies
    ]
    budget = None if spec.budget is None else spec.budget.model_dump(mode="json")
    points = [[r.key, str(r.state), str(r.intent.action), r.intent.tokens] for r in records]
    # Where points are placed shows in the sizes.
    search = spec.search.model_dump(mode="json", exclude={"placement"})
    return [search, spec.design, budget, sizes, points]
