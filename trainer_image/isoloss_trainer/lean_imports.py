"""Imports transformers without torch's compiler, for eager training on a CPU.

A model's module imports DTensor (and with it sympy), the compiler and scipy, which an eager process
on a CPU never uses: 4.6 s of CPU time against 2.6 s, of which torch alone takes 1.5 s. Importing the
model's submodule directly gains nothing (4.6 s): `modeling_utils` and `masking_utils` import them.
So transformers' own availability checks answer no while it is imported, and the compiler's decorators,
which it applies on import, do nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

AVAILABILITY_CHECKS = (
    "torch.distributed.is_available",
    "transformers.utils.is_scipy_available",
    "transformers.utils.is_torch_flex_attn_available",
    "transformers.utils.import_utils.is_torch_flex_attn_available",
)
COMPILER = ("torch._dynamo", "torch._dynamo._trace_wrapped_higher_order_op")


class _NoCompiler(ModuleType):
    """Every function of this module is a decorator that changes nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _undecorated


def _undecorated(function: Any = None, *_arguments: Any, **_options: Any) -> Any:
    return function if callable(function) else _undecorated


@contextmanager
def without_compiler() -> Iterator[None]:
    """Import transformers models in this block. No effect where the compiler is loaded already."""
    if COMPILER[0] in sys.modules:
        yield
        return
    import transformers.utils.import_utils  # noqa: F401 (patched by name below)

    with ExitStack() as checks:
        for check in AVAILABILITY_CHECKS:
            checks.enter_context(patch(check, return_value=False))
        sys.modules.update({name: _NoCompiler(name) for name in COMPILER})
        try:
            yield
        finally:
            for name in COMPILER:
                del sys.modules[name]
