"""Reads and writes YAML as Kubernetes does.

kubectl and the API server read YAML with sigs.k8s.io/yaml: words of YAML 1.1, numbers of Go, and the whole as JSON. PyYAML differs:
`2e-4`, `y` and `0o17` are text to it, `1:30` is a number and `2001-12-14` a date. A value would change its type on the way, and a
manifest that the API server refuses would pass here.
"""

import base64
import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import yaml

_STR, _INT, _FLOAT, _BOOL, _NULL, _MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "merge")
)
_TYPED = (_INT, _FLOAT, _BOOL, _NULL)


def _cases(*words: str) -> list[str]:
    """Each in lower case, with a capital, and in upper case: others are text."""
    return [case for word in words for case in (word, word.capitalize(), word.upper())]


_WORDS: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(_cases("y", "yes", "true", "on"), (_BOOL, True)),
    **dict.fromkeys(_cases("n", "no", "false", "off"), (_BOOL, False)),
    **dict.fromkeys(("", "~", *_cases("null")), (_NULL, None)),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), (_FLOAT, math.nan)),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), (_FLOAT, math.inf)),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), (_FLOAT, -math.inf)),
    "<<": (_MERGE, "<<"),
}
"""What words without quotes are, if not text."""
_INTEGERS = (
    (re.compile("[-+]?0[xX][0-9a-fA-F]+"), 16),
    (re.compile("[-+]?0[bB][01]+"), 2),
    (re.compile("[-+]?0[oO]?[0-7]+"), 8),
    (re.compile("[-+]?(0|[1-9][0-9]*)"), 10),
)
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def _resolved(text: str) -> tuple[str, Any]:
    """The tag and the value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    # Underscores may stand anywhere but in front, and only between digits if the number begins with its point.
    plain = re.sub("(?<=[0-9])_(?=[0-9])" if text.startswith((".", "_")) else "_", "", text)
    for pattern, base in _INTEGERS:
        if pattern.fullmatch(plain) and -(2**63) <= (integer := int(plain, base)) < 2**64:
            return _INT, integer
    if _NUMBER.fullmatch(plain) and math.isfinite(number := float(plain)):
        return _FLOAT, number
    return _STR, text


def _as_json(number: float) -> float:
    """As the API server reads it from JSON, which has 2000 for 2e3: an integer, if it has no fraction and 64 bits."""
    if number != math.floor(number):
        return number
    # Go writes the digits that tell a float from its neighbours, and zeros.
    whole = number if isinstance(number, int) else int(Decimal(repr(number)))
    return whole if -(2**63) <= whole < 2**63 else float(number)


def _key(value: Any) -> str:
    """A key of a JSON object. Raises ValueError for what cannot be one."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value < 2**63:
        return str(value)
    if isinstance(value, float):
        return _float_key(value)
    raise ValueError("a key is text: put it in quotes")


def _float_key(value: float) -> str:
    """In single precision, as Go's %g has it."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if not np.isfinite(single):
        return ".nan" if np.isnan(single) else "-.inf" if single < 0 else ".inf"
    scientific = np.format_float_scientific(single, trim="-", exp_digits=2)
    if -4 <= int(scientific.partition("e")[2]) < 6:
        return np.format_float_positional(single, trim="-")
    return scientific


class _Loader(yaml.SafeLoader):
    """Scalars and keys as in JSON. A key that is there twice is an error, as to kubectl."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node that has none."""
        if kind is yaml.ScalarNode and implicit[0]:
            return _resolved(value)[0]
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping as it is written: keys that `<<` merges, which may be given again, are not in it yet."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for at, (key, value) in enumerate(node.value):
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            try:
                name = _key(self.typed(key) if key.tag in _TYPED else key.value)
            except ValueError as error:
                raise _error(key, f"{key.value!r}: {error}") from error
            if name in lines:
                message = f"{name} is in line {lines[name]} already: keep one of them"
                raise _error(key, message)
            lines[name] = key.start_mark.line + 1
            named = yaml.ScalarNode(_STR, name, key.start_mark, key.end_mark)
            node.value[at] = (named, value)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """What `<<` merges, in its place: Kubernetes' reader keeps the last of two values."""
        pairs = []
        for key, value in node.value:
            if key.tag != _MERGE:
                pairs.append((key, value))
                continue
            merged = value.value[::-1] if isinstance(value, yaml.SequenceNode) else [value]
            for each in merged:
                if not isinstance(each, yaml.MappingNode):
                    raise _error(value, "<< takes a mapping, or a list of them")
                self.flatten_mapping(each)
                pairs += each.value
        node.value = pairs

    def typed(self, node: yaml.ScalarNode) -> Any:
        """The value of a boolean, a number or an empty scalar."""
        tag, value = _resolved(node.value)
        if tag != node.tag and (tag, node.tag) != (_INT, _FLOAT):
            raise _error(node, f"{node.value!r} is not of the type {node.tag.rpartition(':')[2]}")
        return value

    def scalar(self, node: yaml.ScalarNode) -> Any:
        """As it is in JSON."""
        value = self.typed(node)
        if value is None or isinstance(value, bool):
            return value
        if not math.isfinite(value):
            raise _error(node, f"{node.value} is a number that JSON does not have")
        return _as_json(value)

    def binary(self, node: yaml.ScalarNode) -> str:
        """What base64 text stands for."""
        try:
            return base64.b64decode("".join(node.value.split()), validate=True).decode()
        except ValueError as error:
            raise _error(node, "this is not text in base64") from error

    def unknown(self, node: yaml.Node) -> Any:
        """Raise for its tag."""
        raise _error(node, f"could not determine a constructor for the tag {node.tag!r}")

    def text(self, node: yaml.ScalarNode) -> str:
        """As it is written."""
        return str(node.value)


def _error(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


for _tag in _TYPED:
    _Loader.add_constructor(_tag, _Loader.scalar)
_Loader.add_constructor("tag:yaml.org,2002:binary", _Loader.binary)
for _name in ("merge", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_name}", _Loader.text)
# Kubernetes passes over tags that it does not know: who wrote one did not mean that.
for _name in ("set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_name}", _Loader.unknown)


class _Dumper(yaml.SafeDumper):
    """Quotes around text that Kubernetes, or PyYAML, would not take for text, and no anchors."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag that a reader would give a scalar."""
        if kind is yaml.ScalarNode and implicit[0] and (tag := _resolved(value)[0]) != _STR:
            return tag
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value that occurs twice out twice."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key."""
        super().increase_indent(flow, False)


def read_documents(text: str) -> list[Any]:
    """All documents of a YAML text, empty ones left out. Raises yaml.YAMLError."""
    return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]


def to_yaml(*documents: Any) -> str:
    """YAML in the order of the mappings, without anchors."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
