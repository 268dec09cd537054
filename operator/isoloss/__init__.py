"""Learning rates and batch sizes for continued pre-training, from iso-loss scaling laws.

The names below are the library; docs/guides/library.md walks through them. They are imported on first
use, so that `import isoloss` costs nothing and matplotlib is loaded only to draw.

Units: losses in nats per token, batch sizes in sequences, compute in FLOPs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoloss.errors import BadInput
    from isoloss.fitting import fit_laws
    from isoloss.laws import (
        FitOptions,
        Interval,
        Laws,
        Prediction,
        PredictionQuery,
        Refusal,
        RefusalReason,
        Refused,
        Run,
        predict,
    )
    from isoloss.laws_files import read_laws, write_laws
    from isoloss.published import PUBLISHED, PublishedLaw, published_law, published_opinions
    from isoloss.report import draw_figures, render_report
    from isoloss.report.plots import plot_contours, plot_laws, plot_surface, plot_trajectories
    from isoloss.run_sources import RunSet, read_runs
    from isoloss.savings import SearchCost, search_cost
    from isoloss.validation import Probe, Validation, probe_cross, probes_of_runs, validate

    __version__: str

_HOMES = {
    "errors": ("BadInput",),
    "fitting": ("fit_laws",),
    "laws": (
        *("FitOptions", "Interval", "Laws", "Prediction", "PredictionQuery", "Refusal"),
        *("RefusalReason", "Refused", "Run", "predict"),
    ),
    "laws_files": ("read_laws", "write_laws"),
    "published": ("PublishedLaw", "published_law", "PUBLISHED", "published_opinions"),
    "report": ("draw_figures", "render_report"),
    "report.plots": ("plot_contours", "plot_laws", "plot_surface", "plot_trajectories"),
    "run_sources": ("RunSet", "read_runs"),
    "savings": ("SearchCost", "search_cost"),
    "validation": ("Probe", "Validation", "probe_cross", "probes_of_runs", "validate"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "PUBLISHED",
    "BadInput",
    "FitOptions",
    "Interval",
    "Laws",
    "Prediction",
    "PredictionQuery",
    "Probe",
    "PublishedLaw",
    "Refusal",
    "RefusalReason",
    "Refused",
    "Run",
    "RunSet",
    "SearchCost",
    "Validation",
    "draw_figures",
    "fit_laws",
    "plot_contours",
    "plot_laws",
    "plot_surface",
    "plot_trajectories",
    "predict",
    "probe_cross",
    "probes_of_runs",
    "published_law",
    "published_opinions",
    "read_laws",
    "read_runs",
    "render_report",
    "search_cost",
    "validate",
    "write_laws",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # not above: it takes longer than all else here

        return version("isoloss")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return __all__
