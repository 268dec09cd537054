"""The ledger's points: how what is observed changes what is known of them."""
