"""A log and its settings, looked through for the names that tools are known to use. Two columns that differ are an error."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isoloss.tables import known_names
from isoloss.tables.cell_values import are_same, is_blank, not_a_number, number_of
from isoloss.tables.expressions import option
from isoloss.tables.formats import BadTable, Table
from isoloss.tables.known_names import Kind, Tier

STEP = "step"
"""What the optimizer step is called here: no column of ours, but tokens are computed with it."""
COUNTERS = ("_step", "Step", "step")
"""Of W&B and Trackio: log calls, unless the trainer says the step."""


@dataclass(frozen=True)
class Found:
    """Cells for a column of ours, one for each row of the log."""

    label: str
    cells: Sequence[Any]
    is_setting: bool = False
    """From the table of settings."""


@dataclass
class Lookup:
    """The columns of a log, and of the settings of each row's run."""

    table: Table
    runs: Sequence[str]
    """The run of each row."""
    settings: Mapping[str, Sequence[Any]]
    settings_source: str
    is_ours: bool = False
    """Whether the table has our columns, apart from those that options give: loss is then the held-out one."""
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.one_row_each = len(set(self.runs)) == len(self.runs)

    def header(self) -> list[str]:
        """The columns of both, those of the log first."""
        return list(dict.fromkeys([*filter(None, self.table.columns), *self.settings]))

    def refused(self, column: str, message: str) -> BadTable:
        """The error about a whole column of ours, to raise."""
        return BadTable(self.table.source, message, row=1, column=column)

    def warn(self, message: str) -> None:
        """Warn of something in the table."""
        self.warnings.append(f"{self.table.source}: {message}")

    def doubt(self, name: str, found: Found, doubt: str) -> None:
        """Warn about what was taken for a column of ours."""
        self.warn(f"{name}: {self.place(found)} {doubt}")

    def place(self, found: Found) -> str:
        """The column's label, with the table of settings."""
        return f"{found.label} ({self.settings_source})" if found.is_setting else found.label

    # ------------------------------------------------------------------------------- columns

    def pool(
        self, column: str, *, first_settings: bool = False, logged: bool = False
    ) -> list[Found]:
        """The columns of this name with a value, in the settings and in the table itself."""
        found = []
        if column in self.table.columns:
            found.append(Found(column, self.table.columns[column]))
        if column in self.settings and not logged:
            found.append(Found(column, self.settings[column], is_setting=True))
        if first_settings:
            found.reverse()
        return [each for each in found if not all(map(is_blank, each.cells))]

    def setting(self, name: str) -> Found | None:
        """A column of this name as it is or with the prefix of a setting."""
        for column in self.header():
            bare, kind = known_names.bare(column)
            if bare == name and kind is not Kind.LOGGED:
                for found in self.pool(column, first_settings=True):
                    return found
        return None

    def has_logged(self, name: str) -> bool:
        """Whether the table has a logged column of this name with a value."""
        for column in self.table.columns:
            bare, kind = known_names.bare(column)
            if bare == name and kind is not Kind.SETTING and self.pool(column, logged=True):
                return True
        return False

    # --------------------------------------------------------------------------- known names

    def of_tiers(self, name: str, *, quietly: bool = False) -> Found | None:
        """The first column of the known names with a value; `quietly`, without warnings."""
        count = len(self.warnings)
        for tier in known_names.TIERS.get(name, ()):
            if (found := self.of_tier(name, tier)) is not None:
                if quietly:
                    del self.warnings[count:]
                return found
        return None

    def of_tier(self, name: str, tier: Tier) -> Found | None:
        """The column of one of these names. Raises BadTable if two of them differ."""
        places = [
            (column, known)
            for known in tier.names
            for column in self.header()
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
        elif known.doubt and not (self.is_ours and column == name):
            self.doubt(name, found, known.doubt)
        elif name == STEP and column == STEP and "timestamp" in self.table.columns:
            self.doubt(name, found, known_names.IN_TRACKIO)
        return found

    def _candidates(self, name: str, column: str, kind: Kind) -> list[Found]:
        """What a known column can be in the two tables."""
        if kind is Kind.LOGGED:
            own = self.pool(column, logged=True)
            # The settings of a run may have the last value of what it logged.
            return own or (self.pool(column) if name == "learning_rate" else [])
        both = self.pool(column, first_settings=True)
        if name == "learning_rate" and len(both) > 1 and self._is_schedule(both[1]):
            return both[:1]
        return both

    def _is_schedule(self, found: Found) -> bool:
        """Whether a column varies within a run."""
        values: dict[str, Any] = {}
        return any(
            not is_blank(cell) and not are_same(values.setdefault(run, cell), cell)
            for run, cell in zip(self.runs, found.cells, strict=True)
        )

    def _refuse_last_of_schedule(self, found: Found, column: str) -> None:
        """A logged learning rate with one value for each run is its last one: refused, or in doubt for a name of settings."""
        if not (self.one_row_each or found.is_setting):
            return
        if known_names.bare(column)[0] == "lr":
            self.doubt("learning_rate", found, known_names.ANY_LR)
            return
        raise self.refused(
            "learning_rate",
            f"{found.label} is a logged value, and each run has only one: the schedule's last, not its peak. Give the peak, "
            f"as in {option('learning_rate', 'NAME')}; if it was constant, {option('learning_rate', column)}",
        )

    def _refuse_difference(
        self, name: str, one: tuple[Found, str], other: tuple[Found, str]
    ) -> None:
        options = " or ".join(dict.fromkeys((option(name, one[1]), option(name, other[1]))))
        both = False
        for index, (first, second) in enumerate(zip(one[0].cells, other[0].cells, strict=True)):
            if is_blank(first) or is_blank(second):
                continue
            both = True
            if not are_same(first, second):
                raise self.table.bad(
                    index,
                    name,
                    f"{self.place(one[0])} ({first}) and {self.place(other[0])} ({second}) could both be it: say which, {options}",
                )
        if name == "loss" and not both:
            message = f"{one[0].label} and {other[0].label} could both be it: say which, {options}"
            raise self.refused(name, message)

    # -------------------------------------------------------------------------------- numbers

    def number(self, column: str, index: int, cell: Any, name: str = "") -> float | None:
        """A cell as a number; None for an empty one. Raises BadTable."""
        if is_blank(cell):
            return None
        try:
            return number_of(column, cell)
        except ValueError:
            where = f" ({name})" if name and name != column else ""
            raise self.table.bad(index, column, not_a_number(cell, where)) from None

    def products(self, column: str, factors: Sequence[Found]) -> list[float | None]:
        """The product of columns in each row."""
        rows = zip(*(each.cells for each in factors), strict=True)
        return [self.product(column, index, cells) for index, cells in enumerate(rows)]

    def product(self, column: str, index: int, cells: Sequence[Any]) -> float | None:
        """The product of cells of one row; None if one is empty. Raises BadTable."""
        numbers = [self.number(column, index, cell) for cell in cells]
        if None in numbers:
            return None
        return math.prod(number for number in numbers if number is not None)
