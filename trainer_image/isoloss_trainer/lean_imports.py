"""Halves the start-up of a process that trains eagerly on one CPU.

Importing any transformers model also imports tensor sharding, paged attention, detection losses and,
through them, torch's compiler, sympy and scipy: five of eight seconds, for parts that such a process
never reaches. While `without_unused_parts` is active those modules are empty shells whose names are
classes that refuse to be used; afterwards the real ones can be imported as ever.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

UNUSED = (
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "transformers.generation.continuous_batching",
    "transformers.integrations.flex_attention",
    "torch.nn.attention.flex_attention",
    "torch._dynamo",
    "scipy.optimize",
)

SWITCH = "ISOLOSS_FULL_IMPORTS"
"""Environment variable that turns this off."""


class UnusedPartError(RuntimeError):
    """Something that was held to be unreachable was reached."""


class _Unused:
    """Stands for any class or function of an unused module. While modules load it may be made, and
    as a decorator leaves what it decorates alone; after that it refuses."""

    loading = False

    def __new__(cls, *arguments: Any, **_options: Any) -> Any:
        """What a decorator is given, or a stand-in."""
        if not _is_unused(cls.__module__):
            return super().__new__(cls)  # a used class with an unused parent
        if not _Unused.loading:
            raise UnusedPartError(f"{cls.__module__}.{cls.__name__} was not imported")
        if arguments and callable(arguments[0]):
            return arguments[0]
        return super().__new__(cls)

    def __call__(self, decorated: Any) -> Any:
        """For decorators with options."""
        return decorated


class _Shell(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_in = type(name, (_Unused,), {"__module__": self.__name__})
        setattr(self, name, stand_in)
        return stand_in


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for the unused modules and all below them."""
        return ModuleSpec(name, self, is_package=True) if _is_unused(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty shell."""
        return _Shell(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def _is_unused(name: str) -> bool:
    return any(name == unused or name.startswith(f"{unused}.") for unused in UNUSED)


@contextmanager
def without_unused_parts() -> Iterator[None]:
    """Import transformers models without what an eager CPU run never uses. Nothing happens where
    such a part is there already, or where the environment sets SWITCH."""
    if os.environ.get(SWITCH) or any(_is_unused(name) for name in sys.modules):
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    _Unused.loading = True
    try:
        yield
    finally:
        _Unused.loading = False
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_unused(name)]:
            parent, _, child = name.rpartition(".")
            vars(sys.modules.get(parent, sys)).pop(child, None)
            del sys.modules[name]
