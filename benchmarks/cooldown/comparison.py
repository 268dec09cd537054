"""What each kind of loss says is best on one grid, after the same number of tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_optimum import loss_at
from isoloss.laws import Run

TERMS = 6
"""Of a full quadratic in ln LR and ln B."""
NEAR_NATS = 0.05
"""Runs whose loss is further above the lowest hardly count for where the valley's bottom is."""


@dataclass(frozen=True)
class Optimum:
    """The bottom of a paraboloid through a grid's losses."""

    learning_rate: float
    batch_size: float


@dataclass(frozen=True)
class Opinion:
    """Of one kind of loss about one grid."""

    kind: str
    best: Run
    """The run of the lowest loss."""
    loss: float
    """Its loss of that kind, nats per token."""
    optimum: Optimum | None
    """None where the losses have no bottom inside the grid."""
    regret: float
    """Loss of `best` above the lowest one, both of the reference kind."""


def opinions(
    kinds: Mapping[str, Sequence[Run]], reference: str, tokens: float
) -> tuple[Opinion, ...]:
    """What each of the `kinds` says after `tokens`: its runs have the same order of grid points in each.

    A point counts if every kind knows its loss there. Raises ValueError where fewer than two points do.
    """
    losses = {kind: [loss_at(run, tokens) for run in runs] for kind, runs in kinds.items()}
    table = np.array(list(losses.values()), dtype=np.float64)
    known: list[int] = np.flatnonzero(np.isfinite(table).all(axis=0)).tolist()
    if len(known) < 2:
        raise ValueError(f"fewer than two points have every kind of loss at {tokens:g} tokens")
    judged = np.array(losses[reference], dtype=np.float64)[known]
    return tuple(
        _opinion(kind, [runs[i] for i in known], np.array(losses[kind])[known], judged)
        for kind, runs in kinds.items()
    )


def shared_tokens(kinds: Mapping[str, Sequence[Run]]) -> float:
    """The most tokens at which every run that was not cut short has every kind of loss.

    Raises ValueError where there are none.
    """
    runs = [run for group in kinds.values() for run in group if len(run.tokens)]
    whole = [run for run in runs if not run.diverged]
    if not whole:
        raise ValueError("no run has a loss")
    return min(float(run.tokens[-1]) for run in whole)


def _opinion(
    kind: str, runs: Sequence[Run], losses: NDArray[np.float64], judged: NDArray[np.float64]
) -> Opinion:
    best = int(losses.argmin())
    return Opinion(
        kind=kind,
        best=runs[best],
        loss=float(losses[best]),
        optimum=paraboloid_optimum(runs, losses),
        regret=float(judged[best] - judged.min()),
    )


def paraboloid_optimum(runs: Sequence[Run], losses: NDArray[np.float64]) -> Optimum | None:
    """The bottom of the weighted least-squares paraboloid over ln LR and ln B, if it is in the grid."""
    x = np.log([[run.learning_rate, run.batch_size] for run in runs])
    if len(runs) < TERMS:
        return None
    centre = x.mean(axis=0)
    u, v = (x - centre).T
    design = np.stack([np.ones_like(u), u, v, u * u, u * v, v * v], axis=1)
    root = 1.0 / (1.0 + ((losses - losses.min()) / NEAR_NATS) ** 2) ** 0.5
    found, *_ = np.linalg.lstsq(design * root[:, None], losses * root, rcond=None)
    hessian = np.array([[2 * found[3], found[4]], [found[4], 2 * found[5]]])
    if np.linalg.eigvalsh(hessian)[0] <= 0:
        return None
    bottom = centre - np.linalg.solve(hessian, found[1:3])
    if (bottom < x.min(axis=0)).any() or (bottom > x.max(axis=0)).any():
        return None
    rate, batch = np.exp(bottom)
    return Optimum(float(rate), float(batch))
