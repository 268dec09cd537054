"""What a row of the matrix is, and how one is played."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.fixture import (
    SEARCHED,
    SHORT_SEARCH,
    SQUARE,
    WIDE,
    Failed,
    FaultFixture,
    new_fixture,
)
from tests.faults.harness import Harness
from tests.faults.judging_fixture import JUDGED
from tests.faults.verdict import (
    SETTLE_SECONDS,
    Expectation,
    Reference,
    Verdict,
    judge,
    take_reference,
)
from tests.faults.writes import Writes

REFERENCES: Mapping[str, Mapping[str, Any]] = {
    "rows": {},
    "preemptions": {"spec": WIDE},
    "searches": {"spec": SEARCHED},
    "kills": {"spec": SQUARE},
    "killed searches": {"spec": SHORT_SEARCH},
    "judged": JUDGED,
}
"""The fixtures that are played undisturbed, as options of new_fixture."""
Play = Callable[[FaultFixture], Expectation | None]
"""Starts the operator, does harm, and returns once the sweep has finished. Raises Failed."""


@dataclass(frozen=True)
class Row:
    """One fault and how it is done to a sweep."""

    name: str
    """GROUP/WHAT[/HOW], by which `--only` selects."""
    does: str
    """What happens, for the table."""
    play: Play
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the operator."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the fixture."""
    skip: str = ""
    """Why it cannot be played here."""
    reference: str = "rows"
    """Name of the undisturbed sweep that it is compared with: one of REFERENCES."""

    @property
    def group(self) -> str:
        """The part of the table it stands in."""
        return self.name.partition("/")[0]


def row_beside(reference: str, name: str, does: str, play: Play, **more: Any) -> Row:
    """A row in the fixture of one of REFERENCES, which it is compared with."""
    return Row(name, does, play, options=REFERENCES[reference], reference=reference, **more)


def play_row(harness: Harness, row: Row, reference: Reference) -> Verdict:
    """Play a row in a fixture of its own and judge it; never raises for what the operator did."""
    began = time.monotonic()
    fixture = new_fixture(harness, row.name, environment=row.environment, **row.options)
    expected, failure = Expectation(), ""
    try:
        try:
            expected = row.play(fixture) or expected
        except Failed as error:
            failure = str(error)
        time.sleep(SETTLE_SECONDS)
        return judge(fixture, reference, expected, failure, began)
    finally:
        fixture.end()


def undisturbed(harness: Harness, **options: Any) -> Reference:
    """Play a fixture without a fault: what the others are compared with."""
    fixture = new_fixture(harness, "undisturbed", **options)
    writes = Writes()
    fixture.inject_writes(writes)
    try:
        fixture.start_prepared()
        before = len(writes.made[fixture.namespace])
        fixture.begin()
        fixture.finish(120)
        return take_reference(fixture, len(writes.made[fixture.namespace]) - before)
    finally:
        fixture.end()
