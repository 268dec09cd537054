"""Grids in place of those that a sweep leaves to its search.

A size is placed once, and the ledger keeps its centre: keys of points must not move when its tokens are raised.
The lattice about the centre is the spec's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from isoloss.placement import SOURCE, lattice, placed_by_law
from isoloss.published import NotApplicable
from isoloss.validation import Place
from isoloss_contract.ledger import MAX_PLACEMENTS, Placement
from isoloss_contract.records import content_key, in_words
from isoloss_operator import api
from isoloss_operator.planning.models import parameter_counts
from isoloss_operator.planning.specs import InvalidSpec, SpecError

COVERAGE: Final = (
    "The published law put the optimum inside such a 3 x 3 lattice in 33 of 33 cells of its authors' own tables, "
    "16 of them of mixtures of experts, from 215M parameters on; it is not tested on others, smaller ones among them, nor at a constant "
    "learning rate."
)
"""Measured with `make bench-search` on 22 November 2026: docs/evidence/search.md."""


GIVE_A_GRID: Final = "give a grid"
"""How refusals end: what helps where there is a manifest."""


@dataclass(frozen=True)
class Placed:
    """A spec whose sizes all have a grid, unless their points lie around an answer, and where it has been placed."""

    spec: api.ScalingSweepSpec
    places: tuple[Placement, ...]
    """Of the sizes that the user left to the search, in order of the proxies."""
    former: tuple[Placement, ...]
    """Of sizes that the search places no longer."""


def place_sizes(spec: api.ScalingSweepSpec, known: Sequence[Placement] = ()) -> Placed:
    """The spec with every grid that the user left to the search: about the places `known`, else by the published law.

    Raises InvalidSpec if the law does not apply, or a lattice cannot be trained.
    """
    places = placements(spec, known)
    former = former_places(known, places, former_names(spec, known))
    return Placed(with_placed_grids(spec, places), places, former)


def sizes_to_place(spec: api.ScalingSweepSpec) -> tuple[api.Proxy, ...]:
    """Proxies for which a search is to find its own first points."""
    if not spec.searches or spec.grid is not None:
        return ()
    return tuple(proxy for proxy in spec.proxies if proxy.grid is None)


def placements(
    spec: api.ScalingSweepSpec, known: Sequence[Placement] = ()
) -> tuple[Placement, ...]:
    """One for each size to place, in order of the proxies: as `known`, else by the published law.

    Raises InvalidSpec if the law does not apply.
    """
    kept = kept_places(spec, known)
    found, errors = [], []
    for proxy in sizes_to_place(spec):
        try:
            found.append(kept.get(proxy.name) or _by_law(spec, proxy))
        except NotApplicable as error:
            errors.append(_give_a_grid(spec, proxy, str(error)))
    if errors:
        raise InvalidSpec(errors)
    return tuple(found)


def _by_law(spec: api.ScalingSweepSpec, proxy: api.Proxy) -> Placement:
    counts = parameter_counts(proxy.config)
    place = placed_by_law(counts.body_total, proxy.tokens, spec.data.sequence_length)
    return Placement(proxy.name, place.learning_rate, place.batch_size, SOURCE, model_key(proxy))


def model_key(proxy: api.Proxy) -> str:
    """What a size is, whatever it is called."""
    return content_key(proxy.config)


def kept_places(spec: api.ScalingSweepSpec, known: Sequence[Placement]) -> dict[str, Placement]:
    """The places that sizes have already, by the sizes' present names: also under a name that no size has now."""
    former = former_names(spec, known)
    by_size = {(place.proxy, place.model): place for place in reversed(known)}
    found = {
        proxy.name: by_size.get((former.get(proxy.name, proxy.name), model_key(proxy)))
        for proxy in sizes_to_place(spec)
    }
    return {name: replace(place, proxy=name) for name, place in found.items() if place is not None}


def former_names(spec: api.ScalingSweepSpec, known: Sequence[Placement]) -> dict[str, str]:
    """The former names of placed sizes that were renamed, by their present ones."""
    names = {proxy.name for proxy in spec.proxies}
    placed = {(place.proxy, place.model) for place in known}
    found: dict[str, str] = {}
    for proxy in sizes_to_place(spec):
        model = model_key(proxy)
        if (proxy.name, model) in placed:
            continue
        for place in known:
            is_free = place.proxy not in names and place.proxy not in found.values()
            if place.model == model and is_free:
                found[proxy.name] = place.proxy
                break
    return found


def former_places(
    known: Sequence[Placement], placed: Sequence[Placement], renamed: Mapping[str, str]
) -> tuple[Placement, ...]:
    """What the ledger keeps of `known` in addition to the present places; `renamed` are former names by present ones."""
    present = {(renamed.get(place.proxy, place.proxy), place.model) for place in placed}
    present |= {(place.proxy, place.model) for place in placed}
    former = [place for place in known if (place.proxy, place.model) not in present]
    return tuple(former[max(0, len(former) - MAX_PLACEMENTS) :])


def with_placed_grids(
    spec: api.ScalingSweepSpec, placed: Iterable[Placement]
) -> api.ScalingSweepSpec:
    """The spec with a grid for every size that is placed. Raises InvalidSpec if a lattice cannot be trained."""
    by_name = {placement.proxy: placement for placement in placed}
    to_place = {proxy.name for proxy in sizes_to_place(spec)} & by_name.keys()
    if not to_place:
        return spec
    proxies, errors = [], []
    for proxy in spec.proxies:
        if proxy.name not in to_place:
            proxies.append(proxy)
            continue
        try:
            grid = placed_grid(by_name[proxy.name], spec.search.placement)
        except ValidationError as error:
            reason = _beyond_limits(error.errors(include_url=False)[0], spec.search.placement)
            errors.append(_give_a_grid(spec, proxy, reason, "lower these, or "))
            continue
        errors += _grid_errors(spec, proxy, grid)
        own = api.ProxyGrid(batch_sizes=grid.batch_sizes, learning_rates=grid.learning_rates)
        proxies.append(proxy.model_copy(update={"grid": own}))
    if errors:
        raise InvalidSpec(errors)
    return spec.model_copy(update={"proxies": tuple(proxies)})


def placed_grid(placement: Placement, shape: api.SearchPlacement) -> api.Grid:
    """The lattice about a centre, as a user would write it. Raises ValidationError if no user could."""
    found = lattice(
        Place(placement.learning_rate, placement.batch_size),
        shape.lines,
        float(shape.learning_rate_factor),
        float(shape.batch_size_factor),
    )
    return api.Grid(
        batch_sizes=found.batch_sizes,
        learning_rates=tuple(repr(rate) for rate in found.learning_rates),
    )


def placed_sizes(
    spec: api.ScalingSweepSpec, placed: Iterable[Placement]
) -> Iterator[tuple[Placement, api.Grid]]:
    """What is placed with its grid, in order of the proxies. `spec` has a grid for every size."""
    by_name = {placement.proxy: placement for placement in placed}
    for proxy in spec.proxies:
        if proxy.name in by_name:
            yield by_name[proxy.name], spec.grid_of(proxy)


def _grid_errors(spec: api.ScalingSweepSpec, proxy: api.Proxy, grid: api.Grid) -> list[SpecError]:
    largest, length = grid.batch_sizes[-1], spec.data.sequence_length
    step = largest * length
    if spec.fewest_steps * step <= proxy.tokens:
        return []
    reason = (
        f"its tokens last for {proxy.tokens // step} steps of the largest placed batch, {largest} x {length} tokens, and "
        f"at least {spec.fewest_steps} are needed"
    )
    return [_give_a_grid(spec, proxy, reason)]


def _beyond_limits(detail: ErrorDetails, shape: api.SearchPlacement) -> str:
    """Which of the placed values no grid may have, and the fields that put it there."""
    kind, *index = detail["loc"]
    is_rate = kind == "learning_rates"
    factor = shape.learning_rate_factor if is_rate else shape.batch_size_factor
    value = f" {detail['input']}" if index else "s"
    rule = in_words(detail)
    return (
        f"search.placement.lines ({shape.lines}) and {'learningRateFactor' if is_rate else 'batchSizeFactor'} ({factor}) give "
        f"{'learning rate' if is_rate else 'batch size'}{value}, which {rule}"
    )


def _give_a_grid(
    spec: api.ScalingSweepSpec, proxy: api.Proxy, reason: str, otherwise: str = ""
) -> SpecError:
    field = f"spec.proxies[{spec.proxies.index(proxy)}].grid"
    advice = f"{otherwise}{GIVE_A_GRID}"
    return SpecError(field, f"is absent, and no first points can be placed: {reason}; {advice}")
