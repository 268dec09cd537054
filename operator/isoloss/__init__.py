"""Learning rates and batch sizes for continued pre-training, from iso-loss scaling laws.

The names below are the library; docs/guides/library.md walks through them. They are imported on first
use, so that `import isoloss` costs nothing and matplotlib is loaded only to draw.

Units: losses in nats per token, batch sizes in sequences, compute in FLOPs.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoloss.errors import BadInput as BadInput
    from isoloss.fitting import fit_laws as fit_laws
    from isoloss.laws import FitOptions as FitOptions
    from isoloss.laws import Laws as Laws
    from isoloss.laws import Prediction as Prediction
    from isoloss.laws import PredictionQuery as PredictionQuery
    from isoloss.laws import Refusal as Refusal
    from isoloss.laws import Refused as Refused
    from isoloss.laws import Run as Run
    from isoloss.laws import predict as predict
    from isoloss.laws_files import read_laws as read_laws
    from isoloss.laws_files import write_laws as write_laws
    from isoloss.report.contour_figure import plot_contours as plot_contours
    from isoloss.report.law_figure import plot_laws as plot_laws
    from isoloss.report.page import render_report as render_report
    from isoloss.report.trajectory_figure import plot_trajectories as plot_trajectories
    from isoloss.run_sources import read_runs as read_runs
    from isoloss.runs import RunSet as RunSet
    from isoloss.validation import Validation as Validation
    from isoloss.validation import validate as validate

    __all__: list[str]
    __version__: str


@cache
def _modules() -> dict[str, str]:
    """The module of each name, as the imports above have them for type checkers."""
    import ast
    from pathlib import Path

    lines = ast.walk(ast.parse(Path(__file__).read_text()))
    imports = [line for line in lines if isinstance(line, ast.ImportFrom)]
    return {
        alias.name: line.module
        for line in imports
        for alias in line.names
        if alias.asname and line.module
    }


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # not above: it takes longer than all else here

        return version("isoloss")
    if name == "__all__":
        return __dir__()
    if name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_modules()[name]), name)


def __dir__() -> list[str]:
    return sorted(_modules())
