"""Find a place in the library and change it there: what an entry's operator does to a syntax tree."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Raise, ast.Delete)


class NoPlaceError(LookupError):
    """An entry finds no place, or several."""


@dataclass(frozen=True)
class Change:
    """One small mistake: where it is made, and what is done there.

    Attributes
    ----------
    at : str
        ``module:function``, ``module:Class.method`` or ``module:NAME``, below ``cloister``.
    operator, subject : str, object
        What is done, and to what: see ``mutants.__main__``.
    to : str, optional
        What takes its place; ``_`` in it stands for what was there.
    of : str
        A name or text that the same statement mentions.
    nth : int
        Which of several, in the order of reading from 1 on; 0 if there is one.
    """

    at: str
    operator: str
    subject: object
    to: str | None = None
    of: str = ""
    nth: int = 0

    def make(self, sources: Mapping[Path, str]) -> tuple[Path, str]:
        """Return the file in which the change is made, and its text with the change."""
        path, name = self._file(sources)
        tree = ast.parse(sources[path])
        (definition,) = (node for own, node in _definitions(tree) if own == name)
        found = [slot for slot in _slots(definition, definition) if self._picks(slot)]
        found.sort(key=lambda slot: slot.position)
        if len(found) < self.nth or (not self.nth and len(found) != 1):
            raise NoPlaceError(f"{len(found)} places in {path.name} for {self.operator} = {self.subject!r}")
        self._change(found[max(0, self.nth - 1)])
        return path, _spliced(sources[path], definition)

    def _file(self, sources: Mapping[Path, str]) -> tuple[Path, str]:
        """Return file and qualified name; what has moved is found by its name alone, if that is unique."""
        module, _, name = self.at.partition(":")
        end = ("cloister", *module.split("."))
        own = [p for p in sources if p.with_suffix("").parts[-len(end) :] == end]
        for paths in (own, sources):
            holding = [path for path in paths for known in _names(sources[path]) if known == name]
            if len(holding) == 1:
                return holding[0], name
        raise NoPlaceError(f"{len(holding)} definitions of {name}")

    def _picks(self, slot: _Slot) -> bool:
        node, parent, subject = slot.node, slot.parent, self.subject
        if not _mentions(slot.statement, self.of):
            return False
        match self.operator:
            case "drop":
                return isinstance(node, _SIMPLE) and any(_is(each, subject) for each in _acts(node))
            case "test":
                return slot.field in ("test", "ifs") and _mentions(node, subject)
            case "operator":
                return type(node) is _symbol(str(subject))
            case "constant":
                return isinstance(node, ast.Constant) and repr(node.value) == repr(subject)
            case "argument":
                call, which = re.fullmatch(r"(.+)\((\w+)\)", str(subject)).groups()  # type: ignore[union-attr]
                own = slot.node.arg if isinstance(node, ast.keyword) else str(slot.index)
                there = slot.field in ("args", "keywords") and isinstance(parent, ast.Call)
                return there and own == which and _is(parent.func, call)
            case "use":
                return isinstance(getattr(node, "ctx", None), ast.Load) and _is(node, subject)
            case "value":
                assigned = slot.field == "value" and isinstance(parent, _ASSIGNMENTS)
                return assigned and any(_is(each, subject) for each in _targets(parent))
            case "returns":
                return slot.field == "value" and isinstance(parent, ast.Return) and _mentions(node, subject)
        raise NoPlaceError(f"no operator {self.operator!r}")

    def _change(self, slot: _Slot) -> None:
        if self.operator == "drop":
            slot.put(ast.Pass())
        elif self.operator == "operator":
            slot.put(_symbol(str(self.to))())
        elif self.operator == "argument" and self.to is None:
            slot.put(None)
        elif isinstance(slot.node, ast.keyword):
            slot.node.value = _expression(str(self.to), slot.node.value)
        else:
            slot.put(_expression(str(self.to), slot.node))


@dataclass(frozen=True)
class _Slot:
    """A node where it hangs: in a field of its parent, and in which statement."""

    parent: ast.AST
    field: str
    index: int | None
    statement: ast.AST

    @property
    def node(self) -> ast.AST:
        held = getattr(self.parent, self.field)
        return held if self.index is None else held[self.index]

    @property
    def position(self) -> tuple[int, int]:
        placed = self.node if hasattr(self.node, "lineno") else self.parent
        return placed.lineno, placed.col_offset

    def put(self, node: ast.AST | None) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index : self.index + 1] = [] if node is None else [node]


def _slots(parent: ast.AST, statement: ast.AST) -> Iterator[_Slot]:
    """Yield everything below a node but annotations."""
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                own = child if isinstance(child, ast.stmt) else statement
                yield _Slot(parent, name, index, own)
                yield from _slots(child, own)


def _definitions(parent: ast.AST, prefix: str = "", inside: bool = False) -> Iterator[tuple[str, ast.stmt]]:
    """Yield functions, classes, and names that modules and classes assign, with their qualified names."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, _BLOCKS):
            yield prefix + node.name, node
            function = not isinstance(node, ast.ClassDef)
            yield from _definitions(node, f"{prefix}{node.name}.", function)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not inside:
            yield from ((prefix + each.id, node) for each in _targets(node) if isinstance(each, ast.Name))
        elif isinstance(node, ast.stmt):
            yield from _definitions(node, prefix, inside)


@cache
def _names(source: str) -> tuple[str, ...]:
    return tuple(name for name, _ in _definitions(ast.parse(source)))


def _targets(node: ast.AST) -> list[ast.AST]:
    """Return what an assignment sets, each of several by itself; nothing for another statement."""
    given = getattr(node, "targets", [getattr(node, "target", None)])
    return [part for each in given for part in getattr(each, "elts", [each]) if isinstance(part, ast.AST)]


def _acts(node: ast.AST) -> list[ast.AST]:
    """Return what a statement calls and sets."""
    return [*_targets(node), *(part.func for part in ast.walk(node) if isinstance(part, ast.Call))]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is(node: ast.AST, name: object) -> bool:
    """Say whether a node has a name: ``keep`` and ``journal.keep`` are names of ``self.journal.keep``."""
    return f".{_dotted(node)}".endswith(f".{name}")


def _mentions(node: ast.AST, name: object) -> bool:
    """Say whether a name or a text occurs in a node; statements inside of it are not looked at."""
    if not name or _is(node, name) or (isinstance(node, ast.Constant) and node.value == name):
        return True
    return any(_mentions(c, name) for c in ast.iter_child_nodes(node) if not isinstance(c, ast.stmt))


@cache
def _symbol(text: str) -> type[ast.AST]:
    """Return the kind of node that an operator between two names is."""
    body = ast.parse(f"a {text} b", mode="eval").body
    return type(body.ops[0] if isinstance(body, ast.Compare) else body.op)  # type: ignore[attr-defined]


def _expression(text: str, there: ast.AST) -> ast.AST:
    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return there if node.id == "_" else node

    return Filled().visit(ast.parse(text, mode="eval").body)


def _spliced(source: str, definition: ast.stmt) -> str:
    """Return the text of a module with one definition written anew."""
    lines = source.split("\n")
    first = min(node.lineno for node in (definition, *getattr(definition, "decorator_list", [])))
    anew = textwrap.indent(ast.unparse(ast.fix_missing_locations(definition)), " " * definition.col_offset)
    return "\n".join([*lines[: first - 1], anew, *lines[definition.end_lineno :]])
