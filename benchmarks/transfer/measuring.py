"""Trains every grid of a design and reads the optima off them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.transfer.design import Checkpoint, Design, Grid, Place, Size
from benchmarks.transfer.judging import FEWEST, best_place, losses_at, optimum, widened
from benchmarks.transfer.training import Workshop
from isoloss.laws import Run

Runs = dict[Place, Run]

Say = Callable[[str], None]
"""Told of progress."""


@dataclass(frozen=True)
class Continued:
    """A checkpoint and its continued runs."""

    checkpoint: Checkpoint
    initial_loss: float
    """Nats per token on the target text, before any step."""
    initial_loss_error: float
    runs: Runs


@dataclass(frozen=True)
class Measured:
    """All runs of a design."""

    design: Design
    scratch: dict[str, Runs]
    """By size: the sweep, and the controls."""
    continued: tuple[Continued, ...]
    raw: tuple[Continued, ...] = ()
    """Of checkpoints with their last weights; no rule is judged on them."""


def measure(workshop: Workshop, say: Say) -> Measured:
    """Train what is not in the store yet. Raises Interrupted, after saving, once a stop is requested."""
    design = workshop.design
    scratch = {size.name: _from_scratch(workshop, size, say) for size in design.sizes}
    judged = (*design.checkpoints, *design.best_checkpoints("decayed"))
    continued = [_continued(workshop, checkpoint, say) for checkpoint in judged]
    # Before the pre-training runs go on beyond the weights that these are made of.
    raw = [_continued(workshop, checkpoint, say) for checkpoint in design.best_checkpoints("raw")]
    continued += [_continued(workshop, checkpoint, say) for checkpoint in design.longer]
    return Measured(design, scratch, tuple(continued), tuple(raw))


def _from_scratch(workshop: Workshop, size: Size, say: Say) -> Runs:
    design = workshop.design
    checked = (design.pretraining_tokens[0] + design.budgets[0], design.scratch_tokens)
    runs = grown(
        size.scratch_grid, design.lines, checked, lambda p: workshop.from_scratch(size, p)
    )
    say(f"{size.name} from scratch: {len(runs)} runs")
    return runs


def _continued(workshop: Workshop, checkpoint: Checkpoint, say: Say) -> Continued:
    design = workshop.design
    workshop.provide(checkpoint)
    initial = workshop.initial_loss(checkpoint)
    runs = grown(
        checkpoint.size.continued_grid,
        design.lines,
        design.budgets,
        lambda place: workshop.continued(checkpoint, place),
    )
    say(f"{checkpoint.name}, initial loss {initial.loss:.3f}: {len(runs)} continued runs")
    return Continued(checkpoint, initial.loss, initial.loss_standard_error, runs)


def grown(
    grid: Grid, lines: tuple[int, int], checked: Sequence[int], run: Callable[[Place], Run]
) -> Runs:
    """All runs of a grid that grows while the optimum at one of the `checked` tokens is not inside."""
    runs: Runs = {}
    while True:
        for place in grid.places():
            if place not in runs:
                runs[place] = run(place)
        larger = widened(grid, _beyond(runs, checked), lines)
        if larger == grid:
            return runs
        grid = larger


def _beyond(runs: Runs, checked: Sequence[int]) -> list[Place]:
    """The best runs at those tokens at which the optimum is not inside the grid."""
    found = []
    for tokens in checked:
        losses = losses_at(runs, tokens)
        if losses and (len(losses) < FEWEST or not optimum(losses).inside):
            found.append(best_place(losses))
    return found
