"""Rows against arithmetic: signs, whole numbers, and quantities that must be in another unit.

What arithmetic can distinguish is refused: a batch size in tokens, tokens in billions, an overflowed
integer, a perplexity as a loss. Bits for nats are only suspected, and only if bytes are given, and so are learning
rates in percent.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isoloss.laws import Run
from isoloss.tables.cells import Numbers
from isoloss.usual import (
    FEWEST_STEPS,
    FLOPS_PER_PARAM_AND_TOKEN,
    LARGEST_LOSS,
    LARGEST_USUAL_RATE,
    USUAL_NATS_PER_BYTE,
)

POSITIVE = ("params", "batch_size", "sequence_length", "learning_rate", "tokens", "bytes")
EXPECTED = {
    "batch_size": ": sequences per optimizer step are expected, as in --column batch_size=NUMBER",
    "loss": ": nats per token are expected",
    "learning_rate": ": the learning rate itself is expected, not its logarithm, and of a schedule its peak",
}
LARGEST_BATCH_TOKENS = 2.0**28
"""268M tokens: several times the largest step of any published training run."""
BYTES_PER_TOKEN = (0.25, 64.0)
LARGE_RATES = ("sgd", "muon")
"""What the names of optimizers contain that are used at larger learning rates."""


def _refuse(numbers: Numbers, column: str, wrong: Any, message: Callable[[int], str]) -> None:
    """Raise for the first row where `wrong` holds."""
    where = np.flatnonzero(wrong)
    if where.size:
        raise numbers.table.bad(int(where[0]), column, message(int(where[0])))


def _refuse_value(numbers: Numbers, column: str, wrong: Any, what: str) -> None:
    """Raise for the first row where `wrong` holds: its value, and what is wrong with it."""
    values = numbers.values[column]
    _refuse(numbers, column, wrong, lambda i: f"{values[i]:g}{what}")


def check_units(numbers: Numbers) -> None:
    """Each row by itself: signs, whole numbers, units. Raises BadTable; suspicions become warnings."""
    _check_signs(numbers)
    _check_magnitudes(numbers)
    with np.errstate(over="ignore"):  # an infinite step is as any other that is too large
        _check_batch(numbers)
    _check_derived(numbers)
    _suspect_bits(numbers)


def _check_signs(numbers: Numbers) -> None:
    for column in (*POSITIVE, "loss"):
        if column in numbers.values:
            expected = EXPECTED.get(column, "")
            wrong = numbers.values[column] <= 0
            _refuse_value(numbers, column, wrong, f" is not positive{expected}")
    for column in ("batch_size", "sequence_length"):
        fraction = numbers.values[column] != np.floor(numbers.values[column])
        _refuse_value(numbers, column, fraction, " is not a whole number")


def _check_magnitudes(numbers: Numbers) -> None:
    v = numbers.values
    overflow = "6 * params * tokens would overflow"
    for column, wrong, what in (
        ("params", v["params"] < 1000, " parameters: a count is expected, not millions"),
        ("params", v["params"] > 1e15, f" parameters: {overflow}"),
        ("tokens", v["tokens"] > 1e18, f" tokens: {overflow}"),
        (
            "learning_rate",
            v["learning_rate"] >= 1,
            ": the learning rate itself is expected, not a multiple of 1e-4",
        ),
        (
            "loss",
            (v["loss"] > LARGEST_LOSS) & ~numbers.diverged,
            " is above any loss in nats per token: a perplexity, or a run that diverged",
        ),
    ):
        _refuse_value(numbers, column, wrong, what)


def _check_batch(numbers: Numbers) -> None:
    """Steps against tokens: which of the two columns is in another unit."""
    values = numbers.values
    batch, length, tokens = values["batch_size"], values["sequence_length"], values["tokens"]
    step = batch * length
    multiple = (batch % length == 0) & (length > 1)
    # A batch size in tokens is a multiple of the sequence length, and makes sense once divided by it.
    in_tokens = multiple & (tokens >= FEWEST_STEPS * batch)
    few_steps = ~numbers.diverged & multiple & (tokens >= step) & (tokens < FEWEST_STEPS * step)
    last = np.zeros(len(numbers.names), dtype=bool)
    by_run = {numbers.names[index]: index for index in np.argsort(tokens, kind="stable")}
    last[list(by_run.values())] = True

    def batch_message(i: int) -> str:
        hint = f"; if it is in tokens, write {batch[i] / length[i]:g}" if multiple[i] else ""
        return (
            f"{batch[i]:g} sequences of {length[i]:g} tokens make steps of {step[i]:g} tokens, but the "
            f"row is at {tokens[i]:g} tokens: batch_size looks like tokens, sequences are expected{hint}"
        )

    def tokens_message(i: int) -> str:
        return (
            f"{tokens[i]:g} tokens are less than one step of {step[i]:g} tokens (batch_size * "
            f"sequence_length); read as steps they are {tokens[i] * step[i]:g} tokens, as thousands {tokens[i] * 1e3:g}, as "
            f"millions {tokens[i] * 1e6:g}, as billions {tokens[i] * 1e9:g}"
            f"{'; or batch_size is in tokens: sequences are expected' * bool(batch[i] > length[i] > 1)}"
        )

    _refuse(
        numbers, "batch_size", last & (few_steps | ((tokens < step) & in_tokens)), batch_message
    )
    _refuse(numbers, "tokens", tokens < step, tokens_message)
    _refuse(numbers, "batch_size", step > LARGEST_BATCH_TOKENS, batch_message)


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
                f"{values['flops'][i]:g} is {ratio[i]:.3g} per parameter and token, but about 6 is usual: "
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
            lambda i: f"{per_token[i]:.3g} bytes per token: count both from the start of the run",
        )


def _suspect_bits(numbers: Numbers) -> None:
    """A warning if even the best loss is more than text usually costs; no error: text differs."""
    values = numbers.values
    if "bytes" not in values:
        return
    per_byte = values["loss"] * values["tokens"] / values["bytes"]
    seen = per_byte[np.isfinite(per_byte)]
    if seen.size and seen.min() > USUAL_NATS_PER_BYTE:
        numbers.warnings.append(
            f"{numbers.table.source}: the lowest loss is {seen.min():.2f} per byte of text, but 0.5 to "
            "0.9 nats are usual: check that it is in nats per token, not in bits (1 bit = 0.6931 nats)"
        )


def large_rates_warning(runs: Sequence[Run], source: str) -> str | None:
    """A warning if most learning rates are larger than usual; no error: SGD takes such."""
    rates = [
        run.learning_rate
        for run in runs
        if not any(name in (run.optimizer or "").lower() for name in LARGE_RATES)
    ]
    if 2 * sum(rate > LARGEST_USUAL_RATE for rate in rates) <= len(rates):
        return None
    return (
        f"{source}: most learning rates are above {LARGEST_USUAL_RATE:g}, up to {max(rates):g}: AdamW is used at 1e-5 to "
        "1e-2. If they are in percent, divide them by 100; if they are SGD's or Muon's, name it in the column optimizer"
    )
