"""`cloister codebook`: a template without a value, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import BOOK, cloister, fit, ok, pupils, refused

from cloister.app.predict import write_csv
from cloister.tables.codebook import Codebook


def test_a_template_that_is_not_filled_in(work: Path) -> None:
    ok("codebook", "exam.csv", "--task", "school", "--target", "score", "-o", "template.toml")
    sentence = refused(*fit("--codebook", "template.toml"))
    assert sentence.startswith("bounds of 'age' in template.toml must be filled in. Got an empty list. ")


def test_the_template_holds_no_value(work: Path) -> None:
    table = pupils()
    unusual = {"age": table["age"] * 0 + 71.25, "sex": np.full(len(table["age"]), "rarely")}
    write_csv("exam.csv", table | unusual)
    ok("codebook", "exam.csv", "--task", "school", "--target", "score", "-o", "t.toml")
    text = Path("t.toml").read_text()
    assert "71" not in text
    assert "rarely" not in text
    assert "039" not in text


def test_commands_to_copy_are_quoted_and_whole(work: Path) -> None:
    table = pupils()
    name = "exams of all schools of the county, as the office exported them (final).csv"
    write_csv(name, {"school name": table["school"], "when": np.full(300, "31/05/2024")} | table)
    planned = ok("plan", name, "--task", "school name", "--target", "score")
    assert f"\n  cloister codebook '{name}' --task 'school name' --target score -o codebook.toml\n" in planned
    told = ok("codebook", name, "--task", "school name", "--target", "score", "-o", "c.toml")
    assert f"\n  cloister fit '{name}' --codebook c.toml\n" in told
    assert "spelling" in Path("c.toml").read_text().partition("[features.when]")[2]


def test_codebook_refuses(work: Path) -> None:
    arguments = ["codebook", "exam.csv", "--task", "school", "--target", "score", "-o", "book.toml"]
    assert refused(*arguments).startswith("book.toml is already there and is left as it is. ")
    assert Path("book.toml").read_text() == BOOK
    ok(*arguments, "--force")
    assert Path("book.toml").read_text() != BOOK
    assert "no column 'Score'" in refused("codebook", "exam.csv", "--task", "school", "--target", "Score")
    assert "different columns" in refused("codebook", "exam.csv", "--task", "age", "--target", "age")
    assert "no folder" in refused(*arguments[:-1], "nowhere/book.toml")


def test_check_tells_the_owner_what_does_not_fit(work: Path) -> None:
    said = ok("codebook", "exam.csv", "--check", "book.toml")
    assert "A fit takes it." in said
    assert "For your own eyes" in said
    table = pupils()
    table["age"][:3] = [500, -1, np.nan]
    table["sex"][0] = "?"
    write_csv("odd.csv", table | {"note": table["sex"]})
    result = cloister("codebook", "odd.csv", "--check", "book.toml")
    assert result.exit_code == 1
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "sex: 300 rows, 1 not listed (refused): '?' (1)" in result.stdout
    assert "Not in the codebook, and not used: note." in result.stdout
    assert "A fit would refuse this file: mend age, sex." in result.stdout
    advice = "write in book.toml: age: missing = VALUE, with a publicly known usual one (5 to 20) for VALUE"
    assert advice in " ".join(result.stdout.split())
    found = json.loads(cloister("codebook", "odd.csv", "--check", "book.toml", "--json").stdout)
    assert found["refused"] == ["age", "sex"]
    assert found["columns"]["age"] | {"examples": {}} == {
        "clipped_below": 1,
        "clipped_above": 1,
        "missing": 1,
        "filled": False,
        "refused": 1,
        "examples": {},
    }
    assert cloister("codebook", "exam.csv", "--check", "book.toml", "--task", "school").exit_code == 2
    twice = ["--target", "score", "--target", "score"]
    assert "Name each once." in refused("codebook", "exam.csv", "--check", "book.toml", *twice)
    write_csv("older.csv", table | {"age": table["age"] + 1000})
    assert "299 (99.7 %)" in cloister("codebook", "older.csv", "--check", "book.toml").stdout
    write_csv("older.csv", table | {"age": np.full(300, 1000)})
    assert "300 (100 %)" in cloister("codebook", "older.csv", "--check", "book.toml").stdout
    assert cloister("codebook", "exam.csv", "--task", "school").exit_code == 2


def test_check_counts_tasks_and_names_look_alikes(work: Path) -> None:
    assert "look alike" not in ok("codebook", "exam.csv", "--check", "book.toml")  # 000 to 039
    rows = "".join(
        f"{name},12,F,30\n" for name in ("Elm Street", "Elm Street", "Elm street", "Elm Stret", "Oak")
    )
    Path("typos.csv").write_text("school,age,sex,score\n" + rows)
    said = " ".join(ok("codebook", "typos.csv", "--check", "book.toml").split())
    assert "4 tasks by column 'school', of 1 to 2 rows each; fewest: 'Elm Stret' (1)" in said
    assert "'Elm Street' and 'Elm street'; 'Elm Stret' and 'Elm street'. Two spellings of one party" in said
    pairs = json.loads(ok("codebook", "typos.csv", "--check", "book.toml", "--json"))["look_alikes"]
    assert len(pairs) == 3


def test_check_names_rows_without_a_target(work: Path) -> None:
    table = pupils()
    table["score"][[6, 41]] = np.nan
    write_csv("odd.csv", table)
    check, skipped = ("codebook", "odd.csv", "--check", "book.toml"), "--skip-missing-targets"
    said = " ".join(cloister(*check).stdout.split())
    assert "that have no 'score', and teach nothing: 2 (7, 42). To leave such rows out, add --skip-" in said
    assert "Tasks of which no row" not in said
    said = " ".join(ok(*check, skipped).split())
    assert f"odd.csv against book.toml: {len(table['score']) - 2} rows." in said
    assert "teach nothing: 2 (7, 42). They were left out here, as `cloister fit --skip-" in said
    assert "A fit takes it." in said
    template = ["codebook", "odd.csv", "--task", "school", "--target", "score", skipped]
    assert "looks at no row" in " ".join(cloister(*template).stderr.split())

    table["score"][table["school"] == "007"] = np.nan
    write_csv("odd.csv", table)
    said = " ".join(cloister("codebook", "odd.csv", "--check", "book.toml").stdout.split())
    assert "no row has a 'score', and which a fit refuses all the same: 1 ('007'). Fill in one" in said
    assert json.loads(cloister(*check, skipped, "--json").stdout)["refused"] == ["score"]


@pytest.mark.parametrize(("cell", "why"), [("", "an entry"), ("  ", "be empty"), ("001 ", "'001 '")])
def test_check_refuses_a_task_column_as_fit_does(work: Path, cell: str, why: str) -> None:
    table = pupils()
    names = table["school"].astype("U9")
    names[0] = cell
    write_csv("odd.csv", table | {"school": names})
    sentence = refused("fit", "odd.csv", "--codebook", "book.toml")
    result = cloister("codebook", "odd.csv", "--check", "book.toml", "--json")
    assert result.exit_code == 1
    assert why in sentence
    assert " ".join(json.loads(result.stdout)["task_column"].split()) == " ".join(sentence.split())


def test_check_says_what_it_could_not_know_of_tasks(work: Path) -> None:
    table = pupils()
    write_csv("none.csv", {name: column for name, column in table.items() if name != "school"})
    result = cloister("codebook", "none.csv", "--check", "book.toml")
    assert result.exit_code == 1
    assert "none.csv has no task column 'school'." in " ".join(result.stdout.split())
    write_csv("one.csv", table | {"school": np.full(300, "001")})
    assert "they are all of one task" in " ".join(ok("codebook", "one.csv", "--check", "book.toml").split())
    Path("bare.toml").write_text(BOOK.replace('task = "school"', ""))
    assert "names no task column" in ok("codebook", "exam.csv", "--check", "bare.toml")


def test_check_says_how_to_mend_what_people_write(work: Path) -> None:
    table = pupils()
    age = table["age"].astype("U9")
    age[:2] = ["-", "1,234"]
    write_csv("odd.csv", table | {"age": age, "when": np.full(300, "22.08.2025")})
    ok("codebook", "odd.csv", "--task", "school", "--target", "score", "-o", "t.toml")
    assert (
        "for numbers or dates"
        in Path("t.toml").read_text().partition("[features.age]")[2].partition("[features")[0]
    )
    Path("dates.toml").write_text(f"{BOOK}[features.when]\nbounds = [2020-01-01, 2026-12-31]\n")
    said = " ".join(cloister("codebook", "odd.csv", "--check", "dates.toml").stdout.split())
    assert 'when: spelling = "%d.%m.%Y"' in said
    assert "age: leave a cell empty" in said
    assert "age: write 1234 instead of 1,234" in said
    score = table["score"].astype("U9")
    score[0] = "absent"
    write_csv("odd.csv", table | {"score": score})
    said = " ".join(cloister("codebook", "odd.csv", "--check", "book.toml").stdout.split())
    assert "Mend the cells: score: write a number in every cell, or leave it empty" in said
    Path("slip.toml").write_text(BOOK.replace("[5, 20]", "[5, 20"))
    assert refused("codebook", "exam.csv", "--check", "slip.toml").endswith("Mend that line.")


def test_a_roster_is_held_against_the_table_and_words_are_used(work: Path) -> None:
    names = sorted(set(pupils()["school"].tolist()))
    words = 'task_noun = "school"\nrow_noun = "pupil"\n'
    Path("book.toml").write_text(f"roster = {json.dumps(names)}\n{words}{BOOK}")
    said = ok("codebook", "exam.csv", "--check", "book.toml")
    assert f"{len(names)} schools by column 'school', of 4 to 11 pupils each" in said
    assert "A fit takes it." in said
    assert f"{len(names)} tasks" in ok("plan", "--codebook", "book.toml")
    ok(*fit())
    assert f" over {len(names)} schools" in ok("summary", "run")
    ok("report", "run", "--public", "-o", "page.html")
    page = " ".join(Path("page.html").read_text(encoding="utf-8").split())
    assert "Here tasks are schools and rows are pupils." in page
    assert "schools, each with a model of its own" in page
    Path("book.toml").write_text(f"roster = {json.dumps(['O00', *names[1:]])}\n{words}{BOOK}")
    wrong = "Every school of exam.csv must be on the codebook's roster. Got '000'"
    assert wrong in cloister("codebook", "exam.csv", "--check", "book.toml").stdout
    assert refused(*fit()).startswith(wrong)
    assert refused("plan", "exam.csv", "--codebook", "book.toml").startswith(wrong)


def test_a_template_of_several_targets(work: Path) -> None:
    several = ["codebook", "exam.csv", "--task", "school", "--target", "score", "--target", "sex"]
    ok(*several, "-o", "two.toml")
    text = Path("two.toml").read_text()
    text = text.replace("bounds = []", "bounds = [0, 50]").replace("classes = []", 'classes = ["F", "M"]')
    Path("two.toml").write_text(text)
    assert [book.target.name for book in Codebook.load_all("two.toml")] == ["score", "sex"]
    assert "A fit takes it." in ok("codebook", "exam.csv", "--check", "two.toml", "--target", "sex")
    assert "Name each once" in refused(*several, "--target", "sex", "-o", "three.toml")
    assert "must be a target of two.toml" in refused(*several[:2], "--check", "two.toml", "--target", "age")


def test_an_option_with_a_value_is_given_once(work: Path) -> None:
    """Of two budgets the last would silently be the one."""
    result = cloister(*fit("--epsilon", 1, "--epsilon", 8))
    assert (result.exit_code, result.stderr) == (2, "Error: --epsilon must be given once. Leave one out.\n")
