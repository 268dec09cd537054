"""isoloss, the core: resources, decisions, laws and predictions. Knows no cluster and no GPU."""
