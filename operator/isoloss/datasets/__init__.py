"""Sample tables that come with the package, to try everything without a cluster.

They are made up, not trained: 75 runs of three sizes on a surface whose optimum is known, and five probes of
the answer that their laws give to `QUESTION`. `python -m tests.docs.samples` writes them.
"""

from importlib.resources import files

from isoloss.laws import PredictionQuery
from isoloss.run_sources import read_runs
from isoloss.runs import RunSet

RUNS, PROBES = "sample_runs.csv", "sample_probes.csv"


QUESTION = PredictionQuery(initial_loss=2.75, params=1e9, cpt_tokens=5e9)
"""About a made-up checkpoint, on the validation text of the sample runs."""

OPTIMUM = (2.89e-4, 175)
"""Learning rate and batch size (sequences) at which that surface is lowest, for a run from scratch of `QUESTION`'s
parameters and total compute."""


def load_sample_runs() -> RunSet:
    """A grid of five batch sizes and five learning rates at 30M, 100M and 300M parameters."""
    return read_runs(str(files(__name__) / RUNS))


def sample_text(name: str) -> str:
    """The table of this name, `RUNS` or `PROBES`, as CSV."""
    return (files(__name__) / name).read_text("utf-8")
