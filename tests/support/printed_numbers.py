"""Numbers in what pages show and programs print, to be compared with a tolerance."""

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
TOLERANCE = 0.01
"""Relative: last digits differ between machines."""


def numbers(text: str) -> list[float]:
    """All of them, in their order."""
    return [float(number) for number in NUMBER.findall(text)]
