"""Ledgers as a store gives them back."""

from __future__ import annotations

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.ledger_files import assemble, next_write, parse_head
from isoloss_contract.store import Store


def read_back(ledger: Ledger) -> Ledger:
    """The ledger after a way through its files."""
    write = next_write(None, ledger, epoch=1)
    head = parse_head(write.stored.document, "head.json")
    return assemble(head, lambda name, _: write.segments[name]).ledger


def write_ledger(store: Store, ledger: Ledger) -> None:
    """Put a ledger where the operator keeps it."""
    folder = layout.sweep_folder(ledger.sweep, ledger.uid)
    write = next_write(None, ledger, epoch=1)
    for name, content in write.segments.items():
        store.write(layout.ledger_segment_in(folder, name), content)
    store.write(layout.ledger_in(folder), write.stored.document)
