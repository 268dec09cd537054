"""Does a continued run want what the laws say? Measured on real checkpoints, many runs at once.

Reading order: `design` (what is trained, and what is missing), `texts`, `stack` (runs at once), `training`, `grids` (measured
optima), `reading` (what the rules say and lose), `costs`; `__main__` runs it.
"""
