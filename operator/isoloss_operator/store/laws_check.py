"""Finds out cheaply that the files of a fit were removed or damaged while the operator runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from isoloss_contract.reading import Read, is_unknown
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.store.recent import Recent

CHECK_SECONDS = 60.0
"""How often the store is asked about one fit's files."""

Stamps = tuple[str, ...]
"""Of fit.json and laws.json: each changes when its file is replaced (Store.stamp)."""


class LawsCheck:
    """Compares stamps; only where one has changed are the files read again."""

    def __init__(
        self,
        stamps: Callable[[str, str], Read[Stamps]],
        outcome: Callable[[str, str], Read[FitOutcome]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Both functions take the store's URI and the path of laws.json."""
        self._stamps = stamps
        self._outcome = outcome
        self._clock = clock
        self._seen: Recent[tuple[str, str, str], tuple[float, Stamps]] = Recent(256)

    def are_lost(self, uri: str, laws_path: str, laws_sha256: str) -> bool:
        """Whether the fit with these laws is no longer what the store holds. Unanswered is no loss."""
        key = (uri, laws_path, laws_sha256)
        seen = self._seen.get(key)
        if seen is not None and self._clock() - seen[0] < CHECK_SECONDS:
            return False
        stamps = self._stamps(uri, laws_path)
        if is_unknown(stamps):
            return False
        # At first sight this process has just written or read the files.
        is_sound = isinstance(stamps, tuple) and (seen is None or seen[1] == stamps)
        if not is_sound:
            found = self._outcome(uri, laws_path)
            if is_unknown(found):
                return False
            is_sound = isinstance(found, FitOutcome) and found.laws_sha256 == laws_sha256
        if is_sound and isinstance(stamps, tuple):
            self._seen.put(key, (self._clock(), stamps))
            return False
        self._seen.drop(key)
        return True
