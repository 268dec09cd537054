"""Text for tests, the same on every machine: sentences of a small language made up here.

Its words are unequally frequent and each has few successors, so tokenizers find merges and models
find something to learn. Nothing is read from the machine: which documents are held out depends on
every byte of them.
"""

import bisect
import functools
import itertools
import random
from collections.abc import Callable, Iterator

WORDS = 600
SUCCESSORS = 12
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
ZIPF = list(itertools.accumulate(1 / rank for rank in range(1, SUCCESSORS + 1)))
"""Cumulative weights of the successors, by rank."""

Draw = Callable[[], float]
"""Numbers in [0, 1). Python promises the same ones in every version for random() alone."""


@functools.cache
def text(characters: int) -> str:
    """Sentences, a few to a line, `characters` characters in all."""
    parts, size = [], 0
    for sentence in _sentences(random.Random(0).random):
        parts.append(sentence)
        size += len(sentence)
        if size >= characters:
            break
    return "".join(parts)[:characters]


def _sentences(draw: Draw) -> Iterator[str]:
    """Sentences of 4 to 15 words; every fourth ends its line."""
    words = ["".join(_pick(SYLLABLES, draw) for _ in range(1 + i % 3)) for i in range(WORDS)]
    successors = {word: [_pick(words, draw) for _ in range(SUCCESSORS)] for word in words}
    word = words[0]
    while True:
        sentence = []
        for _ in range(4 + int(12 * draw())):
            word = successors[word][bisect.bisect(ZIPF, draw() * ZIPF[-1])]
            sentence.append(word)
        yield " ".join(sentence).capitalize() + (".\n" if draw() < 0.25 else ". ")


def _pick(choices: list[str], draw: Draw) -> str:
    return choices[int(len(choices) * draw())]
