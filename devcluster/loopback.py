"""The cluster's servers listen on this machine's loopback address, where no proxy must stand in between."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLES = ("no_proxy", "NO_PROXY")
"""Programs read the one or the other."""
ADDRESSES = ("127.0.0.1", "localhost")


def pass_proxies_by(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and those that it starts reach this machine without the proxy of the environment."""
    given = {name: environment.get(name, "") for name in VARIABLES}
    for name, other in (VARIABLES, VARIABLES[::-1]):
        listed = [each.strip() for each in (given[name] or given[other]).split(",")]
        if "*" not in listed:  # which must stand alone, and is for all addresses
            listed += [each for each in ADDRESSES if each not in listed]
        environment[name] = ",".join(filter(None, listed))
