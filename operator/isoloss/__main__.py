"""`python -m isoloss` and the console script `isoloss`."""

from __future__ import annotations

from isoloss.cli.application import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
