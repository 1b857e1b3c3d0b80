"""`cloister verify`: damage, edits and forgeries."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import cloister, contents, fit, ok, rebuild, refused, seal

from cloister import Billboard, Guarantee
from cloister.store import Release


def fails(check: str) -> dict[str, object]:
    result = cloister("verify", "run", "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["ok"] is False
    bad = {item["check"]: item["detail"] for item in said["checks"] if item["ok"] is False}
    assert check in bad
    assert "does NOT pass" in cloister("verify", "run").stdout
    return bad


def test_a_truncated_board(work: Path) -> None:
    data = Path("run/board").read_bytes()
    for size in (len(data) - 1, len(data) // 2, 30, 0):
        Path("run/board").write_bytes(data[:size])
        fails("the board is whole")
        before = contents(work)
        refused("predict", "run", "exam.csv", "-o", "p.csv")
        refused("replay", "run", "exam.csv", "--task-name", "000", "-o", "m.json")
        assert contents(work) == before


def test_an_edited_board(work: Path) -> None:
    data = bytearray(Path("run/board").read_bytes())
    data[len(data) // 2] ^= 1
    Path("run/board").write_bytes(data)
    fails("the board is whole")
    assert "was edited" in refused("replay", "run", "exam.csv", "--task-name", "000")


def test_no_changed_byte_is_passed_over_or_ends_in_a_traceback(work: Path) -> None:
    data = Path("run/board").read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.choice(len(data), 40, replace=False):
        changed = bytearray(data)
        changed[at] ^= 1 << rng.integers(8)
        Path("run/board").write_bytes(changed)
        assert cloister("verify", "run").exit_code == 1


def test_a_forged_board(work: Path) -> None:
    original = Path("run/board").read_bytes()
    rebuild(lambda release, digest: (Release(release.value, **release.facts() | {"noise": 0.1}), digest))
    fails("every release has the noise that the plan prices")
    Path("run/board").write_bytes(original)
    rebuild(lambda release, digest: (Release(release.value, **release.facts() | {"channel": 7}), digest))
    fails("every release has the noise that the plan prices")
    Path("run/board").write_bytes(original)
    rebuild(lambda release, digest: (release, digest | {"mean": digest["mean"] + 1e-3}))
    fails("what is posted follows from the releases")
    Path("run/board").write_bytes(original)
    rebuild(lambda release, digest: (release, digest))
    ok("verify", "run")


def test_an_unfinished_board(work: Path) -> None:
    board = Billboard.load("run/board")
    board.before(board.rounds - 1).save("run/board")
    fails("the run is complete")
    assert "Finish the run first" in refused("replay", "run", "exam.csv", "--task-name", "000")


def test_a_changed_plan_or_guarantee(work: Path) -> None:
    plan = Path("run/plan.toml").read_text()
    Path("run/plan.toml").write_text(plan.replace("n_tasks = 40", "n_tasks = 60"))
    fails("the board belongs to the plan")
    Path("run/plan.toml").write_text("n_tasks = ")
    fails("the plan can be read")
    Path("run/plan.toml").write_text(plan)
    said = Path("run/guarantee.json").read_text()
    Path("run/guarantee.json").write_text(re.sub(r'"epsilon": [\d.]+', '"epsilon": 0.1', said, count=1))
    bad = fails("the guarantee is what plan and board give")
    assert "epsilon = 0.1" in str(bad["the guarantee is what plan and board give"])
    Path("run/guarantee.json").unlink()
    fails("the guarantee is what plan and board give")
    Path("run/guarantee.json").write_text(said)
    Path("run/guarantee.txt").write_text("Perfectly safe.\n")
    fails("the guarantee is what plan and board give")
    claimed = dataclasses.replace(
        Guarantee.from_dict(json.loads(said)), noise="made by angels, perfectly private"
    )
    Path("run/guarantee.json").write_text(claimed.to_json())
    Path("run/guarantee.txt").write_text(f"{claimed}\n")
    fails("the guarantee is what plan and board give")  # the board itself says what noise it has


def test_the_curve_is_computed_anew(work: Path) -> None:
    path, line = Path("run/guarantee.json"), "the guarantee is what plan and board give"
    said = json.loads(path.read_text())
    mu = said["curve"]["mu"]

    def write(**changes: object) -> None:
        path.write_text(json.dumps({k: v for k, v in (said | changes).items() if v is not None}))
        seal()

    write()
    assert "detected at most" in ok("verify", "run")
    write(curve={"mu": mu / 2})
    assert "says curve" in fails(line)[line]
    write(curve={"points": [[0.0, 0.001]]})
    fails(line)
    write(statement=said["statement"] | {"how strongly": "perfectly."})
    assert "its statement is not what its numbers say" in fails(line)[line]
    write(detection={"false_alarms": 0.05, "at_most": 0.051})
    fails(line)
    old = {
        "format": "cloister guarantee 2",
        "curve": None,
        "scope": None,
        "statement": None,
        "detection": None,
    }
    write(**old)
    Path("run/guarantee.txt").write_text("Perfectly safe.\n")
    seal()
    said_then = ok("verify", "run")  # it claims less, and its words are not relied on
    assert "was not compared" in said_then
    assert "Who is protected" in said_then
    write(**old | {"curve": {"mu": mu / 2}})
    fails(line)


def test_verify_says_when_the_guarantee_does_not_hold(work: Path) -> None:
    said = ok("fit", "exam.csv", "--codebook", "book.toml", "-o", "bare", "--epsilon", "inf")
    assert "NOT PRIVATE" in said
    assert "does NOT hold" in " ".join(ok("verify", "bare").split())
    assert json.loads(ok("verify", "bare", "--json"))["holds"] is False
    assert "is not the folder of a run: it has no plan.toml" in refused("verify", ".")


@pytest.mark.parametrize("name", ["codebook.toml", "estimator.toml", "guarantee.txt", "README.txt"])
def test_a_public_file_that_was_changed_added_or_removed(work: Path, name: str) -> None:
    line, path = "every public file is as it was written", Path("run", name)
    head, text = Path("run/head.txt").read_text().strip(), path.read_text()
    ok("verify", "run", "--head", head)
    path.write_text(f"{text}\n")
    assert fails(line)[line].startswith(f"{name} was changed since")
    seal()
    assert f"ok  {line}" in cloister("verify", "run").stdout
    assert "NO  the head is the one that was kept" in cloister("verify", "run", "--head", head).stdout
    path.unlink()
    if name != "codebook.toml":
        assert fails(line)[line].startswith(f"{name} is gone")
    path.write_text(text)
    seal()
    assert Path("run/head.txt").read_text() == head
    Path("run/groups.json").write_text("{}")
    assert fails(line)[line].startswith("groups.json was added since")


def test_the_manifest_is_checked_without_this_library(work: Path) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("needs sha256sum")
    subprocess.run(["sha256sum", "-c", "--quiet", "manifest.txt"], cwd="run", check=True)
    said = subprocess.run(
        ["sha256sum", "manifest.txt"], cwd="run", check=True, capture_output=True, text=True
    )
    assert said.stdout.split()[0] == Path("run/head.txt").read_text().strip()


def test_a_folder_of_an_older_version_has_the_head_of_its_board(work: Path) -> None:
    kept, head = Path("run/head.txt").read_text().strip(), Billboard.load("run/board").head.hex()
    assert "it covers no other file" in ok("verify", "run", "--head", head)
    Path("run/manifest.txt").unlink()
    fails("the head is the one that was kept")
    Path("run/head.txt").write_text(f"{head}\n")
    said = " ".join(ok("verify", "run", "--head", head).split())
    assert "there is no manifest.txt, as in folders of older versions" in said
    assert (
        "NO  the head" in cloister("verify", "run", "--head", kept).stdout
    )  # nobody can make one of the other


def test_a_journal_is_checked_as_far_as_it_goes(work: Path) -> None:
    Path("journal").mkdir()
    for name in ("plan.toml", "board"):
        shutil.copy(Path("run", name), Path("journal", name))
    said = json.loads(ok("verify", "journal", "--json"))
    assert [item["check"] for item in said["checks"] if item["ok"] is None] == [
        "every public file is as it was written",
        "the head was not compared",
        "codebook and groups fit the plan",
        "the guarantee is what plan and board give",
    ]
    assert said["holds"]
    assert said["guarantee"]["epsilon"] == json.loads(Path("run/guarantee.json").read_text())["epsilon"]
    assert said["head"] == Billboard.load("run/board").head.hex()
    ok("verify", "journal", "--head", said["head"])
    assert cloister("verify", "journal", "--head", "0" * 64).exit_code == 1
    data = Path("journal/board").read_bytes()
    Path("journal/board").write_bytes(data[: len(data) // 2])
    assert "does NOT pass" in cloister("verify", "journal").stdout
    Path("journal/board").write_bytes(data)
    Path("journal/guarantee.json").write_text("{}")  # what a journal promises is compared
    assert "does NOT pass" in cloister("verify", "journal").stdout
    Path("journal/run.toml").touch()  # what says more is a run's folder
    assert "has no codebook.toml" in refused("verify", "journal")


def test_the_guarantee_is_in_the_codebooks_words(work: Path) -> None:
    words = 'task_noun = "office"\nrow_noun = "visit"\n'
    Path("words.toml").write_text(words + Path("book.toml").read_text())
    ok("ledger", "create", "ledger", "--epsilon", 4, "--tasks", 40)
    printed = ok(*fit("--codebook", "words.toml", "--ledger", "ledger"))
    said = Path("run/guarantee.txt").read_text()
    assert (
        "each of the 40 offices, with all its visits. A person whose rows are in one office only is " in said
    )
    assert not re.search(r"\b[Tt]asks?\b", said.partition("Technically")[0])
    assert "all other offices" in " ".join(printed.split())
    ok("report", "run", "--public", "--ledger", "ledger", "-o", "page.html")
    page = Path("page.html").read_text()
    assert "the account of &#39;tasks&#39;" in page  # a name stays
    assert "hundred offices" in page
    ok("verify", "run")
    plain = Guarantee.from_dict(json.loads(Path("run/guarantee.json").read_text()))
    Path("run/guarantee.txt").write_text(f"{plain}\n")  # as earlier versions wrote it
    seal()
    ok("verify", "run")
    Path("run/guarantee.txt").write_text(said.replace("offices", "officers"))
    seal()
    fails("the guarantee is what plan and board give")
