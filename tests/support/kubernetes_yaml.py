"""Unquoted scalars and keys, and what the API server is sent when kubectl reads them."""

from typing import Any, Final

SCALARS: Final[dict[str, Any]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "False", "FALSE"), False),
    **{
        each: each for each in ("yEs", "oN", "nO", "tRUE", "yy", "_1", "=", "1:30", "190:20:30.15")
    },
    **{each: each for each in ("2001-12-14", "2001-12-14t21:59:43.10-05:00", "1e", "0x", "1e400")},
    **dict.fromkeys(("0o17", "017", "0xF", "0b1111", "1_5", "15.0", "+15", "1.5e1"), 15),
    "2e10": 20_000_000_000,
    "08": 8,
    "-0b11": -3,
    ".5_0": 0.5,
    "5e-5": 5e-5,
    "1.10": 1.1,
}
KEYS: Final[dict[str, str]] = {
    "y": "true",
    "off": "false",
    "1": "1",
    "017": "15",
    "1.10": "1.1",
    "1e3": "1000",
    "1e6": "1e+06",
    "123456789.5": "1.2345679e+08",
    "1:30": "1:30",
    "2001-12-14": "2001-12-14",
}


def as_values() -> str:
    """The scalars as a mapping on one line."""
    return f"{{{', '.join(f'v{at}: {word}' for at, word in enumerate(SCALARS))}}}"


def values() -> dict[str, Any]:
    """What that mapping holds."""
    return {f"v{at}": value for at, value in enumerate(SCALARS.values())}


def as_keys() -> str:
    """The keys as a mapping on one line."""
    return f"{{{', '.join(f'{key}: k{at}' for at, key in enumerate(KEYS))}}}"


def keys() -> dict[str, str]:
    """What that mapping holds."""
    return {name: f"k{at}" for at, name in enumerate(KEYS.values())}
