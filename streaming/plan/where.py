"""Predicates over the columns of the index, written as Python expressions and never executed as such.

>>> where = Where("width >= 256 and height >= 256 and not 0.5 > width / height")
>>> where({"width": np.array([300, 300]), "height": np.array([300, 200])}).tolist()
[True, False]
>>> where.names
('height', 'width')

Allowed are numbers, columns, + - * / // %, comparisons (also chained), `and`, `or`, `not`, `in (1, 2)`, and brackets.
A column whose name is no Python name is written column("left.jpg.width").  All of it means what Python means by it, but
for divisions by 0, which give infinity or nan.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
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
_DEEPEST: Final = 100
"""Characters of an expression, and levels of brackets and operators in it: evaluating must not exhaust the stack."""
_EXACT: Final = 1 << 62


@dataclass(frozen=True)
class Where:
    """A predicate: called with the columns of a shard, [n] each, it gives a truth value for each sample, [n]."""

    text: str
    names: tuple[str, ...] = field(init=False, default=())
    """The columns it asks about."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise PlanError(f"where={self.text!r}", hint="give an expression such as 'width >= 256'")
        object.__setattr__(self, "names", tuple(sorted(set(_names(self._tree)))))

    def __call__(self, columns: Columns) -> NDArray[np.bool_]:
        """Raises PlanError for a column that the shard does not have."""
        for name in self.names:
            if name not in columns:
                raise PlanError(
                    f"where={self.text!r}: no column {name!r}", hint=f"there are {', '.join(sorted(columns))}"
                )
        n = len(next(iter(columns.values()), ()))
        with np.errstate(
            divide="ignore", invalid="ignore", over="ignore"
        ):  # x / 0 is inf or nan, which compares as such
            found = _value(self._tree, columns)
        return np.broadcast_to(np.asarray(found, dtype=bool), (n,))

    @cached_property
    def _tree(self) -> ast.expr:
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
    if not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
        return False
    return isinstance(node.value, float) or node.value < _EXACT


def _signed(node: ast.AST) -> bool:
    return _number(node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node)


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
        if not all(isinstance(b, ast.Tuple | ast.List) and all(map(_signed, b.elts)) for b in lists):
            raise ValueError("`in` takes numbers in brackets")
        if lists and lists != node.comparators[-1:]:
            raise ValueError("`in` stands last in a chain of comparisons")
        return [node.left, *(b for b in node.comparators if b not in lists)]
    raise ValueError(f"{ast.unparse(node)[:80]!r} is not allowed")


def _check(node: ast.AST, depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise ValueError("too many levels")
    for part in _inside(node):
        _check(part, depth + 1)


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
        return _calculated(_MATH[type(node.op)], _numbers(node.left, columns), _numbers(node.right, columns))
    if isinstance(node, ast.UnaryOp):
        inner = _numbers(node.operand, columns)
        return -inner if isinstance(node.op, ast.USub) else ~inner.astype(bool)
    if isinstance(node, ast.BoolOp):
        values = [np.asarray(_value(part, columns)) for part in node.values]
        if isinstance(node.op, ast.And):
            return reduce(lambda a, b: np.where(a.astype(bool), b, a), values)
        return reduce(lambda a, b: np.where(a.astype(bool), a, b), values)
    return _compared(node, columns)


def _numbers(node: ast.AST, columns: Columns) -> NDArray[Any]:
    """The value of a node; truth values count as 0 and 1."""
    found = np.asarray(_value(node, columns))
    return found.astype(np.int64) if found.dtype == np.bool_ else found


def _calculated(how: Callable[[Any, Any], Any], left: NDArray[Any], right: NDArray[Any]) -> Any:
    if how in (operator.floordiv, operator.mod):
        return how(left, right if right.all() else right.astype(np.float64))  # whole numbers know no infinity
    found = how(left, right)
    if found.dtype.kind == "i" and (np.abs(how(left.astype(np.float64), right.astype(np.float64))) > _EXACT).any():
        raise PlanError("where= comes to whole numbers beyond 64 bits", hint="divide first, or write 1.0 * column")
    return found


def _compared(node: ast.AST, columns: Columns) -> Any:
    if not isinstance(node, ast.Compare):
        raise ValueError(f"{ast.unparse(node)[:80]!r} is not allowed")
    left, found = _value(node.left, columns), np.True_
    for op, part in zip(node.ops, node.comparators, strict=True):
        listed = part.elts if isinstance(part, ast.Tuple | ast.List) else None
        right = _value(part, columns) if listed is None else [_value(number, columns) for number in listed]
        found = np.logical_and(found, _COMPARE[type(op)](left, right))
        left = right
    return found
