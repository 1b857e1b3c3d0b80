"""Whether a result is of the code that is here: digits of a function and all that it uses in this repository.

Definitions count, not files: what a function does not use may change. Comments, docstrings, annotations,
layout, the place of a definition and the version of Python do not count. Of the library only those files and
definitions count that are named.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Parts of a syntax tree that do not change what it does.
SILENT = ("annotation", "returns", "type_comment", "type_params", "kind", "ctx")
#: Names for statements that define nothing (they run whenever a module is used), and for all of a module.
BARE, EVERYTHING = "", "*"

#: A file, a name in it, and the name after the dot where the first may be a module's.
Place = tuple[Path, str, str]
Import = (ast.Import, ast.ImportFrom)
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def code(path: Path, name: str = EVERYTHING, parts: Iterable[tuple[Path, str]] = ()) -> str:
    """Return eight digits that change with what a module's function does by code of this repository.

    Parameters
    ----------
    path : Path
        The module's file.
    name : str
        The function's name; everything in the module counts unless it is given.
    parts : iterable of (Path, str)
        Others that count: a file, and what is defined in it or ``EVERYTHING``.
    """
    digest = hashlib.sha256()
    for statement in _used((path, name, ""), set()):
        digest.update(repr(_plain(statement)).encode())
    for part in parts:
        digest.update(_part(*part))
    return digest.hexdigest()[:8]


@cache
def _part(file: Path, name: str) -> bytes:
    whole = name == EVERYTHING
    statements = _defined(file)[EVERYTHING] if whole else _used((file, name, ""), set())
    return repr([_plain(statement) for statement in statements]).encode()


def _used(place: Place, seen: set[Any]) -> Iterator[ast.stmt]:
    """Yield the statements that define a name, each followed by those that it needs."""
    path, name, attribute = place
    for statement in _defined(path).get(BARE, []) + _defined(path).get(name, []):
        key = (statement, name, attribute) if isinstance(statement, Import) else statement
        if key in seen:
            continue
        seen.add(key)
        if isinstance(statement, Import):
            needed = _imported(statement, path, name, attribute)
        else:
            yield statement
            needed = _needed(statement, path)
        for other in needed:
            yield from _used(other, seen)


def _needed(node: ast.AST, path: Path) -> Iterator[Place]:
    """Yield the names that a piece of code speaks of."""
    if isinstance(node, Import):
        yield from _imported(node, path)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield path, node.value.id, node.attr
    elif isinstance(node, ast.Name):
        yield path, node.id, ""
    else:
        for _, value in _parts(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    yield from _needed(part, path)


def _imported(
    statement: ast.Import | ast.ImportFrom, path: Path, name: str = EVERYTHING, attribute: str = ""
) -> Iterator[Place]:
    """Yield what an import brings from this repository: all of it, or what it brings under one name."""
    for alias in statement.names:
        if name not in (EVERYTHING, alias.asname or alias.name.partition(".")[0]):
            continue
        wanted = attribute or EVERYTHING
        if isinstance(statement, ast.Import):
            module = _file(alias.name)
            if alias.asname is None:  # the name is that of the first package, and the dots after it differ
                wanted = EVERYTHING
        else:
            above = path.relative_to(ROOT).parts[: -statement.level] if statement.level else ()
            source = ".".join([*above, statement.module or ""]).rstrip(".")
            module = _file(f"{source}.{alias.name}")
            if module is None:
                module, wanted = _file(source), alias.name
        if module is not None:
            yield module, wanted, ""


def _file(dotted: str) -> Path | None:
    """Return the file of a module of this repository; the library's, in its own folder, is not found."""
    base = ROOT.joinpath(*dotted.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)


@cache
def _defined(path: Path) -> dict[str, list[ast.stmt]]:
    """Return a file's statements by the names that they define."""
    found: dict[str, list[ast.stmt]] = {EVERYTHING: []}
    for _, body in _parts(ast.parse(path.read_text(encoding="utf-8"))):
        for statement in body:
            if _is_idle(statement):
                continue
            found[EVERYTHING].append(statement)
            for name in dict.fromkeys(_binds(statement)) or [BARE]:
                found.setdefault(name, []).append(statement)
    return found


def _is_idle(statement: ast.stmt) -> bool:
    """Say whether a statement does nothing when its module is imported: a text, or what a command runs."""
    if isinstance(statement, ast.If):
        return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test))
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _binds(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement of a module binds or changes."""
    if isinstance(statement, (*Function, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, Import):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, (ast.Name, ast.Attribute, ast.Subscript)):
        if isinstance(statement.ctx, ast.Store):
            while not isinstance(statement, ast.Name) and hasattr(statement, "value"):
                statement = statement.value
            yield getattr(statement, "id", BARE)
    else:
        for part in ast.iter_child_nodes(statement):
            yield from _binds(part)


def _parts(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a node that are there and change what it does."""
    for name, value in ast.iter_fields(node):
        if name in SILENT or value is None or value == []:
            continue
        documented = isinstance(node, (ast.Module, ast.ClassDef, *Function))
        if name == "body" and documented and ast.get_docstring(node) is not None:
            value = value[1:]
        yield name, value


def _plain(node: Any) -> Any:
    """Return a syntax tree as lists that are the same in every version of Python."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, ast.AST):
        return node
    parts = dict(_parts(node))
    if isinstance(node, ast.JoinedStr):  # versions differ in where they cut the texts, and in empty ones
        parts["values"] = list(_joined(node.values))
    return [type(node).__name__, *([name, _plain(value)] for name, value in parts.items())]


def _joined(values: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield the parts of an f-string, with neighbouring texts as one."""
    for is_text, group in groupby(values, lambda value: isinstance(value, ast.Constant)):
        if not is_text:
            yield from group
        elif text := "".join(str(getattr(value, "value", "")) for value in group):
            yield ast.Constant(text)
