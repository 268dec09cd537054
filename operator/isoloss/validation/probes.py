"""The short runs around an answer: where to train them, and how well their losses are known."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from isoloss.laws import Array, Laws, Run, RunNoise
from isoloss.usual import FEWEST_STEPS, MOST_NOISE, USUAL_FREEDOM, USUAL_NOISE

SURE_OF_SIDE = 0.975
"""Probability from which on the better answer lies on one side."""
BEYOND_NOISE = NormalDist().inv_cdf(SURE_OF_SIDE)
"""Standard errors by which one loss is lower than another beyond noise."""


class InvalidProbes(ValueError):
    """Probes that cannot be compared with one another or with the answer."""


@dataclass(frozen=True)
class Place:
    """A learning rate and a batch size to train at."""

    learning_rate: float
    batch_size: int
    """Sequences."""


@dataclass(frozen=True)
class Probe:
    """What training at one place came to; several seeds are one probe."""

    learning_rate: float
    batch_size: float
    """Sequences."""
    loss: float
    """At the end, nats per token, mean over seeds; not a number if it diverged."""
    standard_error: float
    """Standard error of that mean from the noise between seeds, nats; what all probes share, such as their validation
    text, left out."""
    diverged: bool = False
    least_error: float | None = None
    """What it is at the least, if the noise is only known not to exceed one that gives the `standard_error`."""
    params: float | None = None
    """Active parameters of the model that was trained; None: those of the target."""

    @property
    def log_place(self) -> tuple[float, float]:
        """(ln LR, ln B)."""
        return float(np.log(self.learning_rate)), float(np.log(self.batch_size))


def probe_cross(
    learning_rate: float, batch_size: float, factor: float, multiple_of: int = 1
) -> tuple[Place, ...]:
    """The answer, and a neighbour at `factor` times and a `factor`-th of each, the answer first.

    Batch sizes are rounded to multiples of `multiple_of`; a neighbour that rounding makes the answer
    is left out. Raises ValueError unless `factor` is above 1.
    """
    if not factor > 1.0:
        raise ValueError(
            f"the factor between an answer and its neighbours must be above 1, not {factor:g}"
        )

    def rounded(sequences: float) -> int:
        return max(round(sequences / multiple_of), 1) * multiple_of

    middle = rounded(batch_size)
    batches = {middle, rounded(batch_size / factor), rounded(batch_size * factor)}
    return (
        Place(learning_rate, middle),
        *(Place(learning_rate * by, middle) for by in (1.0 / factor, factor)),
        *(Place(learning_rate, batch) for batch in sorted(batches - {middle})),
    )


def probes_of_runs(
    runs: Sequence[Run],
    *,
    stated_noise: float | None = None,
    measured_noise: RunNoise | None = None,
    residual: float | None = None,
) -> tuple[tuple[Probe, ...], float]:
    """The probes at the most tokens that all runs reached, and these tokens: 0 if all of them diverged.

    The noise between seeds, nats, is the one given, else the one measured on runs of the same kind (`RunNoise`);
    if places have several seeds, their own scatter counts as well. If nothing measures it, it is at least what is usual,
    and at most MOST_NOISE, or `residual` if losses are off the laws' surface by more. Raises InvalidProbes for runs that differ in
    more than learning rate, batch size and seed, or that ended at other tokens.
    """
    _check_alike(runs)
    finished = [run for run in runs if not run.diverged]
    tokens = min((float(run.tokens[-1]) for run in finished), default=0.0)
    _check_ends(finished, tokens)
    places: dict[tuple[float, float], list[Run]] = defaultdict(list)
    for run in runs:
        places[run.learning_rate, run.batch_size].append(run)
    losses = {
        place: [loss_at(run, tokens) for run in seeds if not run.diverged]
        for place, seeds in places.items()
    }
    known = _deviation(_scatter(losses.values()), stated_noise, measured_noise)
    is_bound = known is None and residual is not None
    assumed = USUAL_NOISE if residual is None else max(residual, MOST_NOISE)
    most = assumed if known is None else known

    def probe(place: tuple[float, float], seeds: Sequence[Run]) -> Probe:
        ended = losses[place]
        shrinks = float(np.sqrt(max(len(ended), 1)))
        return Probe(
            *place,
            float(np.mean(ended)) if ended else float("nan"),
            most / shrinks,
            # A place where any seed diverges is no place to train at.
            diverged=any(run.diverged for run in seeds),
            least_error=USUAL_NOISE / shrinks if is_bound else None,
            params=seeds[0].params,
        )

    return tuple(probe(place, seeds) for place, seeds in places.items()), tokens


def in_laws_sequences(runs: Sequence[Run], laws: Laws) -> tuple[Run, ...]:
    """The runs of probes with batch sizes in sequences of the laws' length, at equal tokens per step.

    Raises InvalidProbes for runs whose loss or tokenizer is known to be another than the laws'.
    """
    for run in runs:
        for name in ("tokenizer", "loss_kind"):
            own, wanted = getattr(run, name), getattr(laws, name)
            if None not in (own, wanted) and own != wanted:
                raise InvalidProbes(
                    f"probe {run.name} has {name} {own}, the laws have {wanted}: their losses cannot be compared"
                )
    length = laws.sequence_length
    return tuple(
        run
        if length in (None, run.sequence_length)
        else replace(
            run,
            batch_size=run.batch_size * run.sequence_length / float(length or 1),
            sequence_length=int(length or 1),
        )
        for run in runs
    )


def loss_at(run: Run, tokens: float) -> float:
    """Loss at a token count, linear in ln tokens between evaluations."""
    return float(np.interp(np.log(tokens), np.log(run.tokens), run.losses))


def _scatter(groups: Iterable[Sequence[float]]) -> RunNoise:
    """Noise between the seeds of each place; no degree of freedom if each has one."""
    repeated = [np.array(losses) for losses in groups if len(losses) > 1]
    squares = sum(float(np.sum((losses - losses.mean()) ** 2)) for losses in repeated)
    return RunNoise(squares, sum(len(losses) - 1 for losses in repeated))


def _deviation(own: RunNoise, stated: float | None, measured: RunNoise | None) -> float | None:
    """Standard deviation between seeds, nats; None if it is not known."""
    if stated is not None:
        squares = USUAL_FREEDOM * stated**2 + own.squares
        return float(np.sqrt(squares / (USUAL_FREEDOM + own.freedom)))
    known = own
    if measured is not None:
        known = RunNoise(own.squares + measured.squares, own.freedom + measured.freedom)
    return known.believed if known.freedom else None


def _check_alike(runs: Sequence[Run]) -> None:
    for one, other in pairwise(runs):
        for name in ("params", "sequence_length", "tokenizer", "loss_kind", "optimizer"):
            values = getattr(one, name), getattr(other, name)
            if values[0] != values[1]:
                raise InvalidProbes(
                    f"probes {one.name} and {other.name} differ in {name}, {_words(values[0])} and {_words(values[1])}: "
                    "probes are alike in all but learning rate, batch size and seed"
                )


def _words(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check_ends(runs: Sequence[Run], tokens: float) -> None:
    # Counts that are one but for whole steps are within a step of the fewest.
    for run in runs:
        if not run.finished or run.tokens[-1] > tokens * (1.0 + 1.0 / FEWEST_STEPS):
            shortest = min(runs, key=lambda each: float(each.tokens[-1]))
            raise InvalidProbes(
                f"probe {run.name} is at {run.tokens[-1]:g} tokens and {shortest.name} at {tokens:g}: train all "
                "probes to the same tokens"
            )


def log_places(probes: Sequence[Probe]) -> Array:
    """(probes, 2) of (ln LR, ln B)."""
    return np.array([probe.log_place for probe in probes]).reshape(-1, 2)
