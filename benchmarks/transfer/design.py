"""What is trained: sizes, grids, checkpoints and budgets. Nothing here computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from isoloss_contract.records import EvaluationConfig, OptimizerConfig

SEQUENCE_LENGTH = 64
VOCABULARY = 512
WARMUP_TOKENS = 4096
OPTIMIZER = OptimizerConfig(beta2=0.95, weight_decay=0.1, warmup_tokens=WARMUP_TOKENS)
"""As in the demo: with beta2 0.999 runs this short want one sequence a step."""
FIRST_EVALUATION = 9487
"""Tokens."""

TARGET, BEFORE, OTHER, FAR = "target", "before", "other", "far"
"""Domains: the text of the sweep, more text of the same kind, and text of two other kinds."""
Text = Literal["far", "other", "half", "same"]
MIXTURES: dict[Text, dict[str, float]] = {
    "far": {FAR: 1.0},
    "other": {OTHER: 1.0},
    "half": {BEFORE: 0.5, OTHER: 0.5},
    "same": {BEFORE: 1.0},
}
"""What a checkpoint was pre-trained on. No token of it is in what the sweep or a continued run reads."""


@dataclass(frozen=True)
class Place:
    """One point of a grid: learning rate 2^i, batch size 2^j sequences."""

    i: int
    j: int

    @property
    def rate(self) -> float:
        """Learning rate."""
        return float(2.0**self.i)

    @property
    def batch(self) -> int:
        """Sequences."""
        return int(2**self.j)


@dataclass(frozen=True)
class Grid:
    """All places between two exponents of the learning rate and two of the batch size."""

    rates: tuple[int, int]
    batches: tuple[int, int]
    lowest_batch: int = 1
    """Exponent below which batch sizes are not tried: one sequence takes as long as all others together."""

    def places(self) -> Iterator[Place]:
        """Every point."""
        for i in range(self.rates[0], self.rates[1] + 1):
            for j in range(self.batches[0], self.batches[1] + 1):
                yield Place(i, j)

    def widened(self, best: Place, lines: tuple[int, int]) -> Grid:
        """With a line more where `best` lies on the edge, up to `lines` of each kind."""
        rates = _widened(self.rates, best.i, lines[0])
        batches = _widened(self.batches, best.j, lines[1], lowest=self.lowest_batch)
        return replace(self, rates=rates, batches=batches)


def _widened(
    bounds: tuple[int, int], best: int, lines: int, lowest: int = -100
) -> tuple[int, int]:
    low, high = bounds
    if high - low + 1 >= lines:
        return bounds
    if best <= low > lowest:
        return low - 1, high
    return (low, high + 1) if best >= high else bounds


@dataclass(frozen=True)
class Size:
    """A model of one layer, and where its grids begin."""

    name: str
    width: int
    heads: int
    scratch_grid: Grid
    continued_grid: Grid

    @property
    def model(self) -> dict[str, Any]:
        """The transformers config."""
        return {
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": self.width,
            "intermediate_size": self.width * 11 // 4,
            "num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": SEQUENCE_LENGTH,
            "tie_word_embeddings": False,
        }


Ending = Literal["averaged", "raw", "decayed"]
"""The weights of a checkpoint: an average over the last ones, the last ones, or the last ones after the learning
rate has fallen to zero over another DECAY of the tokens."""
DECAY = 0.25


@dataclass(frozen=True)
class Checkpoint:
    """A model pre-trained on a text for a number of tokens."""

    size: Size
    text: Text
    tokens: int
    ending: Ending = "averaged"

    @property
    def name(self) -> str:
        """Distinct within a design."""
        ending = "" if self.ending == "averaged" else f"-{self.ending}"
        return f"{self.size.name}-{self.text}-{self.tokens}{ending}"


@dataclass(frozen=True)
class Design:
    """The whole benchmark."""

    sizes: tuple[Size, ...]
    scratch_tokens: int
    lines: tuple[int, int]
    """At most this many learning rates and batch sizes of a grid that grows."""
    texts: tuple[Text, ...]
    pretraining_tokens: tuple[int, ...]
    """Short and long."""
    pretraining: Place
    budgets: tuple[int, ...]
    """Tokens of continued pre-training, ascending: the same run is read at each."""
    per_decade: int
    """Evaluations of a run from scratch; a continued run has half as many."""
    longer: tuple[Checkpoint, ...] = ()
    """With a past that is longer than any of `checkpoints`: the second rule is judged on them."""
    validation_sequences: int = 192

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Every size, text and length."""
        return [
            Checkpoint(size, text, tokens)
            for size in self.sizes
            for text in self.texts
            for tokens in self.pretraining_tokens
        ]

    def best_checkpoints(self, ending: Ending) -> list[Checkpoint]:
        """Those that know the sweep's text best once more, with other weights."""
        best = (self.texts[-1], self.pretraining_tokens[-1])
        return [Checkpoint(size, *best, ending) for size in self.sizes]

    def evaluation(self, *, continued: bool) -> EvaluationConfig:
        """When a run is evaluated."""
        return EvaluationConfig(
            first_tokens=FIRST_EVALUATION,
            per_decade=self.per_decade // 2 if continued else self.per_decade,
            sequences_per_domain=self.validation_sequences,
        )


SMALL = Size("small", 32, 2, Grid((-9, -6), (1, 4)), Grid((-8, -6), (2, 4)))
LARGE = Size("large", 64, 2, Grid((-9, -7), (1, 4)), Grid((-9, -7), (2, 4)))
"""28,928 and 82,944 active parameters. Measured beforehand: learning rate and batch size trade off along a
ridge, from LR 2^-9 at 4 sequences to 2^-7 at 16 for the large one; one line lower than for the small."""
WIDE = Size("wide", 128, 4, Grid((-10, -8), (1, 4)), Grid((-10, -8), (2, 4)))
"""266,240 active parameters; its grids lie another line lower."""

LONGER = 1_200_000
"""Tokens of pre-training of the checkpoints that the second rule was not found on."""
KNOWN_SIZES = ("small", "large")
KNOWN_TEXTS = ("other", "half", "same")
KNOWN_BUDGETS = (53_349, 168_705)
"""Of the averaged checkpoints on which the registered rule was found (`rules.REGISTERED`): it is not judged on them."""

FULL = Design(
    sizes=(SMALL, LARGE, WIDE),
    scratch_tokens=533_493,
    lines=(5, 4),
    texts=("far", "other", "half", "same"),
    pretraining_tokens=(75_000, 300_000),
    pretraining=Place(-8, 2),
    budgets=(*KNOWN_BUDGETS, 533_493),
    per_decade=8,
    longer=tuple(
        Checkpoint(size, text, LONGER) for size in (SMALL, LARGE) for text in ("half", "same")
    ),
)
BRIEF = replace(
    FULL,
    sizes=(SMALL, LARGE),
    scratch_tokens=300_005,
    texts=("other", "same"),
    pretraining_tokens=(75_000,),
    longer=(),
)
"""A third of the time; too few checkpoints to judge a rule out of sample."""
