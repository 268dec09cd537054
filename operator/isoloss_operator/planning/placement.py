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
    "On its authors' own tables (17 dense sizes and token counts, 16 of mixtures, from 215M parameters on) the published law's 3 x 3 "
    "grids always held the optimum. It is untested on other data, on smaller models and at a constant learning rate."
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
    renamed, shape = _former_names(spec, known), spec.search.placement
    kept, places, grids = _kept_places(spec, known, renamed), list[Placement](), {}
    errors = []
    for proxy in sizes_to_place(spec):
        place = kept.get(proxy.name)
        try:
            if place is None:
                counts = parameter_counts(proxy.config)
                at = placed_by_law(counts.body_total, proxy.tokens, spec.data.sequence_length)
                key = model_key(proxy)
                place = Placement(proxy.name, at.learning_rate, at.batch_size, SOURCE, key)
            found = lattice(
                Place(place.learning_rate, place.batch_size),
                shape.lines,
                float(shape.learning_rate_factor),
                float(shape.batch_size_factor),
            )
            # As a user would write it.
            rates = tuple(repr(rate) for rate in found.learning_rates)
            grid = api.Grid(batch_sizes=found.batch_sizes, learning_rates=rates)
        except NotApplicable as error:
            errors.append(_give_a_grid(spec, proxy, str(error)))
        except ValidationError as error:
            reason = _beyond_limits(error.errors(include_url=False)[0], shape)
            errors.append(_give_a_grid(spec, proxy, reason, "lower these, or "))
        else:
            errors += _grid_errors(spec, proxy, grid)
            places.append(place)
            grids[proxy.name] = api.ProxyGrid(
                batch_sizes=grid.batch_sizes, learning_rates=grid.learning_rates
            )
    if errors:
        raise InvalidSpec(errors)
    return Placed(_with_grids(spec, grids), tuple(places), former_places(known, places, renamed))


def _with_grids(
    spec: api.ScalingSweepSpec, grids: Mapping[str, api.ProxyGrid]
) -> api.ScalingSweepSpec:
    """The spec with these grids of its own for sizes, by name."""
    if not grids:
        return spec
    proxies = (
        proxy.model_copy(update={"grid": grids[proxy.name]}) if proxy.name in grids else proxy
        for proxy in spec.proxies
    )
    return spec.model_copy(update={"proxies": tuple(proxies)})


def sizes_to_place(spec: api.ScalingSweepSpec) -> tuple[api.Proxy, ...]:
    """Proxies for which a search is to find its own first points."""
    if not spec.searches or spec.grid is not None:
        return ()
    return tuple(proxy for proxy in spec.proxies if proxy.grid is None)


def model_key(proxy: api.Proxy) -> str:
    """What a size is, whatever it is called."""
    return content_key(proxy.config)


def _kept_places(
    spec: api.ScalingSweepSpec, known: Sequence[Placement], former: Mapping[str, str]
) -> dict[str, Placement]:
    """The places that sizes have already, by the sizes' present names: also under a name that no size has now, which is one of
    the `former`."""
    by_size = {(place.proxy, place.model): place for place in reversed(known)}
    found = {
        proxy.name: by_size.get((former.get(proxy.name, proxy.name), model_key(proxy)))
        for proxy in sizes_to_place(spec)
    }
    return {name: replace(place, proxy=name) for name, place in found.items() if place is not None}


def _former_names(spec: api.ScalingSweepSpec, known: Sequence[Placement]) -> dict[str, str]:
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
