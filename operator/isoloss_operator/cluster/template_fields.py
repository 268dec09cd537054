"""Reads parts of a pod template that a user wrote, whose shape nothing has checked yet. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class BadPodTemplate(ValueError):
    """A pod template that cannot be used; the message names the field."""


@dataclass(frozen=True)
class Fields:
    """An object within a template. Raises BadPodTemplate if a field has another shape than asked for."""

    values: Mapping[str, Any]
    path: str

    @classmethod
    def of(cls, value: Any, path: str) -> Fields:
        """Null and absence are an empty object, as for the API server."""
        if value is None:
            return cls({}, path)
        if not isinstance(value, Mapping):
            raise BadPodTemplate(f"{path}: must be an object")
        return cls(value, path)

    def where(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}"

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.values.get(name) is not None

    def value(self, name: str) -> Any:
        """A field that is no object and no list; None: absent."""
        found = self.values.get(name)
        if isinstance(found, Mapping | list):
            raise BadPodTemplate(f"{self.where(name)}: must be a single value")
        return found

    def fields(self, name: str) -> Fields:
        """A field that is an object; empty if it is absent."""
        return Fields.of(self.values.get(name), self.where(name))

    def items(self, name: str) -> list[Any]:
        """A field that is a list; empty if it is absent."""
        found = self.values.get(name)
        if found is None:
            return []
        if not isinstance(found, list):
            raise BadPodTemplate(f"{self.where(name)}: must be a list")
        return found

    def objects(self, name: str) -> Iterator[Fields]:
        """The objects of a list, each under its own name if it has one."""
        for number, item in enumerate(self.items(name)):
            place = f"{self.where(name)}[{number}]"
            found = Fields.of(item, place)
            own = found.values.get("name")
            yield Fields(found.values, f"{self.where(name)}[{own}]" if own else place)
