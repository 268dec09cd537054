"""laws.json: a versioned document around the laws' plain JSON, read back as strictly as written."""

from __future__ import annotations

from typing import Any

from isoloss.laws.document import BadLaws, laws_from_document, laws_to_document
from isoloss.laws.results import Laws

FORMAT = "isoloss.dev/laws"
VERSION = 1


def laws_to_json(laws: Laws) -> dict[str, Any]:
    """A JSON object of plain values, below 2 MB for any number of runs."""
    return {"format": FORMAT, "version": VERSION, "laws": laws_to_document(laws)}


def laws_from_json(document: object) -> Laws:
    """The laws of such a document. Raises BadLaws for anything else, unknown fields included."""
    if not isinstance(document, dict) or set(document) != {"format", "version", "laws"}:
        raise BadLaws("not an object with exactly format, version and laws")
    if document["format"] != FORMAT or document["version"] != VERSION:
        raise BadLaws(
            f"not {FORMAT} version {VERSION} but {document['format']!r} {document['version']!r}"
        )
    return laws_from_document(document["laws"])
