"""Arithmetic over the columns of a table: `step*batch_size*sequence_length`, `'val/bpb'*0.6931*4.8`, `124e6`.

Python's own parser reads it, and whatever is not a number, a name, + - * / or parentheses is refused;
nothing is ever run as Python.
"""

import ast
import difflib
import functools
import operator
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from isoloss.errors import BadInput
from isoloss.numbers import hint
from isoloss.tables.cell_values import is_number

OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LONGEST = 500
"""Characters; far more than any mapping takes, and few enough for Python's parser."""
TAKES = "it takes numbers, names of columns (odd ones in quotes), + - * / and parentheses"


@dataclass(frozen=True)
class Expression:
    """One option `--column NAME=EXPRESSION`."""

    column: str
    """Ours, which it fills."""
    text: str

    @property
    def option(self) -> str:
        """As it was typed, for messages."""
        return f"--column {self.column}={self.text}"

    def names(self, header: Collection[str]) -> tuple[str, ...]:
        """The names in it, in order. Text that is a column's name as it stands is that column. Raises BadInput."""
        if self.text in header:
            return (self.text,)
        found = [
            (node.lineno, node.col_offset, name)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.expr) and (name := _name(node)) is not None
        ]
        return tuple(dict.fromkeys(name for *_, name in sorted(found)))

    def names_in(self, header: Collection[str]) -> tuple[str, ...]:
        """Those of one table; what is not readable with its columns may be the name of another table's."""
        try:
            return self.names(header)
        except BadInput:
            return ()

    def is_name(self, header: Collection[str]) -> bool:
        """Whether it is one column as it stands."""
        return self.text in header or (
            isinstance(self._tree, ast.Name | ast.Constant) and (len(self.names(header)) == 1)
        )

    def value(self, values: Mapping[str, float | None], header: Collection[str]) -> float | None:
        """Its value in one row; None where a name has none. Raises ZeroDivisionError and OverflowError."""
        if self.text in header:
            return values[self.text]
        return _value(self._tree, values)

    @functools.cached_property
    def _tree(self) -> ast.expr:
        text = self.text.strip()
        try:
            if not text or len(text) > LONGEST:
                raise SyntaxError
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            why = hint(text) or f": {TAKES}"
            raise BadInput(f"{self.option}: not readable{why}") from None
        self._check(tree)
        return tree

    def _check(self, tree: ast.expr) -> None:
        match tree:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                self._check(left)
                self._check(right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._check(operand)
            case ast.Name():
                pass
            case ast.Constant(value=value) if type(value) in (int, float, str):
                pass
            case _:
                raise BadInput(f"{self.option}: {ast.unparse(tree)[:60]!r} is not taken: {TAKES}")


def parse_option(text: str, known: Collection[str]) -> Expression:
    """The option's text, NAME=EXPRESSION. Raises BadInput unless NAME is a column of ours."""
    column, equals, expression = text.partition("=")
    column = column.strip()
    if not equals or not expression.strip():
        raise BadInput(f"--column {text}: write NAME=EXPRESSION, as in --column loss=eval/loss")
    if column not in known:
        raise BadInput(
            f"--column {text}: there is no column {column!r} to fill{near(column, known)}; "
            f"there are {', '.join(known)}"
        )
    return Expression(column, expression.strip())


def missing_name(expression: Expression, name: str, header: Collection[str]) -> str:
    """What to say of a name that no column has."""
    odd = [each for each in header if each in expression.text and not each.isidentifier()]
    quoted = max(odd, key=len, default="")
    hint = f": {quoted} is a column, and in arithmetic it takes quotes: '{quoted}'"
    hint = hint if quoted else near(name, header)
    return f"{expression.option}: no column {name!r}{hint}; found {', '.join(header)[:300]}"


def option(column: str, expression: str) -> str:
    """The option as it is typed into a shell."""
    return f"--column {shlex.quote(f'{column}={expression}')}"


def product_of(*names: str) -> str:
    """A product, with names in quotes that are no words."""
    return "*".join(
        name if name.isidentifier() or is_number(name) else f"'{name}'" for name in names
    )


def near(name: str, names: Collection[str], alike: Iterable[str] = ()) -> str:
    """A question with up to three names like this one or with a word of `alike`, or nothing."""
    lower = {each.lower(): each for each in names}
    close = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, 3, 0.6)]
    words = _words(name).union(alike)
    close += [
        each for each in names if words & {each.lower(), *_words(each)} and each not in close
    ]
    return f" (did you mean {' or '.join(close[:3])}?)" if close else ""


def _words(name: str) -> set[str]:
    """Parts of a name that say something."""
    return {part for part in re.split(r"[^a-z]+", name.lower()) if len(part) > 1}


def _name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=str(name)) | ast.Constant(value=str(name)):
            return name
        case _:
            return None


def _value(tree: ast.expr, values: Mapping[str, float | None]) -> float | None:
    match tree:
        case ast.Name(id=str(name)) | ast.Constant(value=str(name)):
            return values[name]
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(operand=operand):
            inner = _value(operand, values)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _value(left, values), _value(right, values)
            if first is None or second is None:
                return None
            return OPERATORS[type(op)](first, second)
        case _:
            raise AssertionError(ast.dump(tree))  # _check lets nothing else through
