"""Parses and checks specs; every error names its field.

The API types refuse what the CRD's schema and rules refuse. Checks that need knowledge of models and runs are
here. InvalidSpec is the only exception, so that a bad spec becomes a condition and never a crash.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from isoloss.laws import refuse_alike_sizes
from isoloss.numbers import hint
from isoloss_contract import records
from isoloss_contract.records import preparation
from isoloss_operator.api import HyperparamPredictionSpec, Proxy, ScalingSweepSpec
from isoloss_operator.api.fields import DECIMAL_PATTERN, LABEL_PATTERN, NAME_PATTERN
from isoloss_operator.planning.models import model_problems, parameter_counts

SOME_ENDING = re.compile(r"\.[a-z]+$", re.IGNORECASE)
"""Of a URI that names files rather than a folder."""
MAX_ERRORS = 10
"""Errors in one message."""

Spec = TypeVar("Spec", bound=BaseModel)


@dataclass(frozen=True)
class SpecError:
    """One error of a spec: the field as in the manifest, and what to do."""

    field: str
    message: str
    is_unknown: bool = False
    """Whether this version has no such field."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidSpec(ValueError):
    """An invalid spec with all its errors."""

    suspend = False
    """What the spec says nevertheless: Jobs of an earlier, valid one may be running."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = tuple(errors)
        super().__init__(in_words(self.errors))


def in_words(errors: Sequence[SpecError]) -> str:
    """The errors as one message."""
    shown = "; ".join(str(error) for error in errors[:MAX_ERRORS])
    more = len(errors) - MAX_ERRORS
    return f"{shown}; and {more} more" if more > 0 else shown


def parse_sweep_spec(raw: Mapping[str, Any]) -> ScalingSweepSpec:
    """The spec of a ScalingSweep, with every check that is possible without its corpus. Raises InvalidSpec."""
    spec = parsed(raw, ScalingSweepSpec)
    errors = [*_corpus_errors(spec), *_proxy_errors(spec)]
    if errors:
        raise InvalidSpec(errors)
    return spec


def parse_prediction_spec(raw: Mapping[str, Any]) -> HyperparamPredictionSpec:
    """The spec of a HyperparamPrediction. Raises InvalidSpec."""
    return parsed(raw, HyperparamPredictionSpec)


def sources(spec: ScalingSweepSpec) -> dict[str, str]:
    """URIs of everything that a sweep reads from outside its store, by the field that names them."""
    domains = {
        f"spec.data.domains[{index}].uri": domain.uri
        for index, domain in enumerate(spec.data.domains)
    }
    return {"spec.data.tokenizer": spec.data.tokenizer, **domains, **spec.checkpoint_uris}


def known_models(spec: ScalingSweepSpec) -> dict[str, dict[str, Any]]:
    """Configurations by size, without those of checkpoints that are not read yet."""
    return {p.name: p.model.config for p in spec.proxies if p.model is not None}


# ------------------------------------------------------------------------------------- parsing


def parsed(raw: Mapping[str, Any], model: type[Spec]) -> Spec:
    """What the API's own rules make of a spec. Raises InvalidSpec."""
    try:
        spec = model.model_validate(raw)
    except ValidationError as error:
        raise InvalidSpec(
            SpecError(
                _field(detail["loc"]), problem(detail, model), detail["type"] == "extra_forbidden"
            )
            for detail in error.errors(include_url=False)
            # pydantic also calls a list of bad items too short.
            if detail["type"] != "too_short"
            or len(detail["input"]) <= detail["ctx"]["actual_length"]
        ) from error
    if converted := list(_taken_for_others(raw, spec.model_dump(by_alias=True), ())):
        raise InvalidSpec(converted)
    return spec


def _field(place: Iterable[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "spec" + "".join(parts)


def _taken_for_others(raw: Any, taken: Any, place: tuple[int | str, ...]) -> Iterator[SpecError]:
    """Values that pydantic converts and the API server refuses: numbers in quotes, and fields by their Python names."""
    if isinstance(raw, Mapping) and isinstance(taken, Mapping):
        for name, value in raw.items():
            if name in taken:
                yield from _taken_for_others(value, taken[name], (*place, name))
            else:
                yield SpecError(
                    _field((*place, name)),
                    f"is not a field of this resource: did you mean {to_camel(name)}?",
                )
    elif isinstance(raw, list) and isinstance(taken, list | tuple):
        for index, values in enumerate(zip(raw, taken, strict=True)):
            yield from _taken_for_others(*values, (*place, index))
    elif isinstance(raw, str | bool) and type(raw) is not type(taken) and isinstance(taken, int):
        # As YAML has it: true, not Python's True.
        yield SpecError(
            _field(place), f"is {raw!r} and must be {json.dumps(taken)}, without quotes"
        )


# ------------------------- what is wrong with a value, in words of the manifest rather than of the library that checks it


FORMS = {
    DECIMAL_PATTERN: 'a decimal number such as "2e-4", in quotes',
    LABEL_PATTERN: "lower-case letters, digits and -, with a letter or digit at both ends",
    NAME_PATTERN: "lower-case letters, digits, - and ., with a letter or digit at both ends",
}
QUOTE = "'"
THREE = " (3 unless search.strategy is Sequential)"
SEQUENCES = "; batch sizes count sequences, not tokens"


def problem(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """What is wrong with a value of this type's spec, and what to write."""
    given, kind = detail["input"], detail["type"]
    if kind == "quoted":
        return f'is a number and must be a string: quote it, as in "{given!r}"'
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return f"is not a field of this resource{_meant(detail, model)}"
    if given is None:
        return "has no value: fill it in, or leave the field out"
    if kind == "dict_type" or "class_name" in detail.get("ctx", {}):
        return f"must have fields below it{_names(_fields(model, detail['loc']))}, and is {given!r:.60}"
    expected = _expected(detail)
    return f"must {expected}" if expected else records.in_words(detail)


def _expected(detail: ErrorDetails) -> str:
    """What a single value or a list must be; empty for a message of our own."""
    given, limits = detail["input"], detail.get("ctx", {})
    sequences = SEQUENCES if "batchSize" in str(detail["loc"]) else ""
    three = THREE if "learningRates" in detail["loc"] else ""
    match detail["type"]:
        case "int_parsing" | "int_parsing_size" | "int_type" | "int_from_float":
            return f"be a whole number, not {given!r:.60}{_written(given, sequences, whole=True)}"
        case "greater_than_equal":
            return f"be at least {limits['ge']}, not {given!r:.60}"
        case "less_than_equal":
            return f"be at most {limits['le']}, not {given!r:.60}{sequences}"
        case "too_short":
            return (
                f"have at least {limits['min_length']} items{three}, not {limits['actual_length']}"
            )
        case "too_long":
            return f"have at most {limits['max_length']} items, not {limits['actual_length']}"
        case "tuple_type" | "list_type":
            return f"be a list, in [ ] or with a - before each item, not {given!r:.60}"
        case "literal_error" | "enum":
            return f"be {limits['expected'].replace(QUOTE, '')}, not {given!r:.60}"
        case "string_type":
            return f"be text, not {given!r:.60}: put it in quotes"
        case "string_pattern_mismatch":
            form = FORMS.get(limits["pattern"], f"of the form {limits['pattern']}")
            return f"be {form}, not {given!r:.60}{_written(given)}"
        case "bool_type" | "bool_parsing":
            return f"be true or false, not {given!r:.60}"
    return ""


def _written(given: Any, instead: str = "", *, whole: bool = False) -> str:
    return (instead or hint(given, whole=whole)) if isinstance(given, str) else ""


def _meant(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """The field of the same place whose name is most like this one."""
    *place, name = detail["loc"]
    fields = _fields(model, place)
    joined = {field.lower(): field for field in fields}
    close = difflib.get_close_matches(str(name).replace("_", "").lower(), joined, n=1)
    return f": did you mean {joined[close[0]]}?" if close else _names(fields)


def _names(fields: Iterable[str]) -> str:
    names = sorted(fields)
    return f" ({', '.join(names)})" if names else ""


def _fields(model: type[BaseModel], place: Iterable[int | str]) -> Mapping[str, Any]:
    """Schemas of the fields at a place of this type, by name; empty where any name may be."""
    root = model.model_json_schema()
    node = root
    for part in place:
        node = _resolved(root, node)
        node = (
            node.get("items", {})
            if isinstance(part, int)
            else node.get("properties", {}).get(part, {})
        )
    found: Mapping[str, Any] = _resolved(root, node).get("properties", {})
    return found


def _resolved(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A schema itself, for one that refers to it or that may also be null."""
    node = next((each for each in node.get("anyOf", []) if each.get("type") != "null"), node)
    name = node.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = root["$defs"][name] if name else node
    return found


# --------------------------------------------------------------------------------------- rules


def _corpus_errors(spec: ScalingSweepSpec) -> Iterator[SpecError]:
    for index, domain in enumerate(spec.data.domains):
        if SOME_ENDING.search(domain.uri) and not preparation.may_be_read(domain.uri):
            message = (
                f"no documents are read from such files: give {preparation.IN_WORDS}, or a folder with /* at its end"
                f"{preparation.known_other_form(domain.uri)}"
            )
            yield SpecError(f"spec.data.domains[{index}].uri", message)


def _proxy_errors(spec: ScalingSweepSpec) -> list[SpecError]:
    errors = []
    for index, proxy in enumerate(spec.proxies):
        if proxy.model is not None:
            errors += _model_errors(proxy.model.config, f"spec.proxies[{index}].model.config")
    return errors or [*position_errors(spec), *same_model_errors(spec)]


def _model_errors(config: Mapping[str, Any], field: str) -> list[SpecError]:
    errors = [SpecError(f"{field}.{key}", text) for key, text in model_problems(config).items()]
    positions = config.get("max_position_embeddings")
    if isinstance(positions, bool) or not isinstance(positions, int) or positions < 1:
        where = f"{field}.max_position_embeddings"
        errors.append(SpecError(where, "must be set, a positive integer"))
    return errors


def position_errors(spec: ScalingSweepSpec) -> list[SpecError]:
    """Sequences longer than the positions of a model, if its config is known."""
    length = spec.data.sequence_length
    errors = []
    for name, config in known_models(spec).items():
        count = config.get("max_position_embeddings")
        if not isinstance(count, int):
            message = (
                f"the model of proxy {name} does not say for how many (max_position_embeddings)"
            )
            errors.append(SpecError("spec.data.sequenceLength", message))
        elif length > count:
            message = f"{length} is more than the {count} positions of proxy {name}"
            errors.append(SpecError("spec.data.sequenceLength", message))
    return errors


def same_model_errors(spec: ScalingSweepSpec) -> list[SpecError]:
    """Sizes that are one, as far as their configs are known."""
    configs = known_models(spec)
    starts = {proxy.name: proxy.checkpoint for proxy in spec.proxies if proxy.checkpoint}
    keys = {
        name: records.content_key([config, starts[name].uri] if name in starts else config)
        for name, config in configs.items()
    }
    found = [*_same_model_problems(spec, keys)]
    fitted = [proxy.name for proxy in spec.fitted_proxies]
    if not found and fitted and all(name in configs for name in fitted):
        active = {name: parameter_counts(configs[name]).active for name in fitted}
        found = [_alike_sizes_problem(spec, active)]
    return [SpecError("spec.proxies", message) for message in found if message]


# ------------------------------------------------------------------------- sizes that are one to the laws


def _same_model_problems(spec: ScalingSweepSpec, models: Mapping[str, str]) -> Iterator[str]:
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
                f"{first.name} and {second.name} continue the same checkpoint, so a point around an answer could belong to "
                "both: put them into two ScalingSweeps"
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


def _alike_sizes_problem(spec: ScalingSweepSpec, active: Mapping[str, int]) -> str:
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
