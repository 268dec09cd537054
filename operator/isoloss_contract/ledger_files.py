"""How a ledger is laid out in the store: one object of gzip-compressed JSON lines.

The first line is the head, then each point has a line: the planned ones in planned order, then the former ones. A
change writes the whole object by a conditional write, so that whoever reads sees the ledger before or after, and of
two writers one is told. Ten thousand points are 2 MB and half a second. A point has a line of its own so that no
call of the parser holds up the process for longer than that line.
"""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from isoloss_contract import layout
from isoloss_contract.ledger import POINT, Ledger, LedgerHeader, PointRecord
from isoloss_contract.store import BadRecord, Store, limits, parse_record, parse_record_lines

SCHEMAS: Final = {
    5: "77b4b99474e5a18f3e27fddd8fec78b2",
    6: "1f56c3cc357c66c3a2b74ef2c8626ef3",
    7: "8521e8facba0c03696bc99afbf4ebe04",
    8: "8ed28d0cdb66fac9ae2e3e087fc48b24",
}
"""Hash of the schema by version of the format. Every change of it, a new optional field too, is a new version: an older
operator leaves a ledger of a newer one alone, as it would lose what it does not know."""
OLDEST: Final = min(SCHEMAS)
"""The oldest version that is read."""
VERSION: Final = max(SCHEMAS)
"""The version that is written."""
WITH_DIGEST: Final = 8
"""The first version whose head has a digest."""
MAX_TEXT_BYTES: Final = 64 * 2**20
"""Size of a ledger before compression: of 45,000 points that failed twice each, or of 150,000 without a failure."""
MAX_LINES: Final = 200_000
"""An empty line takes no space once it is compressed, and memory once it is split off."""
LEVEL: Final = 6
"""Of compression: 1 takes half the time and a fifth more bytes."""


class LedgerHead(LedgerHeader):
    """The first line: all of a ledger but its points' records."""

    ledger_version: int = Field(ge=OLDEST, le=VERSION)
    epoch: int = Field(default=0, ge=0)
    """Epoch of the leader that wrote it: a process that finds a higher one than its own no longer leads."""
    planned_points: int = Field(ge=0)
    """Lines of Ledger.points; those that follow are of Ledger.former."""
    digest: str = Field(default="", max_length=64)
    """Ledger.digest: a number edited by hand would be believed, and looks like any other."""


@dataclass(frozen=True)
class FoundLedger:
    """A ledger and what a reader must know to write over it."""

    ledger: Ledger
    epoch: int
    """LedgerHead.epoch."""
    version: str
    """Version of the object, for the next conditional write."""


def read_ledger(store: Store, folder: str) -> Ledger:
    """The ledger of the sweep in `folder` of the store.

    Raises NotFound if there is none, BadRecord, NewerRecord or StoreUnavailable.
    """
    path = layout.ledger_in(folder)
    content = store.read(path, max_bytes=limits.LEDGER.max_bytes)
    return decoded(content, store.location(path))[0]


def encoded(ledger: Ledger, epoch: int) -> bytes:
    """The object that holds a ledger. Equal ledgers of one epoch give equal bytes."""
    fields = {name: getattr(ledger, name) for name in LedgerHeader.model_fields}
    head = LedgerHead(
        ledger_version=VERSION,
        epoch=epoch,
        planned_points=len(ledger.points),
        digest=ledger.digest,
        **fields,
    )
    lines = [head.model_dump_json(exclude_defaults=True).encode()]
    lines += [
        POINT.dump_json(record, exclude_defaults=True)
        for record in (*ledger.points, *ledger.former)
    ]
    return gzip.compress(b"\n".join(lines) + b"\n", compresslevel=LEVEL, mtime=0)


def decoded(
    content: bytes, source: str, check: Callable[[LedgerHead], None] = lambda _: None
) -> tuple[Ledger, LedgerHead]:
    """The ledger in an object, and its head, which `check` may refuse before the points are parsed.

    Raises what `check` raises; NewerRecord for a newer version, BadRecord for anything else that cannot be used.
    """
    text = _unpacked(content, source, MAX_TEXT_BYTES, whole=True)
    first, _, rest = text.partition(b"\n")
    head = _parsed_head(first, source)
    check(head)
    if rest.count(b"\n") > MAX_LINES:
        raise BadRecord(f"{source}: more than {MAX_LINES} points")
    records = parse_record_lines(rest, PointRecord, source)
    if len(records) < head.planned_points:
        raise BadRecord(f"{source}: {len(records)} of {head.planned_points} planned points")
    fields = {name: getattr(head, name) for name in LedgerHeader.model_fields}
    points, former = records[: head.planned_points], records[head.planned_points :]
    ledger = Ledger(points=tuple(points), former=tuple(former), **fields)
    if head.ledger_version >= WITH_DIGEST and head.digest != ledger.digest:
        raise BadRecord(f"{source}: it was edited: it no longer has the digest in its first line")
    return ledger, head


def decoded_head(content: bytes, source: str) -> LedgerHead:
    """The head alone. Raises as `decoded`."""
    text = _unpacked(content, source, limits.LEDGER_HEAD.max_bytes, whole=False)
    return _parsed_head(text.partition(b"\n")[0], source)


def _parsed_head(line: bytes, source: str) -> LedgerHead:
    newest = ("ledger_version", VERSION)
    return parse_record(line, LedgerHead, source, limit=limits.LEDGER_HEAD, newest=newest)


def _unpacked(content: bytes, source: str, max_bytes: int, *, whole: bool) -> bytes:
    """The text, `max_bytes` of it at the most; if `whole`, more of it is refused."""
    limits.LEDGER.check_size(content, source)
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)
    try:
        text = unpacking.decompress(content, max_bytes)
        if whole and not unpacking.eof:
            raise BadRecord(f"{source}: ends early, or is larger than {max_bytes} bytes")
    except zlib.error as error:
        raise BadRecord(f"{source}: not a gzip file: {error}") from error
    return text
