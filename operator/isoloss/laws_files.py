"""Laws as files: written by `isoloss fit` and by the operator, read by predictions and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isoloss.errors import BadInput
from isoloss.laws import BadLaws, Laws, laws_from_json, laws_to_json

MAX_LAWS_BYTES = 64 * 2**20


def write_laws(laws: Laws, path: Path | str) -> None:
    """Write laws as JSON. Raises BadInput if the file cannot be written."""
    write_file(Path(path), json.dumps(laws_to_json(laws), allow_nan=False))


def read_laws(source: str | Path) -> Laws:
    """Laws from a file, or from a sweep in the store by its URI. Raises BadInput naming the source."""
    source, text = _stored(str(source)) if "://" in str(source) else _local(str(source))
    try:
        return _laws_of(json.loads(text), source)
    except BadLaws as error:
        raise BadInput(f"{source}: {error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{source}: not JSON: {error}") from error


def _laws_of(document: Any, source: str) -> Laws:
    if isinstance(document, dict) and "inputs" in document and "laws" in document:
        # The operator's laws.json wraps the laws in what they were fitted to.
        if document["laws"] is None:
            raise BadInput(
                f"{source}: no laws yet: {document.get('error') or 'nothing was fitted'}"
            )
        return laws_from_json(document["laws"])
    return laws_from_json(document)


def _stored(source: str) -> tuple[str, str]:
    """Where a sweep's laws are, and their text."""
    # Not above: a prediction from a local file needs none of the store's records.
    from isoloss.stored_sweeps import laws_document, open_sweep

    sweep = open_sweep(source)
    return sweep.laws_uri, laws_document(sweep)


def _local(source: str) -> tuple[str, str]:
    """The path of a file, and its text. Raises BadInput."""
    path = Path(source)
    try:
        if path.stat().st_size > MAX_LAWS_BYTES:
            raise BadInput(f"{source}: larger than {MAX_LAWS_BYTES} bytes")
        return source, path.read_text("utf-8")
    except OSError as error:
        raise BadInput(f"{source}: {error.strerror or 'cannot be read'}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{source}: not UTF-8 text") from error


def write_file(path: Path, content: str | bytes) -> None:
    """Write a result, making its folder. Raises BadInput if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'cannot be written'}") from error
