"""Where the first points of a size go that nobody gave a grid: a lattice about the optimum of a published law.

Pure, and the same for the same numbers: points are named by their learning rate and batch size.
"""

from dataclasses import dataclass
from typing import Final

from isoloss.numbers import to_significant_digits
from isoloss.published import PREFIX, published_law
from isoloss.validation import Place

LAW: Final = "step-law"
"""The only published law that counts size and tokens separately; docs/evidence/search.md has the measured coverage of
all."""
SOURCE: Final = PREFIX + LAW
DIGITS: Final = 2
LEAST_FACTOR: Final = 1.5
"""Nearer lines would meet once they are rounded."""


@dataclass(frozen=True)
class Lattice:
    """Learning rates and batch sizes (sequences), ascending; its points are all pairs."""

    learning_rates: tuple[float, ...]
    batch_sizes: tuple[int, ...]


def placed_by_law(params: float, tokens: float, sequence_length: int) -> Place:
    """The published law's optimum, rounded to two digits, at `tokens` for sequences of `sequence_length` tokens.

    `params` are all parameters of the layers, without embeddings and output head; of a mixture of experts every
    expert's. Raises NotApplicable if the law gives values that no run could use.
    """
    optimum = published_law(LAW).evaluate(total_flops=6.0 * params * tokens, params=params)
    return rounded_place(optimum.learning_rate, optimum.batch_size(sequence_length))


def rounded_place(learning_rate: float, batch_size: float) -> Place:
    """Two digits of each: more would give almost equal optima different points. At least one sequence."""
    return Place(
        to_significant_digits(learning_rate, DIGITS),
        max(round(to_significant_digits(batch_size, DIGITS)), 1),
    )


def lattice(centre: Place, lines: int, rate_factor: float, batch_factor: float) -> Lattice:
    """`lines` learning rates and as many batch sizes about a place, these factors apart, rounded to two digits.

    Batch sizes are at least one sequence and differ: about a small one the lattice begins at the least that does.
    Raises ValueError for a factor below LEAST_FACTOR or fewer than two lines.
    """
    if lines < 2 or min(rate_factor, batch_factor) < LEAST_FACTOR:
        raise ValueError(
            f"a lattice has two lines or more, at least a factor of {LEAST_FACTOR:g} apart, not {lines} lines, "
            f"{rate_factor:g} and {batch_factor:g} apart"
        )
    half = (lines - 1) / 2
    slowest = centre.learning_rate / rate_factor**half
    smallest = max(centre.batch_size / batch_factor**half, 1.0, 1.0 / (batch_factor - 1.0))
    batch_sizes: list[int] = []
    for k in range(lines):
        batch_size = round(to_significant_digits(smallest * batch_factor**k, DIGITS))
        # 1.5 and 2.5, a sequence apart, are both rounded to 2.
        batch_sizes.append(max(batch_size, batch_sizes[-1] + 1) if batch_sizes else batch_size)
    return Lattice(
        tuple(to_significant_digits(slowest * rate_factor**k, DIGITS) for k in range(lines)),
        tuple(batch_sizes),
    )
