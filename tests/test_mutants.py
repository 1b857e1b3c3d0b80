"""Every mutant can still be made, and is given to tests that are there: to run them all takes hours."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mutants.__main__ import arguments, read, read_sources

ROOT = Path(__file__).parents[1]
MUTANTS = read(ROOT / "mutants")


def test_each_is_one_change_of_the_source_as_it_is() -> None:
    sources = read_sources(ROOT)
    places = {mutant.name: mutant.place(sources) for mutant in MUTANTS}
    assert [name for name, place in places.items() if place is None] == []
    for mutant in MUTANTS:
        sound = sources[places[mutant.name]]
        broken = sound.replace(mutant.old, mutant.new)
        assert broken != sound, mutant.name
        ast.parse(broken, mutant.name)  # tests would notice a text that is no Python, whatever they test


def test_each_is_given_to_tests_that_are_there() -> None:
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    for (selected, *_), test in zip(arguments(named, ROOT), named, strict=True):
        path, *function = selected.split("::")
        assert (ROOT / path).is_file(), test
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or re.search(rf"def {function[-1].split('[')[0]}\(", text), test
