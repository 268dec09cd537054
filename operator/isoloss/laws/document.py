"""laws.json: what the operator keeps of a fit and predicts from later, without loss.

The dataclasses of results.py are the schema. Reading is strict (no unknown field, each of its declared
type), because others can write to the object store. A digest shows other changes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from isoloss.laws.curves import Drawn
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.results import LawError

FORMAT: Literal["isoloss.dev/laws"] = "isoloss.dev/laws"
LAWS_VERSION: Literal[14] = 14
LAWS_SCHEMA = "68e989f27c3f550d5ad97b68d60116de"
"""Hash of the schema of this version. Every change of it, a new optional field too, is a new version."""


ERRORS: Mapping[str, tuple[str, ...]] = {
    "learning_rate": (),
    "batch_size": (),
    "loss_compute": (),
    "surface": ("error", "curvature"),
    "rate_at_batch": ("error", "curvature"),
}
"""What each law has if it is fitted."""


TERMS: Mapping[str, tuple[int, int]] = {"surface": (2, 6), "rate_at_batch": (1, 6)}
"""Optima and terms of the laws that have errors of their own."""


class BadLaws(ValueError):
    """A document is not that of any laws; the message names the field."""


class LawsDocument(BaseModel):
    """The versioned envelope. Its configuration holds for the dataclasses inside, too."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal["isoloss.dev/laws"]
    version: Literal[14]
    sha256: str
    """Of the laws as they stand in the file, so that a field with a default that is added later changes none."""
    laws: Laws


def laws_to_json(laws: Laws) -> dict[str, Any]:
    """A JSON object of plain values, below 2 MB for any number of runs."""
    envelope = LawsDocument(format=FORMAT, version=LAWS_VERSION, sha256="", laws=laws)
    document = envelope.model_dump(mode="json")
    return {**document, "sha256": _digest(document["laws"])}


def _digest(laws: object) -> str:
    """SHA-256 of JSON values, whatever the spaces, the order of fields, and the form of numbers in their file."""
    numbers = json.loads(json.dumps(laws), parse_int=float)
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def laws_from_json(document: object) -> Laws:
    """The laws of such a document. Raises BadLaws for anything else, naming the first field at fault."""
    if not isinstance(document, dict):
        raise BadLaws("holds no laws: must be an object")
    if "format" not in document:
        printed = ", not what it prints with --json" if "learning_rate" in document else ""
        raise BadLaws(f"holds no laws: give the file that isoloss fit writes with --out{printed}")
    _check_version(document.get("version"))
    try:
        # Strict rules differ for JSON, where a tuple can only be a list: hence from text.
        parsed = LawsDocument.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "laws.json"
        raise BadLaws(f"{path}: {first['msg'].replace('Input should', 'must', 1)}") from error
    _check_data(parsed.laws)
    if parsed.sha256 != _digest(document["laws"]):
        raise BadLaws(
            "sha256: is not that of these laws: the file was changed or damaged after it was written: fit the runs again "
            "with isoloss fit"
        )
    return parsed.laws


def _check_version(version: object) -> None:
    """Raise BadLaws for another version than the one that is read: fields come and go from one to the next."""
    if not isinstance(version, int) or version == LAWS_VERSION:
        return
    age, then = (
        ("an older", "fit the runs again with isoloss fit")
        if version < LAWS_VERSION
        else ("a newer", "upgrade isoloss, or fit the runs again with this one's isoloss fit")
    )
    raise BadLaws(
        f"version {version} is of {age} isoloss, and this one reads {LAWS_VERSION}: {then}"
    )


def _check_data(laws: Laws) -> None:
    """Raise BadLaws for laws without the data, or the errors, that their answers are measured against."""
    for name in ("sizes", "batch_sizes", "learning_rates"):
        if laws.status != "refused" and not getattr(laws.data, name):
            raise BadLaws(f"laws.data.{name}: empty, although laws are fitted")
    for where, errors in ERRORS.items():
        law = getattr(laws, where)
        found = law.optimum if where == "surface" else law.curve
        _check_law(where, law, found, errors)
        _check_draws(where, found, getattr(laws.draws, where, None))
    for index, contour in enumerate(laws.contours):
        for name in ("learning_rates", "batch_sizes", "log_tokens", "bounds", "weights"):
            if np.shape(getattr(contour, name)) != (len(contour.run_names),):
                raise BadLaws(f"laws.contours.{index}.{name}: must have one value for each run")


def _check_law(where: str, law: Any, found: Drawn | None, errors: Sequence[str]) -> None:
    """Raise BadLaws for a law that is neither fitted nor refused, or was fitted without these errors."""
    if found is None and law.refusal is None:
        raise BadLaws(f"laws.{where}.refusal: missing, although this law is not fitted")
    for name in errors:
        error = getattr(law, name)
        if found is not None and error is None:
            raise BadLaws(f"laws.{where}.{name}: missing, although this law is fitted")
        if isinstance(error, LawError):
            _check_error(f"laws.{where}.{name}", error, *TERMS[where])


def _check_error(where: str, error: LawError, optima: int, terms: int) -> None:
    """Raise BadLaws for errors of another law than one of so many optima and terms."""
    for name, size in (
        ("moments", terms + 2 * optima),
        ("noise", terms),
        ("scatter", optima),
        ("exponents", optima),
        ("token_curvatures", optima),
    ):
        if len(getattr(error, name)) != size:
            raise BadLaws(f"{where}.{name}: must have {size} rows")


def _check_draws(where: str, law: Drawn | None, draws: Drawn | None) -> None:
    """Raise BadLaws for an estimate that is drawn, and for draws that are none or differ in number."""
    if law is not None and any(_lengths(law)):
        raise BadLaws(f"laws.{where}: must have numbers, not arrays")
    if draws is not None and len(set(_lengths(draws))) != 1:
        raise BadLaws(f"laws.draws.{where}: must have arrays of one length")


def _lengths(drawn: Drawn) -> Iterator[int]:
    """Of its arrays."""
    for field in fields(drawn):
        value = getattr(drawn, field.name)
        if isinstance(value, Drawn):
            yield from _lengths(value)
        elif isinstance(value, np.ndarray):
            yield len(value)
