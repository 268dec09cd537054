"""Rows against one another: which make up a run, and batch sizes or losses that are wrong in all of them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from isoloss.laws import Array, Run
from isoloss.tables.cells import Numbers
from isoloss.tables.formats import SETTINGS
from isoloss.usual import FEWEST_STEPS

SUSPICIOUS_BATCH_TOKENS = 2.0**24
SUSPICIOUS_STEPS = 1000
OF_SEVERAL = {
    "learning_rate": "; --column learning_rate=learning_rate takes the highest, a schedule's peak",
    "seed": ": write it into the names of the runs, too",
}
"""What to do about several values of a run."""
FEWER, SAME_TOKENS = 1.5, 0.02
"""Factor from which runs have fewer tokens than others, and relative difference of those that have as many, in whole steps."""
LENGTH_BEYOND_CHANCE = 64
"""Tokens per sequence from which batch sizes in sequences are hardly ever all multiples of it."""


def rows_by_run(numbers: Numbers) -> dict[str, list[int]]:
    """Row indices of each run in order of tokens. Raises BadTable for a run that contradicts itself."""
    rows_of: dict[str, list[int]] = {}
    for index, name in enumerate(numbers.names):
        rows_of.setdefault(name, []).append(index)
    tokens = numbers.values["tokens"]
    for name, rows in rows_of.items():
        for column in (*SETTINGS, *numbers.labels):
            _check_constant(numbers, name, rows, column)
        _check_count_goes_on(numbers, name, rows)
        rows.sort(key=lambda index: (tokens[index], index))
        for before, after in pairwise(rows):
            if tokens[before] == tokens[after]:
                raise numbers.table.bad(
                    after,
                    "tokens",
                    f"run {name!r} already has {tokens[after]:g} tokens in row {numbers.table.rows[before]}: "
                    "one run twice, two runs under one name, or steps that a resumed run repeated: remove the earlier rows",
                )
        _check_ratio(numbers, name, rows, "flops", tolerance=0.02)
        _check_ratio(numbers, name, rows, "bytes", tolerance=0.10)
    return rows_of


def _check_constant(numbers: Numbers, name: str, rows: Sequence[int], column: str) -> None:
    """Raise BadTable unless a column has one value in all rows of a run."""
    is_label = column in numbers.labels
    values: Array | Sequence[str] = (numbers.labels if is_label else numbers.values)[column]
    write = "{!r}" if is_label else "{:g}"
    first = rows[0]
    for index in rows[1:]:
        if values[index] != values[first]:
            raise numbers.table.bad(
                index,
                column,
                f"run {name!r} has {write.format(values[index])} here and {write.format(values[first])} in row {numbers.table.rows[first]}: "
                f"one value per run is expected{OF_SEVERAL.get(column, '')}",
            )


def _check_count_goes_on(numbers: Numbers, name: str, rows: Sequence[int]) -> None:
    """Raise BadTable for a run in two parts as they were logged, of which the second has far fewer tokens and a lower loss."""
    if len(rows) < 4 or numbers.diverged[list(rows)].any():
        return
    tokens, losses = (numbers.values[each] for each in ("tokens", "loss"))
    for order in (rows, rows[::-1]):  # trackers show the newest row first
        falls = np.flatnonzero(np.diff(tokens[list(order)]) < 0.0)
        if len(falls) != 1 or falls[0] in (0, len(order) - 2):
            continue
        before, after = order[falls[0]], order[falls[0] + 1]
        if 2.0 * tokens[after] <= tokens[before] and losses[after] < losses[before]:
            raise numbers.table.bad(
                after,
                "tokens",
                f"run {name!r} has {tokens[after]:g} tokens here and {tokens[before]:g} in row {numbers.table.rows[before]}, "
                "with a higher loss: a resumed run that counted from 0 again (add the tokens before), or two runs under one name; "
                "if neither, sort the rows by tokens",
            )


def _check_ratio(
    numbers: Numbers, name: str, rows: Sequence[int], column: str, *, tolerance: float
) -> None:
    if column not in numbers.values:
        return
    ratio = numbers.values[column][list(rows)] / numbers.values["tokens"][list(rows)]
    wrong = np.flatnonzero(np.abs(ratio / np.median(ratio) - 1) > tolerance)
    if wrong.size:
        first = int(wrong[0])
        raise numbers.table.bad(
            rows[first],
            column,
            f"run {name!r} has {ratio[first]:.4g} {column} per token here and {np.median(ratio):.4g} elsewhere: "
            "units are mixed, or it is not counted from the run's start",
        )


def check_whole_table(numbers: Numbers, rows_of: Mapping[str, Sequence[int]]) -> None:
    """Faults that no row shows by itself: a constant loss, and batch sizes that are all multiples of the sequence length, as those in
    tokens are: BadTable in runs that are all too short, else a warning."""
    losses = numbers.values["loss"]
    # The fit would find an optimum on every edge and blame the grid.
    if len(rows_of) > 1 and np.all(losses == losses[0]):
        message = (
            f"every row has the same loss, {losses[0]:g}: nothing can be fitted to a constant"
        )
        raise numbers.table.bad(0, "loss", message)
    last = [rows[-1] for rows in rows_of.values()]
    batch = numbers.values["batch_size"][last]
    length = numbers.values["sequence_length"][last]
    steps = numbers.values["tokens"][last] / (batch * length)
    _suspect_part_steps(numbers, rows_of)
    _suspect_tokens_of_passes(numbers, last)
    if np.max(steps) < FEWEST_STEPS and not numbers.diverged.all():
        numbers.warnings.append(
            f"{numbers.table.source}: no run has {FEWEST_STEPS} steps by its tokens, the longest {np.max(steps):.3g}: they may be "
            "those of one step, or in thousands; tokens since the run's start are expected"
        )
    multiples = (length > 1) & (batch % length == 0)
    if not np.all(multiples) or np.max(batch * length) <= SUSPICIOUS_BATCH_TOKENS:
        return
    if np.all(steps < SUSPICIOUS_STEPS):
        raise numbers.table.bad(
            last[0],
            "batch_size",
            f"all batch sizes are multiples of the sequence length, in runs of at most {steps.max():.0f} steps: "
            f"they look like tokens; {batch[0]:g} tokens are {batch[0] / length[0]:g} sequences",
        )
    if np.all(length >= LENGTH_BEYOND_CHANCE):
        numbers.warnings.append(
            f"{numbers.table.source}: all batch sizes are multiples of the sequence length, up to {np.max(batch * length):.3g} "
            f"tokens per step: if they are tokens, divide them; {batch[0]:g} tokens are {batch[0] / length[0]:g} sequences"
        )


def _suspect_part_steps(numbers: Numbers, rows_of: Mapping[str, Sequence[int]]) -> None:
    """A warning where tokens are whole steps in most runs, and in the others not: as with another sequence length than is written."""
    values = numbers.values
    steps = values["tokens"] / (values["batch_size"] * values["sequence_length"])
    is_whole = np.isclose(steps, np.round(steps), rtol=1e-9)  # arithmetic of options rounds
    others = [name for name, rows in rows_of.items() if not is_whole[rows].all()]
    if not 0 < 2 * len(others) <= len(rows_of):
        return
    names = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
    runs = f"{len(others)} run{'s' if len(others) > 1 else ''} ({names})"
    numbers.warnings.append(
        f"{numbers.table.source}: tokens of {runs} are not whole steps of batch_size * sequence_length, as those of the other runs "
        "are: check their batch sizes and sequence lengths"
    )


def _suspect_tokens_of_passes(numbers: Numbers, last: Sequence[int]) -> None:
    """A warning where the longest runs of larger batch sizes end at a half, quarter, ... of the tokens of smaller ones of their size: those
    take several devices or passes for a step, and the tokens may be of one."""
    longest: dict[float, dict[float, float]] = {}
    for row in np.asarray(last)[~numbers.diverged[last]]:
        size, batch, tokens = (
            numbers.values[name][row] for name in ("params", "batch_size", "tokens")
        )
        of_size = longest.setdefault(size, {})
        of_size[batch] = max(tokens, of_size.get(batch, 0.0))
    for size, of_size in longest.items():
        batches = sorted(of_size)
        ends = np.array([of_size[batch] for batch in batches])
        shares = ends[:-1] / ends[1:]
        if np.all(
            np.abs(shares / np.maximum(np.round(shares), 1.0) - 1.0) < SAME_TOKENS
        ) and np.any(shares > FEWER):
            at = int(np.argmax(shares > FEWER))
            numbers.warnings.append(
                f"{numbers.table.source}: at {size:.3g} parameters runs with a batch size of {batches[at + 1]:g} end at {ends[at + 1]:.3g} tokens, "
                f"and those with {batches[at]:g} at {round(shares[at])} times as many: if they were trained for as long, these are the tokens of "
                "one device or of one forward pass"
            )
            return


def run_of(numbers: Numbers, name: str, rows: Sequence[int]) -> Run:
    """The run of these rows. Evaluations of a diverged run without a loss are left out."""
    values = {column: array[list(rows)] for column, array in numbers.values.items()}
    seen = np.isfinite(values["loss"])
    last = {column: float(array[-1]) for column, array in values.items()}
    labels = {label: texts[rows[0]] for label, texts in numbers.labels.items()}
    return Run(
        name=name,
        params=last["params"],
        batch_size=last["batch_size"],
        sequence_length=int(last["sequence_length"]),
        learning_rate=last["learning_rate"],
        tokens=values["tokens"][seen],
        losses=values["loss"][seen],
        flops_per_token=last["flops"] / last["tokens"] if "flops" in last else None,
        bytes_per_token=last["bytes"] / last["tokens"] if "bytes" in last else None,
        diverged=bool(numbers.diverged[list(rows)].any()),
        # If a table names seeds, its runs of equal settings differ in nothing else.
        configuration=numbers.table.source if "seed" in numbers.labels else None,
        optimizer=labels.get("optimizer"),
        seed=labels.get("seed"),
    )
