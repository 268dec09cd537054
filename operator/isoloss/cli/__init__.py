"""The command line: the same functions as the operator calls, for people and pipelines.

With `--json` exactly one JSON object goes to standard output and nothing else. Exit codes: 0 answered,
2 bad input, 3 refused (the input is fine, the data do not support an answer).
"""
