"""Tokens against optimizer steps, where a table has both."""

import math
from collections.abc import Mapping

from isoloss.tables import known_names
from isoloss.tables.cell_values import is_blank
from isoloss.tables.expressions import option, product_of
from isoloss.tables.formats import BadTable
from isoloss.tables.lookup import COUNTERS, STEP, Found, Lookup

SAME = 0.02
"""Relative difference of two counts of one number of tokens."""


def refuse_other_tokens(lookup: Lookup, columns: Mapping[str, Found]) -> None:
    """Raise BadTable where tokens and steps differ by a whole factor: that of devices, accumulation, or another sequence length.

    A step that may count log calls is believed if it agrees with the tokens of half of the runs, or is too many. Tokens that are logged
    with training losses alone tell what a step is, too: litgpt's are forward passes.
    """
    logged = lookup.of_tiers("tokens", quietly=True)
    tokens = columns["tokens"] if logged is None else logged
    are_beside = tokens.label == columns["tokens"].label
    try:
        step = lookup.of_tiers(STEP, quietly=True)
    except BadTable:  # which of two steps it is, is no question while there are tokens
        return
    if step is None:
        return
    counts = _counts(lookup, {**columns, "tokens": tokens}, step, losses_alone=are_beside)
    agreeing = {
        lookup.runs[index]: None
        for index, (by_steps, counted) in counts.items()
        if abs(by_steps / counted - 1) < SAME
    }
    runs = {lookup.runs[index] for index in counts}
    is_counter = known_names.bare(step.label)[0] in COUNTERS
    product = product_of(step.label, "batch_size", "sequence_length")
    if are_beside and is_counter and 2 * len(agreeing) < max(len(runs), 1):
        factors = [counted / by_steps for by_steps, counted in counts.values()]
        if not factors or max(factors) > (1.0 + SAME) * min(factors):
            return
        if factors[0] > 1.0:
            lookup.warn(
                f"{tokens.label} are {factors[0]:.4g} times {product} in every row: if {step.label} counts optimizer steps, and not "
                "log calls, batch_size is that of one device or of one forward pass"
            )
            return
        # No log has more calls than steps.
    for index, (by_steps, counted) in counts.items():
        ratio = max(by_steps / counted, counted / by_steps)
        if ratio < 1.9 or abs(ratio / round(ratio) - 1) > SAME:
            continue
        found = (
            f"{tokens.label} has {counted:g} tokens, and {product} are {by_steps:g}, {round(ratio)} times "
            f"{'as many' if by_steps > counted else 'fewer'}"
        )
        if not are_beside:
            passes = product_of(step.label, "SEQUENCES", "sequence_length")
            why = (
                ": one of them is of one device or of one forward pass. Say which is right: "
                f"{option('tokens', product)}, or {option('tokens', passes)} with those of one forward pass"
            )
        elif agreeing:
            why = (
                f"; the two agree in run {next(iter(agreeing))}: check the batch size and sequence length of run "
                f"{lookup.runs[index]}; if they are right, {option('tokens', tokens.label)}"
            )
        else:
            why = (
                ": one of them is of one device or of one forward pass. Say which is right: "
                f"{option('tokens', tokens.label)}, or {option('batch_size', 'EXPRESSION')}"
            )
        raise lookup.table.bad(index, "tokens", found + why)


def _counts(
    lookup: Lookup, columns: Mapping[str, Found], step: Found, *, losses_alone: bool
) -> dict[int, tuple[float, float]]:
    """Tokens by steps and tokens as counted, of the rows that have both (and a loss), those of the last row first if
    losses are elsewhere: litgpt counts passes from 0, which matters less and less."""
    found = {}
    names = ("batch_size", "sequence_length", "tokens", "loss")
    batch, length, tokens, loss = (columns[name].cells for name in names)
    rows = range(len(step.cells))
    for index in rows if losses_alone else rows[::-1]:
        if losses_alone and is_blank(loss[index]):
            continue
        try:
            cell = step.cells[index]
            by_steps = lookup.product("tokens", index, [cell, batch[index], length[index]])
            counted = lookup.number("tokens", index, tokens[index])
        except BadTable:  # what is no number in a column in use is refused with it
            continue
        if by_steps and counted and math.isfinite(max(by_steps / counted, counted / by_steps)):
            found[index] = by_steps, counted
    return found
