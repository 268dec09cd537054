"""What a fit leaves in the store: laws.json for everyone, and fit.json about it, written last.

After a restart the outcome is found again here, and predictions read the laws from here.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Final, Literal

from pydantic import Field

from isoloss.laws import LAWS_VERSION, Laws, LawsDocument, laws_to_json
from isoloss_contract import layout
from isoloss_contract.records import Record
from isoloss_contract.store import BadRecord, NotFound, limits, parse_record
from isoloss_operator.decide.fits import FitOutcome, SearchStep

FIT_VERSION: Final[Literal[2]] = 2
"""Version of fit.json. A newer one is left alone, like newer laws; of version 1 one without a step is read."""
FIT_SCHEMA: Final = "99e0937686d27200521e720c3143efdf"
"""Hash of the schema of this version."""
NEWEST_FIT: Final = ("version", FIT_VERSION)
"""For parse_record."""
SHOWN_BYTES: Final = 80
Read = Callable[[str, int], bytes]
"""The bytes at a path of the store, at most so many. Raises NotFound."""


class FitRecord(Record):
    """fit.json."""

    version: Literal[1, 2] = FIT_VERSION
    inputs: str = Field(max_length=64)
    """Request.inputs that it answers."""
    ledger_sha256: str = Field(max_length=64)
    points: int = Field(ge=0)
    laws_sha256: str = Field(max_length=64)
    """Digest of laws.json; empty if there are none."""
    report_written: bool
    error: str = Field(max_length=2048)
    step: SearchStep | None = None
    """Step of a search: the decisions that followed."""


_OF_OUTCOME = FitRecord.model_fields.keys() - {"version"}
"""Its fields that are a FitOutcome's, by the same names."""


class LawsFile(Record, LawsDocument):
    """laws.json."""


def fit_path(laws_path: str) -> str:
    """Path of fit.json: next to laws.json."""
    return layout.fit_in(laws_path.rpartition("/")[0])


def laws_document(laws: Laws) -> bytes:
    """The bytes of laws.json."""
    return json.dumps(laws_to_json(laws), allow_nan=False, separators=(",", ":")).encode()


def fit_document(outcome: FitOutcome) -> bytes:
    """The bytes of fit.json."""
    record = FitRecord(**{name: getattr(outcome, name) for name in _OF_OUTCOME})
    return record.model_dump_json(indent=1).encode()


def read_outcome(read: Read, laws_path: str) -> FitOutcome:
    """The outcome of the newest fit.

    Raises NotFound if there was none, BadRecord if either file cannot be used, or laws.json is of another fit; NewerRecord if a newer version
    wrote it.
    """
    path = fit_path(laws_path)
    content = read(path, limits.FIT.max_bytes)
    record = parse_record(content, FitRecord, path, limit=limits.FIT, newest=NEWEST_FIT)
    laws = _read_laws(read, laws_path, record.laws_sha256) if record.laws_sha256 else None
    return FitOutcome(laws=laws, **{name: getattr(record, name) for name in _OF_OUTCOME})


def _read_laws(read: Read, path: str, sha256: str) -> Laws:
    try:
        content = read(path, limits.LAWS.max_bytes)
    except NotFound as error:
        raise BadRecord(f"{path}: missing") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BadRecord(f"{path}: is not what fit.json names (SHA-256 differs)")
    newest = ("version", LAWS_VERSION)
    return parse_record(content, LawsFile, path, limit=limits.LAWS, newest=newest).laws


def shown_first(inputs: str, page: str) -> bytes:
    """A page that begins with Request.inputs, so that the next process need not draw it again."""
    return f"<!-- {inputs:<{SHOWN_BYTES - 10}} -->\n{page}".encode()


def shown_in(first: bytes) -> str:
    """The inputs of a page by its first SHOWN_BYTES; empty if it has none."""
    found = re.match(rb"<!-- ([0-9a-f]{1,64}) *-->", first)
    return found[1].decode() if found else ""
