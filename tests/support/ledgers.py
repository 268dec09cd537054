"""Ledgers as a store gives them back."""

import gzip
import json
from typing import Any

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.ledger_files import decoded, encoded
from isoloss_contract.store import Store


def read_back(ledger: Ledger) -> Ledger:
    """The ledger after a way through its file."""
    return decoded(encoded(ledger, epoch=1), "ledger.jsonl.gz")[0]


def write_ledger(store: Store, ledger: Ledger) -> None:
    """Put a ledger where the operator keeps it."""
    folder = layout.sweep_folder(ledger.sweep, ledger.uid)
    store.write(layout.ledger_in(folder), encoded(ledger, epoch=1))


def with_head(content: bytes, **fields: Any) -> bytes:
    """The file of a ledger with these fields in its head; those of None are left out."""
    head, _, points = gzip.decompress(content).partition(b"\n")
    changed = {
        name: value for name, value in (json.loads(head) | fields).items() if value is not None
    }
    return gzip.compress(json.dumps(changed).encode() + b"\n" + points)


def head_of(content: bytes) -> dict[str, Any]:
    """The head in the file of a ledger."""
    return dict(json.loads(gzip.decompress(content).partition(b"\n")[0]))
