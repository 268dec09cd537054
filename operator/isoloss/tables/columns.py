"""The columns of ours, each from its option or from a known name of the log."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from isoloss.errors import BadInput
from isoloss.tables import known_names
from isoloss.tables.batch_sizes import batch_size_of
from isoloss.tables.cell_values import are_same, is_blank, text_of
from isoloss.tables.expressions import Expression, missing_name, near, option, product_of
from isoloss.tables.formats import OPTIONAL, REQUIRED, SETTINGS, BadTable
from isoloss.tables.lookup import COUNTERS, STEP, Found, Lookup
from isoloss.tables.step_counts import refuse_other_tokens

TEXTS = ("run", "diverged", "optimizer", "seed")
"""Columns that take another column as it is, and no arithmetic."""
OFF = ("", "0", "0.0", "false", "none", "null", "nan")
"""What settings say that add nothing."""
ALIKE = {
    "run": ("name",),
    "loss": ("value",),
    "params": ("parameters", "param", "n"),
    "batch_size": ("bs",),
    "sequence_length": ("seq", "len", "block", "ctx", "context"),
    "learning_rate": ("lr",),
    "tokens": ("token", "step", "d"),
}
"""Words in the names of columns that may be meant."""
HELD_OUT = re.compile(r"(?:.*[\W_])?(?:eval|val|valid|validation)[\W_](?:.*[\W_])?loss")
"""Names of losses on held-out texts that are not known, such as those on one of several."""
PERPLEXITY = re.compile(r"perplexity|(^|[\W_])ppl($|[\W_])", re.IGNORECASE)
LEFT = ("flops", "bytes", "seed")
"""Columns of ours that other tools use in other senses: only an option takes them from a table that is not ours."""


class Columns:
    """The columns of ours that a log has."""

    def __init__(self, lookup: Lookup, expressions: Sequence[Expression]) -> None:
        self.lookup = lookup
        self.given = {each.column: each for each in expressions}
        self._found: dict[str, Found | None] = {}
        self._open: list[str] = []
        """Columns whose expressions are being evaluated."""

    def required(self) -> dict[str, Found]:
        """All columns that a table must have, but for the run. Raises BadTable, naming each that is missing."""
        found: dict[str, Found | None] = {}
        refused: dict[str, BadTable] = {}
        for name in REQUIRED[1:]:
            try:
                found[name] = self.column(name)
            except BadTable as error:  # all that is to be done about a table is said at once
                refused[str(error)] = error
        there = {name: each for name, each in found.items() if each is not None}
        missing = [name for name in found if name not in there]
        if refused:
            raise self._refused(list(refused.values()), missing)
        if missing:
            raise self._missing(missing)
        if not {"tokens", "batch_size", "sequence_length"} & set(self.given):
            refuse_other_tokens(self.lookup, there)
        self._doubt_last_row(there)
        doubt_additions(self.lookup, there["loss"].label)
        doubt_scaled_rate(self.lookup, there["learning_rate"].label)
        return there

    def optional(self) -> dict[str, Found]:
        """Those that it may have."""
        found = {name: self._optional(name) for name in OPTIONAL}
        return {name: each for name, each in found.items() if each is not None}

    def column(self, name: str) -> Found | None:
        """A column of ours (or `step`), from its option or from a known name."""
        if name in self._found:
            return self._found[name]
        if name in self._open:
            # Known names alone lead nowhere in a circle.
            option_of = next(each for each in reversed(self._open) if each in self.given)
            raise BadInput(f"{self.given[option_of].option}: it depends on itself")
        self._open.append(name)
        try:
            found = self._evaluated(self.given[name]) if name in self.given else self._known(name)
        finally:
            self._open.pop()
        if found is not None and name in (*SETTINGS, "optimizer", "seed"):
            found = self._one_value_per_run(name, found)
        self._found[name] = found
        return found

    def _known(self, name: str) -> Found | None:
        if name == "loss":
            return self._loss()
        if name == "batch_size":
            return batch_size_of(self.lookup, lambda: self.column("sequence_length"))
        found = self.lookup.of_tiers(name)
        if name == "tokens" and (found is None or not self._is_beside_losses(found)):
            return self._tokens_of_steps() or found
        return found

    def _is_beside_losses(self, found: Found) -> bool:
        """Whether some row has both this and a loss: trainers may log tokens with training losses only."""
        loss = self.column("loss")
        return loss is None or any(
            not is_blank(cell) and not is_blank(other)
            for cell, other in zip(found.cells, loss.cells, strict=True)
        )

    def _optional(self, name: str) -> Found | None:
        if name in self.given:
            return self.column(name)
        found = self.lookup.setting(name)
        if found is None:
            return None
        if name in LEFT and not self.lookup.is_ours:
            if name == "seed" and len({text_of(cell) for cell in found.cells}) == 1:
                return None
            self.lookup.warn(
                f"the column {name} was not taken, as tools use the name in other senses: "
                f"--column {name}={name} takes it"
            )
            return None
        return self._one_value_per_run(name, found) if name == "optimizer" else found

    def _loss(self) -> Found | None:
        if self.lookup.is_ours:
            refuse_other_losses(self.lookup, self.lookup.table.columns["loss"])
        held_out, training = known_names.TIERS["loss"]
        found = self.lookup.of_tier("loss", held_out)
        bits = [name for name in known_names.BITS_PER_BYTE if self.lookup.has_logged(name)]
        if found is None and bits:
            raise self.lookup.refused(
                "loss",
                f"{bits[0]} is in bits per byte, nats per token are expected: multiply it by ln 2 and by the bytes per "
                f"token of the text it was measured on, as in {option('loss', product_of(bits[0], '0.6931', 'BYTES'))}",
            )
        found = found or self.lookup.of_tier("loss", training)
        for name in self.lookup.table.columns if found is None else ():
            if PERPLEXITY.search(name):
                raise self.lookup.refused(
                    "loss", f"{name} is exp(loss): write its natural logarithm, nats per token"
                )
        own = [
            name
            for name in self.lookup.table.columns
            if HELD_OUT.fullmatch(name) and not known_names.is_known(name)
        ]
        if found is not None and own:
            self.lookup.warn(
                f"{', '.join(own)[:300]} may be held-out losses: {option('loss', own[0])} takes one"
            )
        return found

    def _tokens_of_steps(self) -> Found | None:
        """Tokens after each step."""
        step, *sizes = (self.column(name) for name in (STEP, "batch_size", "sequence_length"))
        factors = [each for each in (step, *sizes) if each is not None]
        if step is None or len(factors) < 3:
            return None
        self._refuse_count_of_rows(step)
        cells = self.lookup.products("tokens", factors)
        return Found(f"{step.label}*batch_size*sequence_length", cells)

    def _refuse_count_of_rows(self, step: Found) -> None:
        """Raise BadTable where W&B or Trackio counted the rows of each run, as they do without a step of the trainer's."""
        if known_names.bare(step.label)[0] not in COUNTERS:
            return
        counts: dict[str, list[Any]] = {}
        for run, cell in zip(self.lookup.runs, step.cells, strict=True):
            counts.setdefault(run, []).append(cell)
        long = [cells for cells in counts.values() if len(cells) > 2]
        if long and all(_counts_up(cells) for cells in long):
            product = product_of(step.label, "batch_size", "sequence_length")
            raise self.lookup.refused(
                "tokens",
                f"{step.label} grows by one in each row of a run: it may count log calls, not optimizer steps. Name the column "
                f"with the steps or the tokens; if {step.label} is right, {option('tokens', product)}",
            )

    def _doubt_last_row(self, columns: dict[str, Found]) -> None:
        """Warn of a table with one row for each run: a tracker keeps the last value of each column by itself."""
        if "tokens" in self.given or not self.lookup.one_row_each or len(self.lookup.runs) < 2:
            return
        self.lookup.warn(
            f"one row for each run: its last {columns['loss'].label} and its last "
            f"{columns['tokens'].label} are taken for one evaluation; if training went on after it, bring the history"
        )

    def _one_value_per_run(self, name: str, found: Found) -> Found:
        """The run's value in all of its rows; of learning rates that vary, the highest."""
        if name == "learning_rate" and (peaks := self._peaks(found)):
            cells: list[Any] = [peaks.get(run) for run in self.lookup.runs]
            return replace(found, label=f"peak of {found.label}", cells=cells)
        if name == "learning_rate" and name not in self.given:
            refuse_lower_rate(self.lookup, found)
        first: dict[str, Any] = {}
        for run, cell in zip(self.lookup.runs, found.cells, strict=True):
            if not is_blank(cell):
                first.setdefault(run, cell)
        rows = zip(self.lookup.runs, found.cells, strict=True)
        return replace(found, cells=[first.get(r) if is_blank(cell) else cell for r, cell in rows])

    def _peaks(self, found: Found) -> dict[str, float]:
        """The highest learning rate of each run; empty if none varies."""
        rates: dict[str, list[float]] = {}
        for index, (run, cell) in enumerate(zip(self.lookup.runs, found.cells, strict=True)):
            rate = self.lookup.number("learning_rate", index, cell)
            if rate is not None and math.isfinite(rate):
                rates.setdefault(run, []).append(rate)
        peaks = {run: max(own) for run, own in rates.items()}
        varying = [run for run, own in rates.items() if min(own) < peaks[run]]
        # Without a first rise, the schedule may have been higher before the first value that was logged.
        falling = [run for run in varying if rates[run][0] == peaks[run]]
        if falling:
            # Without names, one warning does for files of one run each.
            where = f" in {len(falling)} runs, such as {falling[0]}" if len(rates) > 1 else ""
            self.lookup.warn(
                f"the learning rate ({found.label}) falls from its first value{where}: if its peak came before, give it with "
                "--column learning_rate=NAME or --settings"
            )
        return peaks if varying else {}

    def _refused(self, errors: Sequence[BadTable], missing: Sequence[str]) -> BadTable:
        """The error, or all of them in one, with what is missing besides."""
        first = errors[0]
        if len(errors) == 1 and not missing:
            return first
        parts = [
            f"{each.column}: {each.message}" if each.column else each.message for each in errors
        ]
        if missing:
            options = ", ".join(f"--column {name}=EXPRESSION" for name in missing)
            parts.append(f"also missing: {', '.join(missing)} ({options})")
        return BadTable(first.source, "; ".join(parts), row=first.row)

    def _missing(self, names: Sequence[str]) -> BadTable:
        """All that is missing, with names that are alike. Tokens of steps only lack what is missing beside them."""
        factors = {"batch_size", "sequence_length"} & set(names)
        if factors and self.column(STEP) is not None:
            names = [name for name in names if name != "tokens"]
        own = [name for name in self.lookup.table.columns if name]
        found = self.lookup.table.found()
        hints = []
        for name in names:
            there = own if name in ("loss", "tokens") else self.lookup.header()
            close = near(
                name, [each for each in there if each not in REQUIRED], ALIKE.get(name, ())
            )
            hints.append(f"--column {name}=EXPRESSION{close}")
        if len(names) == 1:
            text = f"missing; found {found}; name it: {hints[0]}"
        else:
            text = f"columns missing: {', '.join(names)}; found {found}; name them: {'; '.join(hints)}"
        if {"summary", "config"} <= set(own):
            text += (
                "; summary and config are dictionaries: write each of their entries as a column"
            )
        if set(names) == {"tokens", "loss"} and not self.lookup.settings:
            text += "; if it has settings alone: give it as --settings TABLE, beside the logs"
        if set(names) <= set(SETTINGS) and not self.lookup.settings:
            text += "; or give a table with one row for each run: --settings TABLE"
        column = names[0] if len(names) == 1 else None
        return BadTable(self.lookup.table.source, text, row=1, column=column)

    def _evaluated(self, expression: Expression) -> Found:
        header = dict.fromkeys([*self.lookup.header(), *REQUIRED, STEP])
        names = expression.names(header)
        operands = {name: self._operand(expression, name) for name in names}
        # A run of one row may have its tokens from anywhere, as there is one number.
        of_rows = expression.column == "loss" or (
            expression.column == "tokens" and not self.lookup.one_row_each
        )
        if of_rows and all(found.is_setting for found in operands.values()):
            raise self.lookup.refused(
                expression.column,
                f"{expression.option}: a column of the table itself is expected, with a value for each evaluation; found {self.lookup.table.found()}",
            )
        if expression.is_name(header):
            (found,) = operands.values()
            return found
        if expression.column in TEXTS:
            raise BadInput(
                f"{expression.option}: {expression.column} takes the name of one column"
            )
        # NaN is text where the table is of text: it was written, and not missing.
        first = [cell for own in self.lookup.table.columns.values() for cell in own[:1]]
        is_of_text = all(cell is None or isinstance(cell, str) for cell in first)
        cells: list[Any] = []
        for index in range(len(self.lookup.runs)):
            values = {
                name: self.lookup.number(expression.column, index, found.cells[index], name)
                for name, found in operands.items()
            }
            try:
                value = expression.value(values, header)
            except (ZeroDivisionError, OverflowError) as error:
                raise self.lookup.table.bad(
                    index,
                    expression.column,
                    f"{expression.text}: division by zero, or too large a number",
                ) from error
            is_written = is_of_text and value is not None and math.isnan(value)
            cells.append("NaN" if is_written else value)
        # A column of ours in it may itself be an option's; its own line says which.
        return Found(expression.text, cells)

    def _operand(self, expression: Expression, name: str) -> Found:
        """The column that a name in an expression means: ours where it is a setting or an option fills it, else the table's."""
        ours = name != expression.column and (name in REQUIRED[1:] or name == STEP)
        first = ours and (name in SETTINGS or name in self.given)
        if first and (found := self.column(name)) is not None:
            return found
        if name == "run" and expression.column != "run":
            raise BadInput(f"{expression.option}: run is a name, not a number")
        if columns := self.lookup.pool(name):
            return columns[0]
        if ours and (known := self.column(name)) is not None:
            return known
        message = missing_name(expression, name, self.lookup.header())
        if name in self.lookup.header():
            message = f"{expression.option}: no row has a value of {name}"
        raise BadTable(self.lookup.table.source, message, row=1)


def refuse_lower_rate(lookup: Lookup, asked: Found) -> None:
    """A run that is resumed with another learning rate may go on at the one it had: the log tells."""
    found = [each for name in known_names.LOGGED_RATES for each in lookup.pool(name, logged=True)]
    for logged in (each for each in found if each.cells is not asked.cells):
        for index, run in enumerate(lookup.runs):
            own, rate = (
                lookup.number("learning_rate", index, each.cells[index])
                for each in (asked, logged)
            )
            if own and rate and rate > 1.01 * own:
                raise lookup.refused(
                    "learning_rate",
                    f"{asked.label} is {own:g} for run {run}, which was trained at {rate:g} by {logged.label}: a run that "
                    "is resumed may go on at its old rate. Say which is right: "
                    f"{option('learning_rate', logged.label)} or {option('learning_rate', asked.label)}",
                )


def doubt_additions(lookup: Lookup, loss: str) -> None:
    """Warn of settings by which the loss may be more than the cross entropy, which laws are of."""
    found = lookup.setting(known_names.ROUTER_LOSS)
    if found is not None and "true" in {text_of(cell).lower() for cell in found.cells}:
        lookup.warn(
            f"{lookup.place(found)} is true: the Trainer adds router_aux_loss_coef times the routers' loss to {loss}, once for "
            "each forward pass, so gradient accumulation strengthens it. Subtract it, and compare runs of equal accumulation"
        )
    for name, added in known_names.ADDED_TO_LOSS.items():
        found = lookup.setting(name)
        values = {text_of(cell) for cell in found.cells} if found else set()
        given = sorted(value for value in values if value.lower() not in OFF)
        if found and given:
            lookup.warn(
                f"{lookup.place(found)} is {given[0]}: {loss} may have {added} in it, and the checkpoint's initial loss has "
                "not: if so, bring the cross entropy alone"
            )


def doubt_scaled_rate(lookup: Lookup, rate: str) -> None:
    """Warn of a rate that is scaled before it trains: by the batch size in nanochat, by each size's width with muP."""
    given = next((name for name in known_names.SCALED_RATES if name in rate), None)
    for name in known_names.TOKENS_PER_STEP if given else ():
        batch = lookup.setting(name)
        if batch and not all(are_same(cell, known_names.REFERENCE_BATCH) for cell in batch.cells):
            lookup.warn(
                f"learning_rate: nanochat logs {given} as it was given, and since January 2026 trains at {given} times the square root of "
                f"{name} / {known_names.REFERENCE_BATCH}: give a column with that product, unless the runs are older"
            )
    mup = [name for name in lookup.header() if known_names.MUP.search(name)]
    used = [each for name in mup for each in lookup.pool(name) if not _is_off(each)]
    if used:
        lookup.warn(
            f"learning_rate: with muP ({lookup.place(used[0])}) {rate} may be the base of which each size trains at its own share. If so, the "
            "answer is that base, for a run with the same parametrization alone"
        )


def _is_off(found: Found) -> bool:
    return {text_of(cell).lower() for cell in found.cells} <= set(OFF)


def refuse_other_losses(lookup: Lookup, losses: Sequence[Any]) -> None:
    """Raise BadTable where our column loss has other values than one that trackers call the held-out loss."""
    for name in known_names.HELD_OUT:
        theirs = [text_of(cell) for cell in lookup.table.columns.get(name, ())]
        if any(theirs) and theirs != [text_of(cell) for cell in losses]:
            raise lookup.refused(
                "loss",
                f"beside {name}, which trackers call the loss on held-out data, loss may be that on training data: give "
                f"{option('loss', name)}, or {option('loss', 'loss')} if that is the held-out one",
            )


def _counts_up(cells: Sequence[Any]) -> bool:
    """Whether these are 0, 1, 2, ... or 1, 2, 3, ..."""
    texts = [text_of(cell).removesuffix(".0") for cell in cells]
    return any(texts == [str(i) for i in range(first, first + len(texts))] for first in (0, 1))
