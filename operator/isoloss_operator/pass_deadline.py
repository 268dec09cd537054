"""When the pass that the present thread works on must be over.

Kept per context, not handed down: every call of a pass, through whatever layers, is held against it, and a
function that forgot to pass it on cannot exist. Threads that work for a pass inherit it by `carried`.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_deadline: ContextVar[float] = ContextVar("pass_deadline", default=math.inf)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """The enclosed pass must be over in so many seconds, or earlier if an enclosing one says so."""
    token = _deadline.set(min(pass_deadline(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def pass_deadline() -> float:
    """Deadline on the time.monotonic clock; infinite outside of a pass."""
    return _deadline.get()


def with_deadline(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function` for one call by another thread, under the deadline of this one."""
    context = copy_context()
    return lambda *args, **kwargs: context.run(function, *args, **kwargs)
