"""A sweep, and maybe a prediction, at one moment: the status that the operator wrote, and the points behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isoloss.progress import picture
from isoloss.progress.resources import View, law_lines, waited_for
from isoloss.progress.sweep_state import SweepState


@dataclass(frozen=True)
class Moment:
    """What the store or a cluster shows now."""

    view: View
    state: SweepState | None
    """The points; None if the store cannot be read from here."""
    without: str = ""
    """Why not."""

    @property
    def is_over(self) -> bool:
        """Whether the sweep is: nothing trains, and its laws are final."""
        return self.view.is_true(self.view.sweep, "Ready")

    @property
    def waits_for(self) -> str:
        """What Ready says, and what trains."""
        told = [waited_for(self.view), self.state.under_way if self.state is not None else ""]
        return "\n".join(part for part in told if part)

    def document(self) -> dict[str, Any]:
        """For programs: both statuses, the laws as they are shown, and points and cost if the store can be read
        from here."""
        stalled = self.view.stalled
        return {
            "ready": self.view.is_ready,
            "stalled": stalled.get("message"),
            "stalled_reason": stalled.get("reason"),
            "laws": list(law_lines(self.view) if self.state is None else self.state.laws),
            "without": self.without or None,
            "sweep": self.view.sweep.get("status"),
            "prediction": (self.view.prediction or {}).get("status"),
            **(picture.document(self.state) if self.state is not None else {}),
        }
