"""`python -m demo up|down`: see docs/guides/demo.md."""

from __future__ import annotations

import argparse
import sys

from demo.commands import Demo, run
from devcluster.ports import pass_proxies_by


def main() -> int:
    """Run one command; returns the exit status."""
    pass_proxies_by()
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="run the demo, or resume it")
    up.add_argument(
        "--verbose", action="store_true", help="print commands and both resources in full, too"
    )
    up.set_defaults(run=Demo.up)
    down = commands.add_parser("down", help="stop everything that `up` started")
    down.set_defaults(run=Demo.down)
    given = parser.parse_args()
    return run(given.run, Demo(verbose=getattr(given, "verbose", False)))


if __name__ == "__main__":
    sys.exit(main())
