"""Reads and writes YAML as Kubernetes does.

To PyYAML `2e-4` is text, so it writes the text "2e-4" without quotes. To Kubernetes it is a number: a value
would change its type, and a manifest that the API server refuses would pass here.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_NUMBER = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")


class _Loader(yaml.SafeLoader):
    """Numbers as in YAML 1.2, and dates as text. A key that is there twice is an error, as to kubectl."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own attribute)
        first: [(tag, pattern) for tag, pattern in pairs if not tag.endswith(":timestamp")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping as it is written: keys that `<<` merges, which may be given again, are not in it yet."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (name := (key.tag, key.value)) in lines:
                message = f"{key.value} is in line {lines[name]} already: keep one of them"
                raise yaml.MarkedYAMLError(problem=message, problem_mark=key.start_mark)
            lines[name] = key.start_mark.line + 1
        return node


class _Dumper(yaml.SafeDumper):
    """Numbers as in YAML 1.2, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value that occurs twice out twice."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key."""
        super().increase_indent(flow, False)


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def read_documents(text: str) -> list[Any]:
    """All documents of a YAML text, empty ones left out. Raises yaml.YAMLError."""
    return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]


def to_yaml(*documents: Any) -> str:
    """YAML in the order of the mappings, without anchors."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
