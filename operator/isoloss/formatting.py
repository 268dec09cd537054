"""Numbers as text: the one formatter of status fields, command line and report.

Plain ASCII, so that every number can be pasted into a manifest, a script or a spreadsheet. Absent
values (None, NaN) become the empty string, which a status field needs; tables print `ABSENT` for it.
"""

import math
from collections.abc import Callable
from functools import wraps
from textwrap import wrap
from typing import Concatenate, ParamSpec, Protocol

ABSENT = "–"
"""What a table shows when there is no value."""


class HasBounds(Protocol):
    """A value with its interval."""

    @property
    def value(self) -> float:
        """What is found."""

    @property
    def low(self) -> float:
        """Its lower bound."""

    @property
    def high(self) -> float:
        """Its upper bound."""


# ------------------------------------------------------------------------------------- numbers


Digits = ParamSpec("Digits")


def _of_a_number(
    write: Callable[Concatenate[float, Digits], str],
) -> Callable[Concatenate[float | None, Digits], str]:
    """The format `write` where a value has digits: none if it is absent, infinite or 0."""

    @wraps(write)
    def text(value: float | None, /, *args: Digits.args, **kwargs: Digits.kwargs) -> str:
        if value is None or math.isnan(value):
            return ""
        if math.isinf(value):
            return "unbounded"
        return "0" if value == 0 else write(value, *args, **kwargs)

    return text


@_of_a_number
def number(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits: 0.0123, 768, 2.34e-4, 2.1e21."""
    if not 1e-3 <= abs(value) < 1e6:
        return exponential(value, digits)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return _without_trailing_zeros(f"{value:.{places}f}")


def precise(value: float | None, /) -> str:
    """Six significant digits, for numbers that others are computed from."""
    return number(value, 6)


@_of_a_number
def exponential(value: float, digits: int = 3) -> str:
    """A number that always has an exponent: 2e-4, 2.1e21."""
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{_without_trailing_zeros(mantissa)}e{int(exponent)}"


def learning_rate(value: float | None, /) -> str:
    """A learning rate, always with an exponent: 2e-4. Empty unless positive."""
    return "" if value is not None and value <= 0 else exponential(value)


def flops(value: float | None, /) -> str:
    """Compute in FLOPs, always with an exponent: 2.1e21."""
    return exponential(value)


@_of_a_number
def loss(value: float) -> str:
    """A loss in nats per token with four decimals: evaluations differ in the third or fourth."""
    return f"{value:.4f}"


@_of_a_number
def batch_size(value: float) -> str:
    """Sequences or tokens per step: whole and in full; below 10, one decimal if there is one."""
    if abs(value) >= 1e15:
        return exponential(value)
    return _without_trailing_zeros(f"{value:.1f}") if abs(value) < 9.95 else f"{value:.0f}"


@_of_a_number
def count(value: float) -> str:
    """Parameters or tokens, for people: 537M, 20B. Status fields use `number`, which parses."""
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{float(f'{value / size:.3g}'):g}{suffix}"
    return f"{value:.0f}"


@_of_a_number
def percent(share: float) -> str:
    """A share (0.92) with one decimal: 92.0%."""
    return f"{share:.1%}"


def interval(value: HasBounds | None, write: Callable[[float | None], str] = number) -> str:
    """'value [low, high]', each number in the format `write`."""
    if value is None:
        return ""
    return f"{write(value.value)} [{write(value.low)}, {write(value.high)}]"


def given(text: str) -> str:
    """A value that the question states, where others are predicted and have an interval."""
    return f"{text} (given)"


def _without_trailing_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


# --------------------------------------------------------------------------------------- words


def counted(count: int, noun: str) -> str:
    """A number of things whose plural ends in s: 1 Job, 3 Jobs."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def are(count: int) -> str:
    """The verb that goes with a number of things: 1 is, 3 are."""
    return "is" if count == 1 else "are"


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` characters, at least one; a longer word, such as a path, stays whole."""
    return wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def shortened(text: str, limit: int) -> str:
    """`text` in one printable line, cut with an ellipsis if it is longer than `limit` bytes of UTF-8."""
    line = text[: limit + 1]  # a character takes a byte at least: the rest cannot matter
    if not line.isprintable():
        line = "".join(c if c.isprintable() else " " for c in line)
    content = line.encode(errors="replace")
    if len(content) <= limit:
        return content.decode()
    return content[: limit - 3].decode(errors="ignore") + "…"
