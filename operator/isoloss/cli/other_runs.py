"""Whether the runs that a report draws are those that its laws were fitted to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from isoloss import formatting
from isoloss.laws import Laws, Run


def other_runs(runs: Sequence[Run], laws: Laws) -> tuple[str, ...]:
    """A warning if these cannot be the runs behind the laws; none if they may be."""
    differences = tuple(_differences(runs, laws)) if laws.data.runs else ()
    if not differences:
        return ()
    return (f"--runs are not the runs that the laws were fitted to: {'; '.join(differences)}",)


def _differences(runs: Sequence[Run], laws: Laws) -> Iterator[str]:
    if len(runs) != laws.data.runs:
        yield f"{formatting.counted(len(runs), 'run')} in place of {laws.data.runs}"
    if not laws.data.sizes:
        return  # refused as a mixture, or before anything was read: the laws know of no run what it was
    # Of runs that were left out, the laws do not know the sizes.
    sizes = {run.params for run in runs if run.name not in laws.options.exclude}
    if sizes != set(laws.data.sizes):
        yield f"sizes {_counts(sizes)} in place of {_counts(laws.data.sizes)}"
    lengths = {run.sequence_length for run in runs}
    if laws.sequence_length is not None and lengths != {laws.sequence_length}:
        given = ", ".join(str(length) for length in sorted(lengths))
        yield f"sequences of {given} tokens in place of {laws.sequence_length}"
    tokenizers = {run.tokenizer for run in runs} - {None}
    if laws.tokenizer is not None and tokenizers - {laws.tokenizer}:
        yield "another tokenizer"


def _counts(sizes: Collection[float]) -> str:
    return ", ".join(formatting.count(size) for size in sorted(sizes))
