"""The figures of the report one by one, for notebooks, which show what these return."""

from __future__ import annotations

from collections.abc import Sequence

from isoloss.laws import Laws, Prediction, Run
from isoloss.report.contour_figure import contours
from isoloss.report.drawing import Figure
from isoloss.report.law_figure import PlacedPrediction, law_curves
from isoloss.report.surface_figure import surface_optima
from isoloss.report.trajectory_figure import runs_from_contours, trajectories
from isoloss.run_sources import RunSet


def plot_laws(
    laws: Laws, prediction: Prediction | None = None, *, initial_loss: float | None = None
) -> Figure:
    """Learning rate and batch size over the loss, and the loss over compute, with bands and residuals.

    A prediction is a star on the curves; with the checkpoint's loss in nats per token, C_pre is marked, too.
    """
    placed = PlacedPrediction(prediction, initial_loss) if prediction is not None else None
    return law_curves(laws, placed)


def plot_contours(laws: Laws) -> Figure:
    """The tokens that reach a loss, over batch size and learning rate: a panel for each size and loss."""
    return contours(laws)


def plot_surface(laws: Laws) -> Figure:
    """The joint surface and the optima of each size over training tokens.

    Raises ValueError if the surface was refused.
    """
    figure = surface_optima(laws)
    if figure is None:
        refusal = laws.surface.refusal
        why = f": {refusal.message}" if refusal is not None else ""
        raise ValueError(f"the joint surface was refused{why}")
    return figure


def plot_trajectories(laws: Laws, runs: RunSet | Sequence[Run] = ()) -> Figure:
    """Loss over training tokens of every run; without runs, the tokens to each iso-loss level."""
    given = runs.runs if isinstance(runs, RunSet) else tuple(runs)
    return trajectories(given or runs_from_contours(laws), laws)
