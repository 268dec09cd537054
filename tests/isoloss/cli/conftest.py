"""What the tests of several commands share."""

from __future__ import annotations

import pytest

from isoloss.cli import reporting
from isoloss.report import page
from tests.support.empty_figures import drawn_empty


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with empty figures, whichever command draws them."""
    for module in (page, reporting):
        monkeypatch.setattr(module, "draw_figures", drawn_empty)
