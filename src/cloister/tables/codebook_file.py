"""How a codebook's columns stand in a file: a table of keys for each, and the template to fill in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import tomli_w

from cloister.core.document import check_format
from cloister.core.errors import InputError
from cloister.tables.column_types import Categorical, Date, Feature, Numeric, Target, is_real, require
from cloister.tables.reading import Kind
from cloister.tables.transforms import IDENTITY, Cuts, Monotone, Spline, Transform

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
#   spelling = "%d.%m.%Y"   for dates that are not written 2024-05-31: %d day, %m month, %Y year
#   parts = ["days", "weekday", "month"]      for dates
# And here, if the effect of one feature depends on another:  interactions = [["age", "sex"]]
"""
_HINTS = {
    "numeric": "bounds = []  # numeric: [lowest possible, highest possible]; if codes: {levels} = [1, 2, 3]",
    "text": (
        '{levels} = []  # text: every possible level, ["a", "b"]; the first is the reference. If numbers, '
        "some of them written otherwise: bounds = [lowest possible, highest possible]"
    ),
    "text feature": (
        'levels = []  # text: every possible level, ["a", "b"]; the first is the reference. If numbers, some '
        "of them written otherwise: bounds = [lowest possible, highest possible]. If dates: "
        'bounds = [2020-01-01, 2026-12-31] and, in a line below, spelling = "%d/%m/%Y"'
    ),
    "boolean": "{levels} = [false, true]  # true, yes, t, y or 1; false, no, f, n or 0",
    "date": "bounds = []  # dates: [first possible, last possible], such as [2020-01-01, 2026-12-31]",
}


def template(columns: Mapping[str, Kind], task: str | None, target: str) -> str:
    """TOML text to fill in: column names and kinds, and no value from the data."""
    require(target in columns, f"target must be a column. Got {target!r}. Choose one of {[*columns]}.")
    lines = [_HEAD] + ([] if task is None else [tomli_w.dumps({"task": task})])
    goal = "text" if columns[target] == "date" else columns[target]
    lines += ["[target]", tomli_w.dumps({"name": target}).rstrip(), _HINTS[goal].format(levels="classes")]
    for name in (name for name in columns if name not in (task, target)):
        key = tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
        kind = "text feature" if columns[name] == "text" else columns[name]
        lines += ["", f"[features.{key}]", _HINTS[kind].format(levels="levels")]
    return "\n".join(lines) + "\n"


def check_codebook_format(found: object, source: str) -> None:
    check_format(None if found == _FIRST else found, _LATEST, source)


def codebook_format(entries: Sequence[Mapping[str, Any]], interactions: Sequence[object]) -> str:
    """Return the first format if nothing needs the latest."""
    plain = all(len(found) == 1 and _plain(*found.values()) for found in entries)
    return _FIRST if plain and not interactions else _LATEST


def _plain(values: Sequence[Any]) -> bool:
    return not any(isinstance(value, date) for value in values)


def entry(part: Feature, levels: str = "levels") -> dict[str, Any]:
    """Return the keys of a column, in order, without those that have their defaults."""
    found: dict[str, Any]
    if isinstance(part, Categorical):
        found = {levels: [*part.levels]} | ({"ordinal": True} if part.ordinal else {})
    elif isinstance(part, Date):
        found = {"bounds": [part.low, part.high]}
        found |= {} if tuple(part.parts) == ("days",) else {"parts": [*part.parts]}
        found |= {} if part.spelling is None else {"spelling": part.spelling}
    else:
        found = {"bounds": [part.low, part.high]} | _transform_entry(part.transform)
    return found if part.missing is None else found | {"missing": part.missing}


def _transform_entry(transform: Transform) -> dict[str, Any]:
    if isinstance(transform, Cuts):
        return {"cuts": [*transform.points]}
    if isinstance(transform, Spline):
        return {"knots": [*transform.knots]}
    return {"transform": transform.word} if isinstance(transform, Monotone) and transform.word else {}


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
    if isinstance(spec, tuple) and len(spec) == 2 and all(map(is_real, spec)):
        return Numeric(name, *spec)
    if isinstance(spec, tuple) and len(spec) == 2:
        days = [*map(_as_date, spec)]
        if all(isinstance(day, date) for day in days):
            return Date(name, *days)
    return Categorical(name, spec)


def as_target(part: Feature) -> Target:
    """Return what is said of the target; refuse what only features can have."""
    keys = entry(part, "classes")
    if isinstance(part, Date) or len(keys) > 1:
        got = "dates" if isinstance(part, Date) else ", ".join([*keys][1:])
        raise InputError(
            f"The target {part.name!r} must have bounds of numbers or classes, and nothing else. Got {got}. "
            "To predict a logarithm, say, make a column of it."
        )
    return part


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
    if kinds[0] == levels:
        return Categorical(name, limits, **_options(name, rest, ("ordinal", "missing"), source))
    days = [*map(_as_date, limits)]
    if all(isinstance(day, date) for day in days):
        options = _options(name, rest, ("parts", "missing", "spelling"), source)
        options |= {"missing": _as_date(rest["missing"])} if "missing" in rest else {}
        return Date(name, *days, **options)
    options = _options(name, rest, ("transform", "cuts", "knots", "missing"), source)
    low, high = limits
    return Numeric(name, low, high, _transform(name, options), options.get("missing"))


def _options(name: str, given: Mapping[str, Any], known: Sequence[str], source: str) -> dict[str, Any]:
    unknown = [key for key in given if key not in known]
    require(
        not unknown,
        f"{name!r} in {source} may also have {', '.join(known)}. Got {', '.join(unknown)}. Remove or respell "
        "it.",
    )
    return dict(given)


def _transform(name: str, options: Mapping[str, Any]) -> Transform:
    shapes = [key for key in ("transform", "cuts", "knots") if key in options]
    require(
        len(shapes) < 2,
        f"{name!r} must have one of transform, cuts and knots. Got {' and '.join(shapes)}. Keep one.",
    )
    if not shapes:
        return IDENTITY
    value = options[shapes[0]]
    if shapes[0] == "transform":
        require(bool(value), f"transform of {name!r} must be a word. Got {value!r}. Leave it out.")
        return Monotone(value)
    require(
        isinstance(value, list | tuple) and all(map(is_real, value)),
        f"{shapes[0]} of {name!r} must be a list of numbers. Got {value!r}. Write {shapes[0]} = [18, 65].",
    )
    return Cuts(value) if shapes[0] == "cuts" else Spline(value)


def _as_date(value: Any) -> Any:
    """Return text, or a time of pandas, that is a date or a time as that; leave anything else as it is."""
    text = value.isoformat() if isinstance(value, datetime) else value
    try:
        return (date if len(text) == 10 else datetime).fromisoformat(text)
    except (TypeError, ValueError):
        return value
