"""Proxies that are one size to the laws: one model under several names, whose points may be one run, or alike in size."""

from collections.abc import Iterator, Mapping
from itertools import combinations

from isoloss.laws import refuse_alike_sizes
from isoloss_operator.api import Proxy, ScalingSweepSpec


def same_model_problems(spec: ScalingSweepSpec, models: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with spec.proxies. `models` are keys of what proxies are, by name; one whose checkpoint was not read yet has none."""
    fitted = spec.fitted_proxies
    are_known = all(proxy.name in models for proxy in fitted)
    of_fitted = {models.get(proxy.name) for proxy in fitted}
    if spec.is_checked and len(fitted) > 1 and are_known and len(of_fitted) == 1:
        yield _one_size(spec, fitted)
        return
    known = [proxy for proxy in spec.proxies if proxy.name in models]
    for first, second in combinations(known, 2):
        if models[first.name] != models[second.name]:
            continue
        if first.is_around_an_answer or second.is_around_an_answer:
            yield (
                f"{first.name} and {second.name} continue the same checkpoint, and points around an answer may be points of "
                "the other size, too: put them into two ScalingSweeps"
            )
        elif spec.searches:
            yield (
                f"{second.name} and {first.name} are the same model, and a search may add the same run to both: "
                "leave one of them out, or give them different models"
            )
        elif shared := _shared_points(spec, first, second):
            batch_size, rate = min(shared)
            yield (
                f"{first.name} and {second.name} are the same model, and their points of batch size {batch_size} and "
                f"learning rate {rate:g} are the same run: give {first.name} and {second.name} different models or grids"
            )


def alike_sizes_problem(spec: ScalingSweepSpec, active: Mapping[str, int]) -> str:
    """The same of sizes alike; empty: nothing. `active` are the active parameters of all proxies, by name."""
    alike = refuse_alike_sizes(active.values()) if spec.is_checked else None
    if alike is None:
        return ""
    message = f"{alike.message[0].lower()}{alike.message[1:-1]}"
    return f"{message}, or set design to Unchecked to train them anyway"


def _one_size(spec: ScalingSweepSpec, proxies: tuple[Proxy, ...]) -> str:
    *others, last = (proxy.name for proxy in proxies)
    fields = ", ".join(
        f"spec.proxies[{spec.proxies.index(proxy)}].{'checkpoint' if proxy.checkpoint else 'model'}"
        for proxy in proxies
    )
    return (
        f"{', '.join(others)} and {last} are the same model, and one size gives no laws, however long it trains: change "
        f"one of {fields}; set design to Unchecked to train it anyway"
    )


def _shared_points(spec: ScalingSweepSpec, first: Proxy, second: Proxy) -> set[tuple[int, float]]:
    """Batch sizes and learning rates."""
    one, other = spec.grid_of(first), spec.grid_of(second)
    batch_sizes = set(one.batch_sizes) & set(other.batch_sizes)
    rates = set(map(float, one.learning_rates)) & set(map(float, other.learning_rates))
    return {(batch_size, rate) for batch_size in batch_sizes for rate in rates}
