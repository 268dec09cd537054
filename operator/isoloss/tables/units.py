"""Rows against arithmetic: signs, whole numbers, and quantities that must be in another unit.

What can be told apart by arithmetic is refused: a batch size in tokens, a wrapped integer, a perplexity
for a loss. What can not (bits for nats throughout) is the reader's to state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isoloss.tables.cells import Numbers

LARGEST_BATCH_TOKENS = 2.0**28
"""No step of a training run we know of comes near 268M tokens."""
FEWEST_STEPS = 30
FLOPS_PER_PARAM_AND_TOKEN = (1.0, 1000.0)
"""6 for a plain transformer; attention at great length and large heads raise it, nothing lowers it below 2."""
BYTES_PER_TOKEN = (0.25, 64.0)
LARGEST_LOSS = 16.0
"""ln(8.9 million): above what a uniform guess over any vocabulary costs, in nats per token."""


def _refuse(numbers: Numbers, column: str, wrong: Any, message: Callable[[int], str]) -> None:
    """Raise for the first row where `wrong` holds."""
    where = np.flatnonzero(wrong)
    if where.size:
        raise numbers.table.bad(int(where[0]), column, message(int(where[0])))


def check_units(numbers: Numbers) -> None:
    """Each row by itself: signs, whole numbers, and quantities that arithmetic shows in a wrong unit."""
    _check_signs(numbers)
    _check_magnitudes(numbers)
    with np.errstate(
        over="ignore"
    ):  # an infinite step is refused like any other that is too large
        _check_batch(numbers)
    _check_derived(numbers)


def _check_signs(numbers: Numbers) -> None:
    for column in ("params", "batch_size", "sequence_length", "learning_rate", "tokens", "bytes"):
        if column in numbers.values:
            _check_positive(numbers, column)
    _check_positive(numbers, "loss", hint=": nats per token are wanted")
    for column in ("batch_size", "sequence_length"):
        _check_whole(numbers, column)


def _check_positive(numbers: Numbers, column: str, hint: str = "") -> None:
    values = numbers.values[column]
    _refuse(numbers, column, values <= 0, lambda i: f"{values[i]:g} is not positive{hint}")


def _check_whole(numbers: Numbers, column: str) -> None:
    values = numbers.values[column]
    fraction = values != np.floor(values)
    _refuse(numbers, column, fraction, lambda i: f"{values[i]:g} is not a whole number")


def _check_magnitudes(numbers: Numbers) -> None:
    values, diverged = numbers.values, numbers.diverged
    _refuse(
        numbers,
        "params",
        values["params"] < 1000,
        lambda i: f"{values['params'][i]:g} parameters: a count is wanted, not millions",
    )
    _refuse(
        numbers,
        "params",
        values["params"] > 1e15,
        lambda i: f"{values['params'][i]:g} parameters: 6 * params * tokens would overflow",
    )
    _refuse(
        numbers,
        "tokens",
        values["tokens"] > 1e18,
        lambda i: f"{values['tokens'][i]:g} tokens: 6 * params * tokens would overflow",
    )
    _refuse(
        numbers,
        "learning_rate",
        values["learning_rate"] >= 1,
        lambda i: (
            f"{values['learning_rate'][i]:g}: the rate itself is wanted, not a multiple of 1e-4"
        ),
    )
    _refuse(
        numbers,
        "loss",
        (values["loss"] > LARGEST_LOSS) & ~diverged,
        lambda i: (
            f"{values['loss'][i]:g} is above any loss in nats per token: a perplexity, or a diverged run"
        ),
    )


def _check_batch(numbers: Numbers) -> None:
    values = numbers.values
    batch, length, tokens = values["batch_size"], values["sequence_length"], values["tokens"]
    step = batch * length
    multiple = batch % length == 0

    def message(i: int) -> str:
        hint = (
            f"; {batch[i]:g} looks like tokens, which are {batch[i] / length[i]:g} sequences"
            if multiple[i]
            else ""
        )
        return (
            f"batch_size is in sequences: {batch[i]:g} sequences of {length[i]:g} tokens make steps of "
            f"{step[i]:g} tokens, but the row is at {tokens[i]:g} tokens{hint}"
        )

    short = ~numbers.diverged & multiple & (length > 1) & (tokens < FEWEST_STEPS * step)
    too_few = (tokens < step) | short
    last = np.zeros(len(numbers.names), dtype=bool)
    last[list(_last_rows(numbers).values())] = True
    _refuse(numbers, "batch_size", too_few & last, message)
    _refuse(numbers, "tokens", tokens < step, lambda i: "less than one step; " + message(i))
    _refuse(numbers, "batch_size", step > LARGEST_BATCH_TOKENS, message)


def _last_rows(numbers: Numbers) -> dict[str, int]:
    """The row with the most tokens of each run."""
    tokens = numbers.values["tokens"]
    last: dict[str, int] = {}
    for index, name in enumerate(numbers.names):
        if name not in last or tokens[index] > tokens[last[name]]:
            last[name] = index
    return last


def _check_derived(numbers: Numbers) -> None:
    values = numbers.values
    if "flops" in values:
        low, high = FLOPS_PER_PARAM_AND_TOKEN
        ratio = values["flops"] / (values["params"] * values["tokens"])
        _refuse(
            numbers,
            "flops",
            (ratio < low) | (ratio > high),
            lambda i: (
                f"{values['flops'][i]:g} is {ratio[i]:.3g} per parameter and token, where about 6 is usual: "
                "another unit, or 6 * params * tokens overflowed a 64-bit integer"
            ),
        )
    if "bytes" in values:
        low, high = BYTES_PER_TOKEN
        per_token = values["bytes"] / values["tokens"]
        _refuse(
            numbers,
            "bytes",
            (per_token < low) | (per_token > high),
            lambda i: f"{per_token[i]:.3g} bytes per token: both are counted from the run's start",
        )
    if "loss_standard_error" in values:
        error, loss = values["loss_standard_error"], values["loss"]
        _refuse(
            numbers,
            "loss_standard_error",
            (error < 0) | (error >= loss),
            lambda i: f"{error[i]:g} must be at least 0 and below the loss, {loss[i]:g}",
        )
