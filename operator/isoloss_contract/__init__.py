"""What operator, trainer and command line agree on: records, store layout, object storage, ledger format."""
