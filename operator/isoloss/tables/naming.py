"""Which column of a table is which of ours: by options, else by the names that tools are known to use.

A table with all columns of ours is left as it is. Elsewhere nothing is guessed: two columns that could both be the
loss are an error, and so is a name that is not known. What was taken for what is part of the result.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isoloss.tables import known_names
from isoloss.tables.batch_sizes import refuse_part_of_batch
from isoloss.tables.cell_values import is_blank, text_of
from isoloss.tables.columns import (
    Columns,
    doubt_additions,
    doubt_scaled_rate,
    refuse_lower_rate,
    refuse_other_losses,
)
from isoloss.tables.evaluations import (
    RUN_STATES,
    diverged_runs,
    evaluations,
    warn_of_unfinished,
    without_missing,
)
from isoloss.tables.exports import in_long_form, is_panel
from isoloss.tables.expressions import Expression
from isoloss.tables.formats import OPTIONAL, REQUIRED, Table
from isoloss.tables.lookup import STEP, Found, Lookup
from isoloss.tables.recipes import is_watched, warn_of_differences
from isoloss.tables.run_names import run_columns, runs_of_rows
from isoloss.tables.run_settings import settings_of_rows
from isoloss.tables.step_counts import refuse_other_tokens

BESIDE = (
    *RUN_STATES,
    *known_names.BATCH_FACTORS,
    *(known_names.ROUTER_LOSS, *known_names.ADDED_TO_LOSS),
    *(known.name for tier in known_names.TIERS[STEP] for known in tier.names),
    *known_names.HELD_OUT,
    *known_names.LOGGED_RATES,
)
"""What is read beside our columns, though it is none of them."""


def _ours(header: Collection[str]) -> dict[str, str]:
    """Columns of ours by the name that they have, which a spreadsheet may write with capitals, spaces and hyphens."""
    plain = {name: name.lower().replace(" ", "_").replace("-", "_") for name in header}
    spelt = list(plain.values())
    return {
        name: own
        for name, own in plain.items()
        if own in REQUIRED + OPTIONAL and (name == own or spelt.count(own) == 1)
    }


@dataclass(frozen=True)
class Naming:
    """What the options say of columns."""

    expressions: tuple[Expression, ...] = ()
    settings: Table | None = None
    """One row for each run, with what the tables lack."""

    def is_ours(self, header: Collection[str]) -> bool:
        """Whether a table is read as it is."""
        ours = set(_ours(header).values())
        return not self.expressions and self.settings is None and set(REQUIRED) <= ours

    def completes(self, header: Collection[str]) -> bool:
        """Whether a table has our columns, apart from those that options give."""
        given = {each.column for each in self.expressions} - {"tokens", "loss"}
        return self.settings is None and set(REQUIRED) <= given | set(header)

    def in_use(self, header: Sequence[str]) -> Collection[str]:
        """The columns to be read."""
        once = [name for name in header if header.count(name) == 1]
        watched = {name for name in once if is_watched(name) or known_names.MUP.search(name)}
        if self.is_ours(header):
            beside = {name for name in once if known_names.bare(name)[0] in BESIDE}
            return {*_ours(header), *beside, *watched}
        known = [name for name in header if known_names.is_known(name) or name in OPTIONAL]
        named = {name for each in self.expressions for name in each.names_in(header)}
        if is_panel(header) or not any(run_columns(header)) or {"key", "value"} <= set(header):
            return header
        return {*known, *named, *watched, *RUN_STATES}


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
        own = {name: self.columns[name] for name in self.columns if name not in self.from_settings}
        parts = [f"{name}: {theirs}" for name, theirs in own.items() if theirs != name]
        same = [name for name, theirs in own.items() if theirs == name]
        parts += [f"as named: {', '.join(same)}"] if same else []
        if self.from_settings:
            bare = {name: known_names.bare(self.columns[name])[0] for name in self.from_settings}
            names = [
                n if n == theirs else f"{n} ({self.columns[n]})" for n, theirs in bare.items()
            ]
            parts.append(f"from {self.settings}: {', '.join(names)}")
        counts = {
            "without a loss": self.rows_without_loss,
            "that repeat another": self.rows_repeated,
        }
        parts += [f"rows {which}, skipped: {count}" for which, count in counts.items() if count]
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


def _as_it_is(table: Table) -> tuple[Table, ReadAs, Sequence[str]]:
    """A table with our columns; what trackers write beside them is compared with it. Raises BadTable."""
    ours = _ours(table.columns)
    columns = {ours.get(name, name): cells for name, cells in table.columns.items()}
    lookup = Lookup(table, [text_of(cell) for cell in columns["run"]], {}, "")
    refuse_other_losses(lookup, columns["loss"])
    refuse_lower_rate(lookup, Found("learning_rate", columns["learning_rate"]))
    refuse_part_of_batch(lookup, "batch_size")
    refuse_other_tokens(lookup, {name: Found(name, columns[name]) for name in REQUIRED})
    doubt_additions(lookup, "loss")
    doubt_scaled_rate(lookup, "learning_rate")
    warn_of_differences(lookup)
    if "diverged" not in columns:
        warn_of_unfinished(lookup, range(len(lookup.runs)))
    beside = (*RUN_STATES, *known_names.HELD_OUT)
    kept = {name: cells for name, cells in columns.items() if name not in beside}
    return replace(table, columns=kept), ReadAs(table.source, {}), lookup.warnings


def named(table: Table, naming: Naming) -> tuple[Table, ReadAs, Sequence[str]]:
    """The table under our names, one row per evaluation, what was taken for what, and warnings. Raises BadTable and BadInput."""
    if naming.is_ours(list(table.columns)):
        return _as_it_is(table)
    log = in_long_form(table)
    given = next((each for each in naming.expressions if each.column == "run"), None)
    run_label, runs = runs_of_rows(log, given)
    settings = settings_of_rows(runs, log, naming.settings)
    source = naming.settings.source if naming.settings else ""
    lookup = Lookup(log, runs, settings, source, naming.completes(log.columns))
    columns = Columns(lookup, naming.expressions)
    found = columns.required() | columns.optional()
    cells: dict[str, Sequence[Any]] = {"run": runs}
    cells |= {name: each.cells for name, each in found.items()}
    cells["loss"] = without_missing(lookup, cells["loss"], cells["tokens"])
    kept, repeated = evaluations(cells)
    if not kept:
        raise log.bad(0, "loss", f"no row has a loss ({found['loss'].label})")
    if "diverged" not in cells:
        cells |= diverged_runs(lookup, cells["loss"], kept)
        warn_of_unfinished(lookup, kept)
    warn_of_differences(lookup)
    read = ReadAs(
        log.source,
        {"run": run_label} | {name: each.label for name, each in found.items()},
        source,
        tuple(name for name, each in found.items() if each.is_setting),
        sum(map(is_blank, cells["loss"])),
        repeated,
    )
    rows = {name: [each[i] for i in kept] for name, each in cells.items()}
    return Table(log.source, rows, [log.rows[i] for i in kept]), read, lookup.warnings
