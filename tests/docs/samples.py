"""Writes the sample tables of `isoloss.datasets`, from a surface whose optimum is known.

python -m tests.docs.samples
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import isoloss
from isoloss import datasets
from isoloss.laws import Run
from isoloss.validation import probe_cross
from tests.support.synthetic_runs import NOISE, answered, bowl, synthetic_runs
from tests.support.tables import HEADER

FOLDER = Path(datasets.__file__).parent
PROBE_SHARE = 0.3
"""Of the budget, that each probe trains for: the default of `isoloss validate`."""
Row = Sequence[str]


def rows_of(run: Run) -> Iterator[Row]:
    """A run as rows of a table: tokens whole, losses with the decimals that logs have."""
    for tokens, loss in zip(run.tokens, run.losses, strict=True):
        numbers = (run.params, run.batch_size, run.sequence_length)
        whole = [str(round(number)) for number in numbers]
        rate = f"{run.learning_rate:g}"
        yield [
            run.name,
            *whole,
            rate,
            str(round(tokens)),
            f"{loss:.5f}",
            str(run.diverged).lower(),
        ]


def probes(runs: Sequence[Run]) -> Iterator[Run]:
    """Continued runs at the answer of these runs' laws and around it.

    They want what the surface says of a run from scratch of their total compute, the learning rate times the root of
    the share that is continued and the batch size times two minus that share, as the engine has it.
    """
    answer = answered(isoloss.fit_laws(runs), datasets.QUESTION)
    assert answer.equivalent_flops is not None
    params = datasets.QUESTION.params
    tokens = PROBE_SHARE * datasets.QUESTION.cpt_tokens
    flops = 6 * params * tokens
    total = answer.equivalent_flops.value + flops
    rng = np.random.default_rng(0)
    places = probe_cross(answer.learning_rate.value, answer.batch_size.value, factor=2.0)
    for number, place in enumerate(places):
        rate = place.learning_rate / math.sqrt(flops / total)
        batch = place.batch_size / (2.0 - flops / total)
        above = bowl(rate, batch, params, total / (6 * params))
        level = datasets.QUESTION.initial_loss - 0.05
        yield Run(
            name=f"probe-{number}",
            params=params,
            batch_size=place.batch_size,
            sequence_length=2048,
            learning_rate=place.learning_rate,
            tokens=np.array([tokens]),
            losses=np.array([level + above + NOISE * rng.standard_normal()]),
        )


def as_csv(runs: Sequence[Run]) -> str:
    """The runs as a table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*HEADER, "diverged"])
    for run in runs:
        writer.writerows(rows_of(run))
    return text.getvalue()


def main() -> None:
    """Write both tables."""
    (FOLDER / datasets.RUNS).write_text(as_csv(synthetic_runs()))
    around = tuple(probes(datasets.load_sample_runs().runs))
    (FOLDER / datasets.PROBES).write_text(as_csv(around))


if __name__ == "__main__":
    main()
