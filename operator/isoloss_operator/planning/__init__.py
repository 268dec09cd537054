"""Which points a sweep trains: models, parameter counts, FLOPs, proxies derived from a checkpoint."""
