"""What operator, trainer and command line agree on: records, store layout, the store, the ledger's format."""
