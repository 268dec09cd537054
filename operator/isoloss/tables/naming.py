"""Which column of a table is which of ours: by options, else by the names that tools are known to use.

A table with all columns of ours is left as it is. Elsewhere nothing is guessed: two columns that could both be the
loss are an error, and so is a name that is not known. What was taken for what is part of the result.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isoloss.errors import BadInput
from isoloss.tables import known_names
from isoloss.tables.exports import in_long_form, is_blank, is_panel, run_of_file
from isoloss.tables.expressions import Expression, missing_name, near
from isoloss.tables.formats import OPTIONAL, REQUIRED, TRAINER_STATE, BadTable, Table
from isoloss.tables.known_names import Kind, Tier

PER_RUN = ("params", "batch_size", "sequence_length", "learning_rate")
"""Columns of numbers with one value for each run, which a log may have in a few of its rows."""
TEXTS = ("run", "diverged", "optimizer", "seed")
"""Columns that take another column as it is, and no arithmetic."""
STEP = "step"
"""A name that expressions may use, beside columns of the table and of ours."""
ALIKE = {
    "run": ("name",),
    "loss": ("value",),
    "params": ("parameters", "param"),
    "sequence_length": ("seq", "len", "block"),
    "learning_rate": ("lr",),
    "tokens": ("token", "step"),
}
"""Words in the names of columns that may be meant."""
COUNTERS = ("_step", "Step", "step")
"""Of W&B and Trackio: log calls, unless the trainer says the step."""
LEFT = ("flops", "bytes", "seed")
"""Columns of ours that other tools use in other senses: only an option takes them from a table that is not ours."""


@dataclass(frozen=True)
class Naming:
    """What the options say of columns."""

    expressions: tuple[Expression, ...] = ()
    settings: Table | None = None
    """One row for each run, with what the tables lack."""

    def is_ours(self, header: Collection[str]) -> bool:
        """Whether a table is read as it is."""
        return not self.expressions and self.settings is None and set(REQUIRED) <= set(header)

    def in_use(self, header: Sequence[str]) -> Collection[str]:
        """The columns to be read."""
        if self.is_ours(header):
            return REQUIRED + OPTIONAL
        known = [name for name in header if known_names.is_known(name) or name in OPTIONAL]
        named = {name for each in self.expressions for name in each.names(header)}
        if is_panel(header) or not any(_run_columns(header)) or {"key", "value"} <= set(header):
            return header
        return {*known, *named}


@dataclass(frozen=True)
class ReadAs:
    """What a table's columns were taken for."""

    source: str
    columns: Mapping[str, str]
    """By column of ours: a column of the table, or an expression. Empty for a table with our columns."""
    settings: str = ""
    """The table of `--settings`."""
    from_settings: tuple[str, ...] = ()
    """Columns of ours that came from it."""
    rows_without_loss: int = 0
    rows_repeated: int = 0

    def in_words(self) -> str:
        """One line."""
        own = {
            name: theirs for name, theirs in self.columns.items() if name not in self.from_settings
        }
        parts = [f"{name}: {theirs}" for name, theirs in own.items() if theirs != name]
        same = [name for name, theirs in own.items() if theirs == name]
        parts += [f"as named: {', '.join(same)}"] if same else []
        if self.from_settings:
            names = [
                name
                if known_names.bare(self.columns[name])[0] == name
                else f"{name} ({self.columns[name]})"
                for name in self.from_settings
            ]
            parts.append(f"from {self.settings}: {', '.join(names)}")
        if self.rows_without_loss:
            parts.append(f"rows without a loss, skipped: {self.rows_without_loss}")
        if self.rows_repeated:
            parts.append(f"rows that repeat another, skipped: {self.rows_repeated}")
        return f"{self.source}: {'; '.join(parts)}"


def together(tables: Sequence[ReadAs]) -> ReadAs:
    """Tables with the same columns, as one."""
    first, *others = tables
    more = f" and {len(others)} more" if others else ""
    return replace(
        first,
        source=first.source + more,
        rows_without_loss=sum(each.rows_without_loss for each in tables),
        rows_repeated=sum(each.rows_repeated for each in tables),
    )


def warnings_together(warnings: Iterable[tuple[str, str]]) -> list[str]:
    """Warnings by source: one that many tables have is said once."""
    sources: dict[str, list[str]] = {}
    for source, warning in warnings:
        sources.setdefault(warning.removeprefix(f"{source}: "), []).append(source)
    return [
        f"{first}{f' and {len(others)} more' if others else ''}: {text}"
        for text, (first, *others) in sources.items()
    ]


@dataclass(frozen=True)
class Named:
    """A table under our names."""

    table: Table
    read: ReadAs
    warnings: tuple[str, ...] = ()


def named(table: Table, naming: Naming) -> Named:
    """The table under our names, one row per evaluation. Raises BadTable and BadInput."""
    if naming.is_ours(list(table.columns)):
        return Named(table, ReadAs(table.source, {}))
    long = in_long_form(table)
    run_label, runs = _runs(long, naming)
    return _Reading(long, naming, run_label, runs).result()


@dataclass(frozen=True)
class _Found:
    """Cells for a column of ours, one for each row of the table."""

    label: str
    cells: Sequence[Any]
    is_setting: bool = False
    """From the table of settings."""

    def in_full(self, settings: Table | None) -> str:
        """Its label, with the table of settings."""
        return f"{self.label} ({settings.source})" if self.is_setting and settings else self.label


@dataclass
class _Reading:
    """One table on its way to our names."""

    table: Table
    naming: Naming
    run_label: str
    runs: Sequence[str]
    warnings: list[str] = field(default_factory=list)
    found: dict[str, _Found | None] = field(default_factory=dict)
    """None: no column is known to be this one."""
    open: list[str] = field(default_factory=list)
    """Columns whose expressions are being evaluated."""

    def __post_init__(self) -> None:
        self.given = {each.column: each for each in self.naming.expressions}
        self.settings = _settings_of(self.runs, self.table, self.naming)
        self.one_row_each = len(set(self.runs)) == len(self.runs)

    # -------------------------------------------------------------------------------- the result

    def result(self) -> Named:
        wanted = REQUIRED[1:]
        columns = {name: self.column(name) for name in wanted}
        missing = [name for name, cells in columns.items() if cells is None]
        if missing:
            raise self._missing(missing)
        for name in OPTIONAL:
            columns[name] = self._optional(name)
        taken = {"run": self.run_label}
        taken |= {name: cells.label for name, cells in columns.items() if cells is not None}
        cells: dict[str, Sequence[Any]] = {"run": self.runs}
        cells |= {name: each.cells for name, each in columns.items() if each is not None}
        kept, repeated = self._evaluations(cells)
        skipped = sum(map(is_blank, cells["loss"]))
        if not kept:
            raise self.table.bad(0, "loss", f"no row has a loss ({taken['loss']})")
        if "diverged" not in cells:
            cells |= self._diverged(cells["loss"], kept)
        out = Table(
            self.table.source,
            {name: [each[i] for i in kept] for name, each in cells.items()},
            [self.table.rows[i] for i in kept],
        )
        settings = self.naming.settings
        read = ReadAs(
            self.table.source,
            taken,
            settings.source if settings else "",
            tuple(name for name, each in columns.items() if each is not None and each.is_setting),
            skipped,
            repeated,
        )
        return Named(out, read, tuple(self.warnings))

    def _evaluations(self, cells: Mapping[str, Sequence[Any]]) -> tuple[list[int], int]:
        """Rows with a loss, and how many repeat another: a Trainer evaluates its last step twice."""
        kept: list[int] = []
        seen: set[tuple[str, ...]] = set()
        repeated = 0
        for index, loss in enumerate(cells["loss"]):
            if is_blank(loss):
                continue
            row = tuple(str(cells[name][index]) for name in REQUIRED)
            if row in seen:
                repeated += 1
                continue
            seen.add(row)
            kept.append(index)
        return kept, repeated

    def _diverged(self, losses: Sequence[Any], kept: Iterable[int]) -> dict[str, list[str]]:
        """Runs whose loss was written as NaN or infinity have diverged; a number that is missing says nothing."""
        gone = {self.runs[i] for i in kept if isinstance(losses[i], str) and _is_nan(losses[i])}
        if not gone:
            return {}
        names = ", ".join(sorted(gone)[:5]) + (", ..." if len(gone) > 5 else "")
        self.warnings.append(
            f"{self.table.source}: runs with a loss of NaN or infinity, taken as diverged: {len(gone)} ({names})"
        )
        return {"diverged": [str(run in gone).lower() for run in self.runs]}

    def _missing(self, names: Sequence[str]) -> BadTable:
        """All that is missing, with names that are alike. Tokens of steps only lack what is missing beside them."""
        factors = {"batch_size", "sequence_length"} & set(names)
        if factors and self.column(STEP) is not None:
            names = [name for name in names if name != "tokens"]
        own = [name for name in self.table.columns if name]
        found = ", ".join(own)[:300]
        hints = []
        for name in names:
            there = own if name in ("loss", "tokens") else self._header()
            close = near(
                name, [each for each in there if each not in REQUIRED], ALIKE.get(name, ())
            )
            hints.append(f"--column {name}=EXPRESSION{close}")
        if len(names) == 1:
            text = f"missing; found {found}; name it: {hints[0]}"
        else:
            text = f"columns missing: {', '.join(names)}; found {found}; name them: {'; '.join(hints)}"
        if set(names) <= set(PER_RUN) and self.naming.settings is None:
            text += "; or give a table with one row for each run: --settings TABLE"
        column = names[0] if len(names) == 1 else None
        return BadTable(self.table.source, text, row=1, column=column)

    def _header(self) -> list[str]:
        return [
            *filter(None, self.table.columns),
            *(n for n in self.settings if n not in self.table.columns),
        ]

    # ------------------------------------------------------------------------------ columns of ours

    def column(self, name: str) -> _Found | None:
        """A column of ours (or `step`), from its option or from a known name."""
        if name in self.found:
            return self.found[name]
        if name in self.open:
            raise BadInput(f"{self.given[name].option}: it depends on itself")
        self.open.append(name)
        found = self._evaluated(self.given[name]) if name in self.given else self._known(name)
        self.open.pop()
        if found is not None and name in (*PER_RUN, "optimizer", "seed"):
            found = self._one_value_per_run(name, found)
        self.found[name] = found
        return found

    def _known(self, name: str) -> _Found | None:
        if name == "loss":
            return self._loss()
        if name == "batch_size":
            return self._batch_size()
        found = self._of_tiers(name)
        if name == "tokens" and found is None:
            return self._tokens_of_steps()
        return found

    def _optional(self, name: str) -> _Found | None:
        if name in self.given:
            return self.column(name)
        found = self._setting(name)
        if found is None:
            return None
        if name in LEFT:
            self.warnings.append(
                f"{self.table.source}: the column {name} was not taken, as tools use the name in other senses: "
                f"--column {name}={name} takes it"
            )
            return None
        return self._one_value_per_run(name, found) if name == "optimizer" else found

    def _loss(self) -> _Found | None:
        held_out, training = known_names.TIERS["loss"]
        found = self._of_tier("loss", held_out)
        if found is not None:
            return found
        bits = [name for name in known_names.BITS_PER_BYTE if self._logged(name)]
        if bits:
            raise BadTable(
                self.table.source,
                f"{bits[0]} is in bits per byte, nats per token are expected: multiply it by ln 2 and by the bytes per "
                f"token of the text it was measured on, as in {_option('loss', _product(bits[0], '0.6931', 'BYTES'))}",
                row=1,
                column="loss",
            )
        return self._of_tier("loss", training)

    def _tokens_of_steps(self) -> _Found | None:
        """Tokens after each step."""
        factors = [self.column(name) for name in (STEP, "batch_size", "sequence_length")]
        if None in factors:
            return None
        step, batch, length = (each for each in factors if each is not None)
        self._refuse_count_of_rows(step)
        cells = [
            self._product(
                "tokens", index, [step.cells[index], batch.cells[index], length.cells[index]]
            )
            for index in range(len(self.runs))
        ]
        return _Found(f"{step.label}*batch_size*sequence_length", cells)

    def _refuse_count_of_rows(self, step: _Found) -> None:
        """Raise BadTable where W&B or Trackio counted the rows of each run, as they do without a step of the trainer's."""
        if known_names.bare(step.label)[0] not in COUNTERS:
            return
        counts: dict[str, list[Any]] = {}
        for run, cell in zip(self.runs, step.cells, strict=True):
            counts.setdefault(run, []).append(cell)
        long = [cells for cells in counts.values() if len(cells) > 2]
        if long and all(_counts_up(cells) for cells in long):
            product = _product(step.label, "batch_size", "sequence_length")
            raise BadTable(
                self.table.source,
                f"{step.label} is one more in each row of a run: it may count log calls, not optimizer steps. Name the column "
                f"with the steps or the tokens; if {step.label} is right, {_option('tokens', product)}",
                row=1,
                column="tokens",
            )

    def _batch_size(self) -> _Found | None:
        """Sequences per optimizer step. Never those of one device without the number of devices."""
        found = self._of_tiers("batch_size")
        if found is not None:
            if known_names.bare(found.label)[0] == "batch_size":
                self._refuse_part_of_batch(found.label)
            return found
        length = self.column("sequence_length")
        for name in known_names.TOKENS_PER_STEP:
            if length is not None and (tokens := self._setting(name)) is not None:
                return self._quotient(tokens, length)
        for name in known_names.PER_DEVICE:
            if (part := self._setting(name)) is not None:
                return self._of_all_devices(part)
        return None

    def _refuse_part_of_batch(self, label: str) -> None:
        """Raise BadTable where batch_size may be what one device takes at once."""
        for name in (*known_names.ACCUMULATION, *known_names.DEVICES):
            factor = self._setting(name)
            if factor is not None and any(
                not is_blank(cell) and str(cell) not in ("1", "1.0") for cell in factor.cells
            ):
                raise BadTable(
                    self.table.source,
                    f"with a column {factor.label}, {label} may be the batch of one device or of one forward pass; sequences "
                    f"per optimizer step are expected: say which, as in {_option('batch_size', 'batch_size')} or "
                    f"{_option('batch_size', _product('batch_size', factor.label))}",
                    row=1,
                    column="batch_size",
                )

    def _of_all_devices(self, part: _Found) -> _Found:
        """The product of the batch of one device, accumulation steps and devices. Raises BadTable if one is missing."""
        steps = list(filter(None, map(self._setting, known_names.ACCUMULATION)))
        devices = list(filter(None, map(self._setting, known_names.DEVICES)))
        if len(steps) != 1 or len(devices) != 1:
            names = [
                part.label,
                steps[0].label if steps else "ACCUMULATION",
                devices[0].label if devices else "DEVICES",
            ]
            raise BadTable(
                self.table.source,
                f"{part.label} is the batch of one device: give the sequences per optimizer step, as in "
                f"{_option('batch_size', _product(*names))} with the numbers for the names in capitals",
                row=1,
                column="batch_size",
            )
        factors = [part, *steps, *devices]
        cells = [
            self._product("batch_size", index, [each.cells[index] for each in factors])
            for index in range(len(self.runs))
        ]
        return _Found("*".join(each.label for each in factors), cells)

    def _quotient(self, tokens: _Found, length: _Found) -> _Found:
        cells: list[Any] = []
        for index, (over, under) in enumerate(zip(tokens.cells, length.cells, strict=True)):
            first = self._number("batch_size", index, over)
            second = self._number("batch_size", index, under)
            cells.append(None if first is None or not second else first / second)
        return _Found(f"{tokens.label}/sequence_length", cells)

    def _one_value_per_run(self, name: str, found: _Found) -> _Found:
        """The run's value in all of its rows; of learning rates that vary, the highest."""
        first: dict[str, Any] = {}
        peak: dict[str, float] = {}
        start: dict[str, float] = {}
        varies = False
        for index, (run, cell) in enumerate(zip(self.runs, found.cells, strict=True)):
            if is_blank(cell):
                continue
            first.setdefault(run, cell)
            if name == "learning_rate":
                value = self._number(name, index, cell)
                if value is None or not math.isfinite(value):
                    continue
                start.setdefault(run, value)
                varies = varies or value != start[run]
                peak[run] = max(peak.get(run, value), value)
        if varies:
            # Without a first rise, the schedule may have been higher before the first value that was logged.
            falling = [run for run in peak if peak[run] == start[run] and self._varies(run, found)]
            if falling:
                self.warnings.append(
                    f"{self.table.source}: the learning rate ({found.label}) falls from its first value in {len(falling)} "
                    f"runs, such as {falling[0]}: if its peak came before, give it with --column learning_rate=NAME or --settings"
                )
            return replace(
                found,
                label=f"peak of {found.label}",
                cells=[peak.get(run) for run in self.runs],
            )
        cells = [
            first.get(run) if is_blank(cell) else cell
            for run, cell in zip(self.runs, found.cells, strict=True)
        ]
        return replace(found, cells=cells)

    def _varies(self, run: str, found: _Found) -> bool:
        own = {
            float(cell)
            for each, cell in zip(self.runs, found.cells, strict=True)
            if each == run and not is_blank(cell)
        }
        return len(own) > 1

    # ------------------------------------------------------------------------------ known names

    def _of_tiers(self, name: str) -> _Found | None:
        for tier in known_names.TIERS.get(name, ()):
            if (found := self._of_tier(name, tier)) is not None:
                return found
        return None

    def _of_tier(self, name: str, tier: Tier) -> _Found | None:
        """The column of one of these names. Raises BadTable if two of them differ."""
        places = [
            (column, known)
            for known in tier.names
            for column in self._names()
            if known_names.is_of(column, known, tier.kind)
        ]
        candidates = [
            (found, column, known)
            for column, known in dict(places).items()
            for found in self._candidates(name, column, tier.kind)
        ]
        if not candidates:
            return None
        found, column, known = candidates[0]
        for other, other_column, _ in candidates[1:]:
            self._refuse_difference(name, (found, column), (other, other_column))
        if name == "learning_rate" and tier.kind is Kind.LOGGED:
            self._refuse_last_of_schedule(found, column)
        elif known.doubt:
            self._doubt(name, found, known.doubt)
        elif name == STEP and column == STEP and "timestamp" in self.table.columns:
            self._doubt(name, found, known_names.IN_TRACKIO)
        return found

    def _doubt(self, name: str, found: _Found, doubt: str) -> None:
        where = found.in_full(self.naming.settings)
        self.warnings.append(f"{self.table.source}: {name}: {where} {doubt}")

    def _candidates(self, name: str, column: str, kind: Kind) -> list[_Found]:
        """What a known column can be in the two tables."""
        if kind is Kind.LOGGED:
            own = self._pool(column, logged=True)
            # The settings of a run may have the last value of what it logged.
            return own or (self._pool(column) if name == "learning_rate" else [])
        both = self._pool(column, first_settings=True)
        if name == "learning_rate" and len(both) > 1 and self._is_schedule(both[1]):
            return both[:1]
        return both

    def _is_schedule(self, found: _Found) -> bool:
        """Whether a column varies within a run."""
        values: dict[str, Any] = {}
        return any(
            not is_blank(cell) and not _same(values.setdefault(run, cell), cell)
            for run, cell in zip(self.runs, found.cells, strict=True)
        )

    def _refuse_last_of_schedule(self, found: _Found, column: str) -> None:
        """A logged learning rate with one value for each run is its last one: refused, or in doubt for a name of settings."""
        if not (self.one_row_each or found.is_setting):
            return
        if known_names.bare(column)[0] == "lr":
            self._doubt("learning_rate", found, known_names.ANY_LR)
            return
        raise BadTable(
            self.table.source,
            f"{found.label} is logged, and of each run there is one value: the schedule's last one, not its peak. Give the peak, "
            f"as in {_option('learning_rate', 'NAME')}; if it was constant, {_option('learning_rate', column)}",
            row=1,
            column="learning_rate",
        )

    def _refuse_difference(
        self, name: str, one: tuple[_Found, str], other: tuple[_Found, str]
    ) -> None:
        for index, (first, second) in enumerate(zip(one[0].cells, other[0].cells, strict=True)):
            if is_blank(first) or is_blank(second) or _same(first, second):
                continue
            options = " or ".join(dict.fromkeys((_option(name, one[1]), _option(name, other[1]))))
            raise self.table.bad(
                index,
                name,
                f"{one[0].in_full(self.naming.settings)} ({first}) and {other[0].in_full(self.naming.settings)} ({second}) could both be it: say which, {options}",
            )
        if name == "loss" and all(
            is_blank(first) or is_blank(second)
            for first, second in zip(one[0].cells, other[0].cells, strict=True)
        ):
            options = f"{_option(name, one[1])} or {_option(name, other[1])}"
            raise BadTable(
                self.table.source,
                f"{one[0].label} and {other[0].label} could both be it: say which, {options}",
                row=1,
                column=name,
            )

    def _names(self) -> list[str]:
        """Columns of both tables."""
        return list(dict.fromkeys([*self.table.columns, *self.settings]))

    def _pool(
        self, column: str, *, first_settings: bool = False, logged: bool = False
    ) -> list[_Found]:
        """The columns of this name with a value, in the settings and in the table itself."""
        found = []
        if column in self.table.columns:
            found.append(_Found(column, self.table.columns[column]))
        if column in self.settings and not logged:
            found.append(_Found(column, self.settings[column], is_setting=True))
        if first_settings:
            found.reverse()
        return [each for each in found if not all(map(is_blank, each.cells))]

    def _setting(self, name: str) -> _Found | None:
        """A column of this name as it is or with the prefix of a setting."""
        for column in self._names():
            bare, kind = known_names.bare(column)
            if (
                bare == name
                and kind is not Kind.LOGGED
                and (found := self._pool(column, first_settings=True))
            ):
                return found[0]
        return None

    def _logged(self, name: str) -> bool:
        """Whether the table has a logged column of this name with a value."""
        return any(
            known_names.bare(column)[0] == name
            and known_names.bare(column)[1] is not Kind.SETTING
            and self._pool(column, logged=True)
            for column in self.table.columns
        )

    # ------------------------------------------------------------------------------ expressions

    def _evaluated(self, expression: Expression) -> _Found:
        header = dict.fromkeys([*self._header(), *REQUIRED, STEP])
        names = expression.names(header)
        operands = {name: self._operand(expression, name, header) for name in names}
        # A run of one row may have its tokens from anywhere, as there is one number.
        of_rows = expression.column == "loss" or (
            expression.column == "tokens" and not self.one_row_each
        )
        if of_rows and all(found.is_setting for found in operands.values()):
            there = ", ".join(name for name in self.table.columns if name)[:300]
            raise BadTable(
                self.table.source,
                f"{expression.option}: a column of the table itself is expected, with a value for each evaluation; found {there}",
                row=1,
                column=expression.column,
            )
        if expression.is_name(header):
            (found,) = operands.values()
            return found
        if expression.column in TEXTS:
            raise BadInput(
                f"{expression.option}: {expression.column} takes the name of one column"
            )
        cells: list[Any] = []
        for index in range(len(self.runs)):
            values = {
                name: self._number(expression.column, index, found.cells[index], name)
                for name, found in operands.items()
            }
            try:
                value = expression.value(values, header)
            except (ZeroDivisionError, OverflowError) as error:
                raise self.table.bad(
                    index, expression.column, f"{expression.text}: {error}"
                ) from None
            cells.append(self._as_written(value))
        # A column of ours in it may itself be an option's; its own line says which.
        return _Found(expression.text, cells)

    def _as_written(self, value: float | None) -> float | str | None:
        """NaN as text where the table is of text: it was written, and not missing."""
        if value is not None and math.isnan(value) and self._of_text:
            return "NaN"
        return value

    @property
    def _of_text(self) -> bool:
        return all(
            cell is None or isinstance(cell, str)
            for cells in self.table.columns.values()
            for cell in cells[:1]
        )

    def _operand(self, expression: Expression, name: str, header: Collection[str]) -> _Found:
        """The column that a name in an expression means: ours where an option fills it, else the table's."""
        ours = name != expression.column and (name in REQUIRED[1:] or name == STEP)
        if ours and name in self.given:
            found = self.column(name)
            assert found is not None
            return found
        if name == "run" and expression.column != "run":
            raise BadInput(f"{expression.option}: run is a name, not a number")
        if columns := self._pool(name):
            return columns[0]
        if ours and (known := self.column(name)) is not None:
            return known
        if name in self.table.columns or name in self.settings:
            raise BadTable(
                self.table.source, f"{expression.option}: no row has a value of {name}", row=1
            )
        raise BadTable(self.table.source, missing_name(expression, name, self._header()), row=1)

    def _number(self, column: str, index: int, cell: Any, name: str = "") -> float | None:
        """A cell as a number; None for an empty one. Raises BadTable."""
        if is_blank(cell):
            return None
        try:
            if isinstance(cell, bool) or "_" in str(cell):
                raise ValueError
            return float(cell)
        except (TypeError, ValueError, OverflowError):
            where = f" ({name})" if name and name != column else ""
            message = f"{str(cell)[:40]!r}{where} is not a number"
            raise self.table.bad(index, column, message) from None

    def _product(self, column: str, index: int, cells: Sequence[Any]) -> float | None:
        numbers = [self._number(column, index, cell) for cell in cells]
        if None in numbers:
            return None
        return math.prod(number for number in numbers if number is not None)


# -------------------------------------------------------------------------------- names of runs


def _run_columns(header: Iterable[str]) -> list[str]:
    """Columns with names of runs, the best first."""
    names = list(header)
    return [name for name in known_names.RUN if name in names]


def _runs(table: Table, naming: Naming) -> tuple[str, list[str]]:
    """Where the names of runs are from, and that of each row. Raises BadTable."""
    given = next((each for each in naming.expressions if each.column == "run"), None)
    if given is not None:
        names = given.names(table.columns)
        if not given.is_name(table.columns):
            raise BadInput(f"{given.option}: run takes the name of one column")
        if names[0] not in table.columns:
            message = missing_name(given, names[0], list(table.columns))
            raise BadTable(table.source, message, row=1)
        columns = [names[0]]
    else:
        columns = _run_columns(table.columns)
    for column in columns:
        if not all(map(is_blank, table.columns[column])):
            return column, [_text(cell) for cell in table.columns[column]]
    return _one_run(table)


def _one_run(table: Table) -> tuple[str, list[str]]:
    """The name of the file, for the history of one run. Raises BadTable for a table of several."""
    name = run_of_file(table.source)
    header = [column for column in table.columns if column]
    found = ", ".join(header)[:300]
    steps = [
        column
        for column in header
        for tier in known_names.TIERS[STEP]
        if any(known_names.is_of(column, known, tier.kind) for known in tier.names)
    ]
    texts = [column for column in header if _tells_rows_apart(table.columns[column])]
    if name is None or not steps or texts:
        hint = near("run", texts or header)
        which = f"; name it, as in {_option('run', texts[0])}" if texts else ""
        message = f"missing; found {found}{which or hint}"
        raise BadTable(table.source, message, row=1, column="run")
    is_log = table.source.lower().endswith(TRAINER_STATE)
    return f"the {'folder' if is_log else 'file'}'s name", [name] * len(table.rows)


def _tells_rows_apart(cells: Sequence[Any]) -> bool:
    """Whether a column has several words, one in each row, as names of runs are."""
    words = {_text(cell) for cell in cells}
    return len(words) > 1 and not any(is_blank(word) or _is_number(word) for word in words)


# --------------------------------------------------------------------------------- settings


def _settings_of(runs: Sequence[str], table: Table, naming: Naming) -> Mapping[str, Sequence[Any]]:
    """The settings' columns, with a cell for each row of the table. Raises BadTable."""
    settings = naming.settings
    if settings is None:
        return {}
    wanted = dict.fromkeys(run for run in runs if run)
    keys = _run_columns(settings.columns)
    if not keys:
        found = ", ".join(settings.columns)[:300]
        raise BadTable(settings.source, f"missing; found {found}", row=1, column="run")
    places = {key: _places(settings, key) for key in keys}
    key = next((key for key in keys if set(wanted) <= set(places[key])), None)
    if key is None:
        absent = next(run for run in wanted if run not in places[keys[0]])
        there = ", ".join(places[keys[0]])[:200]
        raise BadTable(
            settings.source,
            f"no row for run {absent!r} of {table.source}{near(absent, places[keys[0]])}; there are {there}",
            column=keys[0],
        )
    for run in wanted:
        if len(places[key][run]) > 1:
            first, second = (settings.rows[i] for i in places[key][run][:2])
            message = f"run {run!r} is in rows {first} and {second}: one row per run is expected"
            raise BadTable(settings.source, message, row=second, column=key)
    return {
        column: [cells[places[key][run][0]] if run else None for run in runs]
        for column, cells in settings.columns.items()
        if column and column not in keys and len(cells)
    }


def _places(settings: Table, key: str) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for index, cell in enumerate(settings.columns[key]):
        if not is_blank(cell):
            places.setdefault(_text(cell), []).append(index)
    return places


# --------------------------------------------------------------------------------- cells


def _text(cell: Any) -> str:
    if isinstance(cell, bytes):
        return cell.decode(errors="backslashreplace").strip()
    return "" if cell is None else str(cell).strip()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_nan(text: str) -> bool:
    return _is_number(text) and not math.isfinite(float(text))


def _counts_up(cells: Sequence[Any]) -> bool:
    """Whether these are 0, 1, 2, ... or 1, 2, 3, ..."""
    texts = [_text(cell).removesuffix(".0") for cell in cells]
    return any(texts == [str(i) for i in range(first, first + len(texts))] for first in (0, 1))


def _same(first: Any, second: Any) -> bool:
    if str(first) == str(second):
        return True
    try:
        return float(first) == float(second)
    except (TypeError, ValueError):
        return False


def _option(column: str, expression: str) -> str:
    """An option as it is typed into a shell."""
    return f"--column {shlex.quote(f'{column}={expression}')}"


def _product(*names: str) -> str:
    """A product, names that are no words in quotes."""
    return "*".join(
        name if name.isidentifier() or _is_number(name) else f"'{name}'" for name in names
    )
