"""Predicates over the columns of the index, written as Python expressions and never executed as such.

>>> where = Where("width >= 256 and height >= 256 and not 0.5 > width / height")
>>> where({"width": np.array([300, 300]), "height": np.array([300, 200])}).tolist()
[True, False]
>>> where.names
('height', 'width')

Allowed are numbers, columns, + - * / // %, comparisons (also chained), `and`, `or`, `not`, `in (1, 2)`, and brackets.
A column whose name is no Python name is written column("left.jpg.width").
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError

Columns = Mapping[str, NDArray[Any]]
_MATH: Final[dict[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: Final[dict[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: np.isin,
    ast.NotIn: lambda a, b: ~np.isin(a, b),
}
_LONGEST: Final = 4096


@dataclass(frozen=True)
class Where:
    """A predicate: called with the columns of a shard, [n] each, it gives a truth value for each sample, [n]."""

    text: str
    names: tuple[str, ...] = field(init=False, default=())
    """The columns it asks about."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise PlanError(f"where={self.text!r}", hint="give an expression such as 'width >= 256'")
        object.__setattr__(self, "names", tuple(sorted(set(_names(self._parse())))))

    def __call__(self, columns: Columns) -> NDArray[np.bool_]:
        """Raises PlanError for a column that the shard does not have."""
        for name in self.names:
            if name not in columns:
                raise PlanError(
                    f"where={self.text!r}: no column {name!r}", hint=f"there are {', '.join(sorted(columns))}"
                )
        n = len(next(iter(columns.values()), ()))
        with np.errstate(divide="ignore", invalid="ignore"):  # x / 0 is inf or nan, which compares as such
            found = _value(self._parse(), columns)
        return np.broadcast_to(np.asarray(found, dtype=bool), (n,))

    def _parse(self) -> ast.expr:
        try:
            if len(self.text) > _LONGEST:
                raise ValueError("too long")
            tree = ast.parse(self.text.strip(), mode="eval").body
            _check(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise PlanError(
                f"where={self.text[:200]!r} can't be read ({error})",
                hint="allowed are numbers, columns, arithmetic, comparisons, and, or, not, in",
            ) from None
        return tree


def _column(node: ast.AST) -> str | None:
    """The column that a node names, or None."""
    if isinstance(node, ast.Name):
        return node.id
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "column"
    if called and isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        name = node.args[0]
        return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    return None


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _inside(node: ast.AST) -> list[ast.expr]:
    """The parts of an allowed node that are values themselves; raises ValueError for a node that is not allowed."""
    if _number(node) or _column(node) is not None:
        return []
    if isinstance(node, ast.BinOp) and type(node.op) in _MATH:
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        return [node.operand]
    if isinstance(node, ast.BoolOp):
        return list(node.values)
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        lists = [b for op, b in zip(node.ops, node.comparators, strict=True) if isinstance(op, ast.In | ast.NotIn)]
        if not all(isinstance(b, ast.Tuple | ast.List) and all(map(_number, b.elts)) for b in lists):
            raise ValueError("`in` takes numbers in brackets")
        return [node.left, *(b for b in node.comparators if b not in lists)]
    raise ValueError(f"{ast.unparse(node)[:80]!r} is not allowed")


def _check(node: ast.AST) -> None:
    for part in _inside(node):
        _check(part)


def _names(node: ast.AST) -> list[str]:
    name = _column(node)
    return [name] if name is not None else [n for part in _inside(node) for n in _names(part)]


def _value(node: ast.AST, columns: Columns) -> Any:
    name = _column(node)
    if name is not None:
        column = columns[name]
        return column.astype(np.int64) if column.dtype.kind in "iu" else column
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = np.asarray(_value(node.left, columns)), np.asarray(_value(node.right, columns))
        return _MATH[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        inner = np.asarray(_value(node.operand, columns))
        return -inner if isinstance(node.op, ast.USub) else ~inner.astype(bool)
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return reduce(join, [_value(part, columns) for part in node.values])
    return _compared(node, columns)


def _compared(node: ast.AST, columns: Columns) -> Any:
    if not isinstance(node, ast.Compare):
        raise ValueError(f"{ast.unparse(node)[:80]!r} is not allowed")
    left, found = _value(node.left, columns), np.True_
    for op, part in zip(node.ops, node.comparators, strict=True):
        listed = isinstance(part, ast.Tuple | ast.List)
        right = ast.literal_eval(part) if listed else _value(part, columns)
        found = np.logical_and(found, _COMPARE[type(op)](left, right))
        left = right
    return found
