"""What a run's evaluations are worth: their own errors, and thousands of them as a few means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array, Flags, Indices
from isoloss.laws.model import Run

MOST_EVALUATIONS = 128
"""Evaluations per trajectory at most; more are averaged: a smoother over a third of the run cannot tell them
apart."""


@dataclass(frozen=True)
class Evaluations:
    """One trajectory's, in order of tokens."""

    log_tokens: Array
    log_losses: Array
    own_variance: Array
    """Variance of ln L that the trainer reports beyond what all runs share."""
    sources: Indices
    """Index of the run that each is from."""
    counts: Array
    """Evaluations that each is the mean of."""

    def where(self, keep: Flags) -> Evaluations:
        """Only these."""
        return Evaluations(
            self.log_tokens[keep],
            self.log_losses[keep],
            self.own_variance[keep],
            self.sources[keep],
            self.counts[keep],
        )

    def at_distinct_tokens(self) -> Evaluations:
        """With the mean of those at equal tokens as one: there is no slope between them."""
        if (np.diff(self.log_tokens) > 0).all():
            return self
        tokens, first, member = np.unique(self.log_tokens, return_index=True, return_inverse=True)
        number = np.bincount(member)
        return Evaluations(
            tokens,
            np.bincount(member, self.log_losses) / number,
            np.bincount(member, self.own_variance) / number,
            self.sources[first],
            np.ones(len(tokens)),
        )

    def binned(self) -> Evaluations:
        """At most MOST_EVALUATIONS: means over even steps of ln D between the first and the last."""
        count = len(self.log_tokens)
        if count <= MOST_EVALUATIONS:
            return self
        x = self.log_tokens
        inner = np.linspace(x[0], x[-1], MOST_EVALUATIONS - 1)
        # The ends stay as they are: other runs of the size end at the same tokens.
        bins = np.searchsorted(inner, x, side="right")
        bins[0], bins[-1] = 0, MOST_EVALUATIONS
        _, first, member = np.unique(bins, return_index=True, return_inverse=True)
        counts = np.asarray(np.bincount(member, self.counts), dtype=float)

        def mean(values: Array) -> Array:
            return np.asarray(np.bincount(member, values * self.counts) / counts, dtype=float)

        return Evaluations(
            mean(x),
            mean(self.log_losses),
            mean(self.own_variance) / np.bincount(member),
            self.sources[first],
            counts,
        )


def shared_error(runs: Sequence[Run]) -> float | None:
    """The part of the reported errors (of ln L) that all runs have in common; None unless all report theirs.

    All runs are evaluated on one validation text: which documents it holds moves all of their losses alike. No
    run's error is smaller than that.
    """
    found = [_relative_errors(run) for run in runs if len(run.tokens)]
    known = [float(np.nanmedian(e)) for e in found if e is not None and np.isfinite(e).any()]
    return min(known) if known and len(known) == len(found) else None


def own_variance(run: Run, shared: float | None) -> Array:
    """(evaluations,) variance of ln L that a run does not share with the others; 0 if it is not reported."""
    errors = _relative_errors(run)
    if shared is None or errors is None:
        return np.zeros(len(run.tokens))
    return np.asarray(np.maximum(np.nan_to_num(errors) ** 2 - shared**2, 0.0), dtype=float)


def _relative_errors(run: Run) -> Array | None:
    if run.loss_standard_errors is None:
        return None
    return np.asarray(run.loss_standard_errors / run.losses, dtype=float)
