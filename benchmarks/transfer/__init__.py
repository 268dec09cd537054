"""Does a continued run want what the laws say? Measured on real checkpoints, however small.

Reading order: `design` (what is trained), `texts`, `runs` and `training` (the real trainer), `grids`,
`judging` (measured optima), `rules` (what the laws answer), `scores` and `table`; `__main__` runs it.
"""
