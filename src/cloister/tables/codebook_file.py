"""How a codebook's columns stand in a file: a table of keys for each, and the template to fill in."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import tomli_w

from cloister.core.document import check_format
from cloister.core.errors import InputError
from cloister.tables.column_types import SPELLINGS, TYPES, Categorical, Numeric, Target
from cloister.tables.feature import Feature, require
from cloister.tables.reading import Kind
from cloister.tables.targets import KINDS

#: The first format knows bounds and levels alone, and a codebook that needs no more is still written in it.
_FIRST, _LATEST = "cloister codebook 1", "cloister codebook 2"

_HEAD = """\
# What is publicly known about each column. Write what is *possible*, from the questionnaire, the law or
# common sense (age: [0, 120]), not what is in the file: a minimum, a maximum or a rare level read from
# private data leaks. Numbers beyond their bounds are clipped; a level that is not listed is refused.
# A column that should not be learned from (a number of a person, say) may be deleted here, with its heading.
#
# More may be said of a feature, a line each under its [features.NAME]:
#   missing = 35            an empty cell counts as this number, and is marked by a column of its own
#   missing = "unknown"     for levels: an empty cell counts as this level
#   transform = "log"       or "log1p", "sqrt": for amounts
#   cuts = [18, 65]         steps instead of a straight line; knots = [20, 40, 60] for one that bends
#   ordinal = true          for levels in order: one column
#   spelling = "%d.%m.%Y"   beside bounds = [2020-01-01, 2026-12-31], for dates that are not written
#                           2024-05-31: %d day, %m month, %Y year
#   parts = ["days", "weekday", "month"]      for dates
#   aliases = { male = "M", m = "M" }         other spellings of a level; ignore_case = true for capitals
# And at the top, before [target]:
#   roster = ["Ahlen", "Beckum"]        all tasks, by name: a table with another, or without one, is refused
#   task_noun = "clinic"                what a task is called, and row_noun = "patient"
#   empty = ["?", "unknown"]            words that stand for an empty cell, in all columns
#   interactions = [["age", "sex"]]     if the effect of one feature depends on another
# And under [target], if it is not a plain number or classes:
#   kind = "count"          with bounds; exposure = "months" names the column that they are counted over
#   kind = "positive"       for amounts, with bounds above 0
#   kind = "ordered"        for classes in order, with classes; these may have aliases and ignore_case too
"""
_HINTS = {
    "numeric": "bounds = []  # numeric: [lowest possible, highest possible]; if codes: {levels} = [1, 2, 3]",
    "text": '{levels} = []  # text: every possible one, ["a", "b"]; or bounds, if these are numbers',
    "text feature": (
        'levels = []  # text: every possible level, ["a", "b"], the first is the reference; for numbers or '
        "dates: bounds, and spelling as above"
    ),
    "boolean": "{levels} = [false, true]  # true, yes, t, y or 1; false, no, f, n or 0",
    "date": "bounds = []  # dates: [first possible, last possible], such as [2020-01-01, 2026-12-31]",
}


#: What to write instead of what a target cannot have.
_OF_TARGETS = {
    "family": 'Of counts write kind = "count".',
    "exposure": 'Write kind = "count" too.',
    "ordinal": 'Of classes in order write kind = "ordered".',
    "transform": 'Of amounts whose logarithm is to be predicted write kind = "positive".',
    "missing": "Leave rows without a target out: --skip-missing-targets.",
    "empty": "Write empty at the top, for all columns.",
}


def template(columns: Mapping[str, Kind], task: str | None, *targets: str) -> str:
    """TOML text to fill in: column names and kinds, and no value from the data."""
    lines = [_HEAD] + ([] if task is None else [tomli_w.dumps({"task": task})])
    for target in targets:
        require(target in columns, f"target must be a column. Got {target!r}. Choose one of {[*columns]}.")
        goal = "text" if columns[target] == "date" else columns[target]
        head = "[target]" if len(targets) == 1 else "[[target]]"
        lines += [head, tomli_w.dumps({"name": target}).rstrip(), _HINTS[goal].format(levels="classes"), ""]
    for name in (name for name in columns if name not in (task, *targets)):
        key = tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
        kind = "text feature" if columns[name] == "text" else columns[name]
        lines += [f"[features.{key}]", _HINTS[kind].format(levels="levels"), ""]
    return "\n".join(lines)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return what stands in a codebook file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"There is no codebook {path}. Check the path, or write one: `cloister codebook DATA --task "
            f"COLUMN --target COLUMN -o {path}`."
        ) from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder. Name the file of a codebook, such as book.toml.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"codebook {path} must be readable TOML. Got: {error}. Mend that line.") from error


def check_codebook_format(found: object, source: str) -> None:
    check_format(None if found == _FIRST else found, _LATEST, source)


def codebook_format(entries: Sequence[Mapping[str, Any]], interactions: Sequence[object]) -> str:
    """Return the first format if nothing needs the latest."""
    return _FIRST if all(map(_is_plain, entries)) and not interactions else _LATEST


def _is_plain(entry: Mapping[str, Any]) -> bool:
    """Say whether a column has bounds or levels that are not dates, and nothing else."""
    limits = entry.get("bounds", entry.get("levels", ()))
    return len(entry) == 1 and len(limits) > 0 and not any(isinstance(limit, date) for limit in limits)


def date_text(value: Any) -> Any:
    """Return an entry with dates as ISO text, which JSON can hold; `from_entry` reads it too."""
    if isinstance(value, Mapping):
        return {key: date_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [date_text(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


def from_spec(name: str, spec: Any) -> Feature:
    """Read a mapping's value: a tuple is a range, a list is levels, a dictionary has the keys of a file."""
    if isinstance(spec, Mapping):
        return from_entry(name, spec, "levels", "bounds")
    limits = isinstance(spec, tuple) and len(spec) == 2
    kind = _type_of("bounds", spec) if limits else None
    if kind is None and limits and all(type(limit) in (int, float) for limit in spec):
        kind = Numeric  # which says that one of them is no number to compute with
    return Categorical(name, spec) if kind is None else kind.from_entry(name, spec, {})


def _type_of(key: str, limits: Sequence[Any]) -> type[Feature] | None:
    return next((kind for kind in TYPES if kind.key == key and kind.takes(limits)), None)


def target_entry(part: Target) -> dict[str, Any]:
    """Return the keys of the target: its levels are classes."""
    return {"classes" if key == "levels" else key: value for key, value in part.entry().items()}


def as_target(part: Feature) -> Target:
    """Return what is said of the target; refuse what only features can have."""
    more = [key for key in [*part.entry()][1:] if key not in SPELLINGS]
    if isinstance(part, tuple(KINDS.values())) or (isinstance(part, Numeric | Categorical) and not more):
        return part  # type: ignore[return-value]
    got = ", ".join(more) if isinstance(part, Numeric | Categorical) else f"{type(part).__name__.lower()}s"
    raise InputError(
        f"The target {part.name!r} must have bounds of numbers or classes, and nothing else. Got {got}. "
        "To predict a logarithm, say, make a column of it."
    )


def target_from_entry(name: str, found: Any, source: str, classes: str = "classes") -> Target:
    """Read the keys of the target; ``kind`` says what it is beside a plain number or classes."""
    if not isinstance(found, Mapping) or "kind" not in found:
        plain = ("name", "bounds", classes, *SPELLINGS)
        more = [key for key in found if key not in plain] if isinstance(found, Mapping) else []
        require(
            not more,
            f"the target {name!r} in {source} must have bounds of numbers or {classes}, which may have "
            f"{' and '.join(SPELLINGS)}, and nothing else but a kind. Got {', '.join(more)}. "
            f"{_OF_TARGETS.get(more[0] if more else '', 'Remove or respell it.')}",
        )
        return as_target(from_entry(name, found, classes, source))
    kind = KINDS.get(str(found["kind"]))
    keys = {key: value for key, value in found.items() if key not in ("name", "kind")}
    require(
        kind is not None,
        f"kind of the target {name!r} in {source} must be one of {', '.join(KINDS)}. Got {found['kind']!r}. "
        "Leave it out for a plain number or classes.",
    )
    assert kind is not None
    unknown = [key for key in keys if key not in kind.keys]
    require(
        not unknown,
        f"a target of kind {found['kind']!r} in {source} may have {', '.join(kind.keys)}. Got "
        f"{', '.join(unknown)}. Remove or respell it.",
    )
    return kind.from_keys(name, keys)


def target_from_spec(name: str, spec: Any) -> Target:
    """Read a mapping's value for the target, as `from_spec`."""
    if isinstance(spec, Mapping):
        return target_from_entry(name, spec, "bounds", "levels")
    return as_target(from_spec(name, spec))


def by_name(rows: Mapping[str, Any] | Sequence[Any], source: str) -> list[tuple[str, Any]]:
    """Return the name and the keys of each feature, from tables by name or from a list of tables with one."""
    if isinstance(rows, Mapping):
        return [*rows.items()]
    bare = [row for row in rows if not (isinstance(row, Mapping) and isinstance(row.get("name"), str))]
    require(
        not bare,
        f"every feature in {source} must be a table with a name. Got {bare[:1]}. Write a [features.NAME] "
        "table for each.",
    )
    return [(row["name"], row) for row in rows]


def from_entry(name: str, found: Any, levels: str, source: str) -> Feature:
    """Read the keys of one column."""
    given = {key: found[key] for key in found if key != "name"} if isinstance(found, Mapping) else {}
    kinds = [key for key in ("bounds", levels) if key in given]
    limits = [*given[kinds[0]]] if kinds and isinstance(given[kinds[0]], list | tuple) else None
    require(
        len(kinds) == 1 and limits is not None and (kinds[0] == levels or len(limits) in (0, 2)),
        f"{name!r} in {source} must have either bounds = [low, high] or {levels} = [...]. Got {given}. "
        "Write exactly one of the two.",
    )
    assert limits is not None
    require(
        bool(limits),
        f"{kinds[0]} of {name!r} in {source} must be filled in. Got an empty list. "
        "Write what is publicly possible, not what is in the data"
        f"{', or delete the column with its heading' * (levels == 'levels')}.",
    )
    rest = {key: value for key, value in given.items() if key != kinds[0]}
    kind = _type_of("levels" if kinds[0] == levels else "bounds", limits) or Numeric
    unknown = [key for key in rest if key not in kind.options]
    require(
        not unknown,
        f"{name!r} in {source} may also have {', '.join(kind.options)}. Got {', '.join(unknown)}. "
        + ("Write empty at the top, for all columns." if "empty" in unknown else "Remove or respell it."),
    )
    return kind.from_entry(name, limits, rest)
