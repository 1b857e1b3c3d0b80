"""Every mutant can still be made, and is given to tests that are there: to run them all takes minutes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mutants.__main__ import Mutant, chosen, read, read_sources
from mutants.places import Change, NoPlaceError

ROOT = Path(__file__).parents[1]
MUTANTS = read(ROOT / "mutants")


def test_each_is_one_change_of_the_source_as_it_is() -> None:
    sources, not_found = read_sources(ROOT), {}
    for mutant in MUTANTS:
        try:
            path, broken = mutant.change.make(sources)
        except NoPlaceError as error:
            not_found[mutant.name] = str(error)
        else:  # tests would notice a text that is no Python, whatever they test
            assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(sources[path])), mutant.name
            compile(broken, mutant.name, "exec")
    assert not_found == {}


def test_each_is_given_to_tests_that_are_there() -> None:
    for test in sorted({test for mutant in MUTANTS for test in mutant.tests}):
        found = chosen(test, ROOT)
        assert found, test
        for path, *function in (each.split("::") for each in found):
            assert (ROOT / path).is_file(), test
            text = (ROOT / path).read_text(encoding="utf-8")
            assert not function or re.search(rf"def {function[-1].split('[')[0]}\(", text), test


SOURCE = '''
LIMIT = 3


class Box:
    """What is kept."""

    @property
    def size(self) -> int:
        return self.kept

    def keep(self, number: int) -> None:
        if number < self.size or number < 0:
            self.log.write("small", mode=LIMIT)
        level = number + 1
        self.kept = max(level, number)
'''


@pytest.mark.parametrize(
    ("at", "change", "line"),
    [
        ("a.b:LIMIT", {"constant": 3, "to": "4"}, "LIMIT = 4"),
        ("a.b:Box.keep", {"drop": "log.write"}, "            pass"),
        ("a.b:Box.keep", {"drop": "self.kept"}, "        pass"),
        (
            "a.b:Box.keep",
            {"test": "size", "to": "not _"},
            "        if not (number < self.size or number < 0):",
        ),
        (
            "a.b:Box.keep",
            {"operator": "<", "nth": 2, "to": "<="},
            "        if number < self.size or number <= 0:",
        ),
        ("a.b:Box.keep", {"argument": "write(mode)"}, "            self.log.write('small')"),
        ("a.b:Box.keep", {"argument": "max(1)", "to": "0"}, "        self.kept = max(level, 0)"),
        (
            "a.b:Box.keep",
            {"use": "number", "of": "level", "nth": 2, "to": "1"},
            "        self.kept = max(level, 1)",
        ),
        ("elsewhere:Box.keep", {"value": "level", "to": "2 * _"}, "        level = 2 * (number + 1)"),
        ("a.b:Box.size", {"returns": "", "to": "0"}, "        return 0"),
    ],
)
def test_an_operator_changes_one_line(at: str, change: dict[str, object], line: str) -> None:
    entry = {"name": "one", "breaks": "it", "tests": [], "at": at, **change}
    _, broken = Mutant.of(entry).change.make({Path("src/cloister/a/b.py"): SOURCE})
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    assert [new for new in ast.unparse(ast.parse(broken)).splitlines() if new not in plain] == [line]


@pytest.mark.parametrize(
    ("at", "change"),
    [
        ("a.b:Box.lost", ("drop", "write")),
        ("a.b:Box.keep", ("drop", "read")),
        ("a.b:Box.keep", ("operator", "<", "<=")),
    ],
)
def test_no_place_and_several_are_refused(at: str, change: tuple[str, ...]) -> None:
    with pytest.raises(NoPlaceError):
        Change(at, *change).make({Path("src/cloister/a/b.py"): SOURCE})
