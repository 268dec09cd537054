"""A run's evaluations, thousands of them as a few means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array, Flags, Indices

MOST_EVALUATIONS = 128
"""Evaluations per trajectory at most; more are averaged: a smoother over a third of the run cannot tell them
apart."""


@dataclass(frozen=True)
class Evaluations:
    """One trajectory's, in order of tokens."""

    log_tokens: Array
    log_losses: Array
    sources: Indices
    """Index of the run that each is from."""

    def where(self, keep: Flags) -> Evaluations:
        """Only these."""
        return Evaluations(
            self.log_tokens[keep],
            self.log_losses[keep],
            self.sources[keep],
        )

    def at_distinct_tokens(self) -> Evaluations:
        """With the mean of those at equal tokens as one: there is no slope between them."""
        if (np.diff(self.log_tokens) > 0).all():
            return self
        return self._means(self.log_tokens)

    def binned(self) -> Evaluations:
        """At most MOST_EVALUATIONS: means over even steps of ln D between the first and the last."""
        x = self.log_tokens
        if len(x) <= MOST_EVALUATIONS:
            return self
        inner = np.linspace(x[0], x[-1], MOST_EVALUATIONS - 1)
        # The ends stay as they are: other runs of the size end at the same tokens.
        bins = np.searchsorted(inner, x, side="right").astype(float)
        bins[0], bins[-1] = 0, MOST_EVALUATIONS
        return self._means(bins)

    def _means(self, groups: Array) -> Evaluations:
        """One for each of the groups, (evaluations,) ascending."""
        _, first, member = np.unique(groups, return_index=True, return_inverse=True)
        number = np.bincount(member)
        return Evaluations(
            np.bincount(member, self.log_tokens) / number,
            np.bincount(member, self.log_losses) / number,
            self.sources[first],
        )
