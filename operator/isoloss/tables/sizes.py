"""Sizes against one another: a whole size in another unit fits smoothly, and no run of it looks wrong by itself.

Two things are known of language models of neighbouring sizes that are trained on the same text: at equal tokens the
larger one does not lose more, nor less by far, and nobody trains one of them for a thousand times the tokens. And a size
that is a hundred times another's loses far less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from isoloss.laws import Array, Run

FARTHEST_TOKENS = 100.0
"""Times the tokens of a neighbouring size from which on they are suspected."""
HUNDREDS = 300.0
"""Times from which on that is a wrong unit if all these tokens brought nothing."""
MOST_WORSE = 0.14
"""ln L by which a larger size may lose more at equal tokens, where its grid is a poor one: 15 %. Published sweeps: 0.01."""
MOST_BETTER = 0.1
"""ln L by which a larger size may lose less at equal tokens, however near in size, and"""
MOST_BETTER_PER_SIZE = 0.17
"""for each factor e of parameters besides. Published sweeps: at most 0.1."""
STEEPEST = 0.15
"""-dlnL/dlnD at most, between sizes that were never evaluated at equal tokens."""
NEIGHBOURS = float(np.log(10.0))
"""ln N between sizes, at most, for a refusal in place of a warning."""
BIT = -float(np.log(np.log(2.0)))
"""ln of the bits in a nat."""
BIT_TOLERANCE = 0.08
"""ln L by which a size may miss that factor: sizes that are a factor of ten apart are on no straight line."""

FARTHEST_SIZES = float(np.log(100.0))
"""ln N from a size to its neighbour from which on it is suspected, if"""
LEAST_BETTER_PER_SIZE = 0.03
"""it loses less by no more than this in ln L for each factor e of parameters. By Chinchilla's law: 0.05 to 0.07 for 10 M to
10 B parameters."""
USUAL_RATIO = float(np.log(20.0))
"""ln tokens per parameter: of two sizes, the one that is further off is the likelier to be in another unit."""
THOUSANDS = ("thousands", "millions", "billions")


@dataclass(frozen=True)
class Mismatch:
    """A size that does not go with its neighbours."""

    run: Run
    """The first of its runs."""
    column: str
    message: str
    is_certain: bool
    """Whether no sweep can look like that; otherwise it is for a warning."""


@dataclass(frozen=True)
class _Size:
    """All runs of one size as the lowest loss over tokens."""

    run: Run
    log_params: float
    log_tokens: Array
    log_losses: Array

    @property
    def first(self) -> float:
        """ln D of the first evaluation."""
        return float(self.log_tokens[0])

    @property
    def last(self) -> float:
        """ln D of the last evaluation."""
        return float(self.log_tokens[-1])

    def at(self, log_tokens: float) -> float:
        """ln L; that of the nearest evaluation outside its range."""
        return float(np.interp(log_tokens, self.log_tokens, self.log_losses))


def mismatches(runs: Sequence[Run]) -> list[Mismatch]:
    """Sizes whose tokens, or else whose parameters or losses, cannot be in the unit of the others."""
    sizes = _by_size(runs)
    tokens = [found for pair in pairwise(sizes) if (found := _far_tokens(*pair, sizes))]
    if tokens:  # losses at equal tokens mean nothing where tokens do not
        return tokens
    losses = _strange_losses(sizes)
    # What a size explains means nothing where sizes do not.
    return [each for each in losses if each.is_certain] or _strange_params(sizes) or losses


def _by_size(runs: Sequence[Run]) -> list[_Size]:
    """Ascending; sizes without a loss left out."""
    trained = [run for run in runs if len(run.tokens)]
    return [
        _size([run for run in trained if run.params == params])
        for params in sorted({run.params for run in trained})
    ]


def _size(runs: Sequence[Run]) -> _Size:
    tokens = np.log(np.concatenate([run.tokens for run in runs]))
    losses = np.log(np.concatenate([run.losses for run in runs]))
    order = np.lexsort((losses, tokens))
    lowest = np.minimum.accumulate(losses[order])
    return _Size(runs[0], float(np.log(runs[0].params)), tokens[order], lowest)


# ---------------------------------------------------------------------------------------- tokens


def _far_tokens(small: _Size, large: _Size, sizes: Sequence[_Size]) -> Mismatch | None:
    few, many = sorted((small, large), key=lambda size: size.last)
    tokens = (float(np.exp(few.last)), float(np.exp(many.last)))
    times = tokens[1] / tokens[0]
    if times < FARTHEST_TOKENS:
        return None
    in_vain = (
        times >= HUNDREDS
        and large.log_params - small.log_params <= NEIGHBOURS
        and _brought_nothing(few, many)
    )
    usual = float(np.median([size.last for size in sizes]))
    # The median lies in the middle of two sizes: more tokens than any other are what stands out.
    odd = many if many.last - usual >= usual - few.last else few
    message = (
        f"the size of {_params(many)} parameters was trained for {np.exp(many.last):.3g} tokens, {times:.3g} times the "
        f"{np.exp(few.last):.3g} of the size of {_params(few)}"
    )
    return Mismatch(
        odd.run,
        "tokens",
        f"{message}, and its losses are no lower for it: write the tokens of all sizes in one unit"
        if in_vain
        else f"{message}: check the column tokens. {_likely_unit(few, many, tokens, 'tokens')}",
        in_vain,
    )


def _likely_unit(low: _Size, high: _Size, values: tuple[float, float], words: str) -> str:
    """What a size's numbers likely are, if those of `low` are far below those of `high`, and one of the two is wrong."""
    power = round(float(np.log10(values[1] / values[0])) / 3)
    unit = THOUSANDS[min(max(power, 1), len(THOUSANDS)) - 1]
    factor = 10.0 ** (3 * (THOUSANDS.index(unit) + 1))
    if _unusual(low) >= _unusual(high):
        size, said, value, right = low, f"in {unit}", values[0], values[0] * factor
    else:
        said = f"a {unit[:-1]} times too large"
        size, value, right = high, values[1], values[1] / factor
    return f"If the {words} of the size of {_params(size)} are {said}, write {right:.3g} in place of {value:.3g}"


def _unusual(size: _Size) -> float:
    """How far from what is usual its tokens per parameter are, as a logarithm."""
    return abs(size.last - size.log_params - USUAL_RATIO)


def _brought_nothing(few: _Size, many: _Size) -> bool:
    """Whether the size with far more tokens has no lower loss for them."""
    if many.log_params < few.log_params:
        return many.at(many.last) > few.at(few.last)
    # The larger size loses less anyway: what counts is where it has only just had more tokens.
    return many.at(few.last) > few.at(few.last)


# ------------------------------------------------------------------------------------ parameters


def _strange_params(sizes: Sequence[_Size]) -> list[Mismatch]:
    """Neighbours that are further apart than any sweep's, with losses as of sizes that are not."""
    return [
        _far_params(small, large) for small, large in pairwise(sizes) if _is_too_near(small, large)
    ]


def _is_too_near(small: _Size, large: _Size) -> bool:
    meeting, apart = _meeting(small, large), large.log_params - small.log_params
    better = small.at(meeting) - large.at(meeting)
    return apart >= FARTHEST_SIZES and better < LEAST_BETTER_PER_SIZE * apart


def _far_params(small: _Size, large: _Size) -> Mismatch:
    times = float(np.exp(large.log_params - small.log_params))
    hint = _likely_unit(small, large, (small.run.params, large.run.params), "parameters")
    return Mismatch(
        small.run,
        "params",
        f"{_compared(small, large)}, which is close for sizes that are a factor of {times:.3g} apart: check the column params. "
        f"{hint}",
        is_certain=False,
    )


# ---------------------------------------------------------------------------------------- losses


def _strange_losses(sizes: Sequence[_Size]) -> list[Mismatch]:
    strange = [_cannot_be(small, large) for small, large in pairwise(sizes)]
    for index, size in enumerate(sizes):
        around = strange[max(index - 1, 0) : index + 1]
        if around and all(around) and _is_off_by_bits(sizes, index):
            return [_in_bits(size, sizes[index - 1] if index else sizes[1])]
    return [
        _suspicious(small, large)
        for (small, large), found in zip(pairwise(sizes), strange, strict=True)
        if found
    ]


def _meeting(small: _Size, large: _Size) -> float:
    """ln D of the last tokens that both were trained for."""
    return min(small.last, large.last)


def _cannot_be(small: _Size, large: _Size) -> bool:
    """Whether the larger size's lowest loss at equal tokens is higher, or lower, than sizes explain."""
    meeting = _meeting(small, large)
    difference = large.at(meeting) - small.at(meeting)
    better = MOST_BETTER + MOST_BETTER_PER_SIZE * (large.log_params - small.log_params)
    worse_by_tokens = STEEPEST * max(small.first - meeting, 0.0)
    better_by_tokens = STEEPEST * max(large.first - meeting, 0.0)
    return not -(better + better_by_tokens) <= difference <= MOST_WORSE + worse_by_tokens


def _is_off_by_bits(sizes: Sequence[_Size], index: int) -> bool:
    """Whether a size's loss is off the line through its two neighbours by as many bits as there are in a nat."""
    size = sizes[index]
    around = sorted(range(len(sizes)), key=lambda other: abs(other - index))[1:3]
    if len(around) < 2:
        return False
    one, other = (sizes[i] for i in around)
    meeting = min(size.last, one.last, other.last)
    far = max(abs(size.log_params - each.log_params) for each in (one, other))
    if meeting < max(size.first, one.first, other.first) or far > 2 * NEIGHBOURS:
        return False
    slope = (other.at(meeting) - one.at(meeting)) / (other.log_params - one.log_params)
    expected = one.at(meeting) + slope * (size.log_params - one.log_params)
    return abs(abs(size.at(meeting) - expected) - BIT) < BIT_TOLERANCE


def _in_bits(size: _Size, other: _Size) -> Mismatch:
    return Mismatch(
        size.run,
        "loss",
        f"{_compared(size, other)}: the losses of one size are in another unit (1 bit = 0.6931 nats); "
        "write all of them in nats per token",
        is_certain=True,
    )


def _suspicious(small: _Size, large: _Size) -> Mismatch:
    return Mismatch(
        large.run,
        "loss",
        f"{_compared(large, small)}, which sizes do not explain: check the column loss. {_likely_in_bits(small, large)} "
        "(1 bit = 0.6931 nats); all must be in nats per token, and on the same text",
        is_certain=False,
    )


def _likely_in_bits(small: _Size, large: _Size) -> str:
    """The size whose losses would go with the other's if they were in bits."""
    meeting = _meeting(small, large)
    too_high = large if large.at(meeting) > small.at(meeting) else small
    return f"Those of the size of {_params(too_high)} may be in bits"


def _compared(one: _Size, other: _Size) -> str:
    meeting = _meeting(one, other)
    losses = [float(np.exp(size.at(meeting))) for size in (one, other)]
    return (
        f"at {np.exp(meeting):.3g} tokens the lowest loss of the size of {_params(one)} parameters is {losses[0]:.3f}, "
        f"that of the size of {_params(other)} is {losses[1]:.3f}"
    )


def _params(size: _Size) -> str:
    return f"{size.run.params:.3g}"
