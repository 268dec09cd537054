"""laws.json: what the operator keeps of a fit and predicts from later, without loss.

The dataclasses of results.py are the schema. Reading is strict (no unknown field, each of its declared
type), because others can write to the object store.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isoloss.laws.fitted_laws import Laws

FORMAT: Literal["isoloss.dev/laws"] = "isoloss.dev/laws"
LAWS_VERSION: Literal[9] = 9


class BadLaws(ValueError):
    """A document is not that of any laws; the message names the field."""


class LawsDocument(BaseModel):
    """The versioned envelope. Its configuration holds for the dataclasses inside, too."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal["isoloss.dev/laws"]
    version: Literal[9]
    laws: Laws


def laws_to_json(laws: Laws) -> dict[str, Any]:
    """A JSON object of plain values, below 2 MB for any number of runs."""
    return LawsDocument(format=FORMAT, version=LAWS_VERSION, laws=laws).model_dump(mode="json")


def laws_from_json(document: object) -> Laws:
    """The laws of such a document. Raises BadLaws for anything else, naming the first field at fault."""
    if isinstance(document, dict) and "format" not in document:
        printed = ", not what it prints with --json" if "learning_rate" in document else ""
        raise BadLaws(f"holds no laws: give the file that isoloss fit writes with --out{printed}")
    _check_version(document.get("version") if isinstance(document, dict) else None)
    try:
        # Strict rules differ for JSON, where a tuple can only be a list: hence from text.
        laws = LawsDocument.model_validate_json(json.dumps(document)).laws
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "laws.json"
        raise BadLaws(f"{path}: {first['msg']}") from error
    _check_data(laws)
    return laws


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
    surface, rate = laws.surface, laws.rate_at_batch
    if rate.curve is None and rate.refusal is None:
        raise BadLaws("laws.rate_at_batch.refusal: missing, although this law is not fitted")
    for where, law, is_there, needed in (
        ("surface", surface, surface.planes, ("bend", "token_bend", "target_covariance")),
        ("rate_at_batch", rate, rate.curve, ("curvature", "bend", "token_bend")),
    ):
        for name in needed:
            if is_there is not None and getattr(law, name) is None:
                raise BadLaws(f"laws.{where}.{name}: missing, although this law is fitted")
