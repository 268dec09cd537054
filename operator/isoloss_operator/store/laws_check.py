"""Finds out cheaply that the files of a fit were removed or damaged while the operator runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from isoloss_contract.reading import Read, is_unknown
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.store.recent import Recent


class LawsCheck:
    """Reads the small fit.json, and laws.json only if it has been replaced."""

    def __init__(
        self,
        named: Callable[[str, str], Read[str]],
        stamp: Callable[[str, str], Read[str]],
        outcome: Callable[[str, str], Read[FitOutcome]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Each function takes the store's URI and the path of laws.json.

        `named`: the digest of the laws in fit.json; `stamp`: Store.stamp of laws.json; `outcome`: both
        files, read whole.
        """
        self._named, self._stamp, self._outcome = named, stamp, outcome
        self._clock = clock
        self._seen: Recent[tuple[str, str, str], tuple[float, str]] = Recent(256)

    def are_lost(
        self, uri: str, laws_path: str, laws_sha256: str, interval_seconds: float
    ) -> bool:
        """Whether the fit with these laws is no longer what the store holds. Unanswered is no loss.

        The store is asked once per interval.
        """
        key = (uri, laws_path, laws_sha256)
        seen = self._seen.get(key)
        if seen is not None and self._clock() - seen[0] < interval_seconds:
            return False
        named = self._named(uri, laws_path)
        stamp = self._stamp(uri, laws_path)
        if is_unknown(named) or is_unknown(stamp):
            return False
        is_sound = named == laws_sha256 and isinstance(stamp, str)
        # At first sight this process has just written or read the laws.
        if is_sound and seen is not None and seen[1] != stamp:
            found = self._outcome(uri, laws_path)
            if is_unknown(found):
                return False
            is_sound = isinstance(found, FitOutcome)
        if is_sound and isinstance(stamp, str):
            self._seen.put(key, (self._clock(), stamp))
        else:
            self._seen.drop(key)
        return not is_sound
