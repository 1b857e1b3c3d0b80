"""Draw the library's rooms, and the way of a message through them, from the code: ``python docs/draw.py``.

``rooms.svg`` is made of the import graph and of the layers in pyproject.toml, ``message.svg`` of the calls
that one real round makes. A test holds the names in both against the code: rooms and steps are those that
exist, and steps stand in the order of a real run. The dots of ``rooms.svg`` are as of when it was drawn.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any

import grimp
import numpy as np

from cloister import Plan, Tasks, run
from cloister.algorithms import MeanRegularized
from cloister.channel import Channel
from cloister.engines import Local
from cloister.engines.curator import Curator
from cloister.learners import LeastSquares
from cloister.ledger import Ledger
from cloister.privacy.noise import discrete_gaussian
from cloister.store.billboard import Billboard

DOCS = Path(__file__).parent
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#1f2937}.small{font-size:11px;fill:#6b7280}.head{font-weight:600}
.box{fill:#f8fafc;stroke:#cbd5e1}.home{fill:#fef3c7;stroke:#f59e0b}.curator{fill:#e0e7ff;stroke:#6366f1}
.public{fill:#dcfce7;stroke:#22c55e}.dot{fill:#334155}.line{stroke:#e5e7eb}.arrow{stroke:#64748b;fill:none}
@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.small{fill:#9ca3af}.box{fill:#1f2937;stroke:#4b5563}
.home{fill:#78350f}.curator{fill:#312e81}.public{fill:#14532d}.dot{fill:#e5e7eb}.line{stroke:#374151}}
</style>"""

#: Who makes each step of a round, and what it does; the order is that of the calls.
STEPS: dict[Callable[..., Any], tuple[str, str]] = {
    MeanRegularized.start: ("public", "what the board says before anyone speaks"),
    Ledger.charge: ("curator", "the whole run is paid for before anything leaves"),
    MeanRegularized.init: ("home", "each task makes its first state"),
    MeanRegularized.send: ("home", "works on its own rows with the board"),
    Channel.whole: ("home", "clipped to the ball, rounded to the grid"),
    Channel.whole_sum: ("home", "lifted, and summed as whole numbers"),
    discrete_gaussian: ("curator", "exact noise, drawn for this sum"),
    MeanRegularized.update: ("public", "what follows from the release and the board"),
    Billboard.post: ("public", "one record more, hash-chained"),
    MeanRegularized.finish: ("home", "each task makes its own model, and keeps it"),
}


def traced() -> list[Callable[..., Any]]:
    """Return the steps in the order in which a real run of one round takes them."""
    rng = np.random.default_rng(0)
    tasks = Tasks.from_arrays(rng.uniform(size=(60, 2)), rng.uniform(size=60), np.arange(60) % 20)
    plan = Plan(MeanRegularized(LeastSquares(2), rounds=1), n_tasks=20).calibrate(1.0)
    ledger = Ledger(2.0, 0.005)
    known = {step.__code__: step for step in STEPS}
    found: list[Callable[..., Any]] = []
    real = Curator.charge.__code__  # before the charge a plan is tried on made-up rows

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal started
        started = started or (event == "call" and frame.f_code is real)
        step = known.get(frame.f_code) if event == "call" else None
        if step is not None and step not in found and (started or step is MeanRegularized.start):
            found.append(step)

    started = False
    sys.setprofile(note)
    try:
        run(plan, tasks, random_state=0, ledger=ledger, engine=Local(threads=1))
    finally:
        sys.setprofile(None)
    return found


def label(step: Callable[..., Any]) -> str:
    """Return where in the library a step is, as ``message.svg`` names it."""
    return f"{step.__module__.removeprefix('cloister.')}.{step.__qualname__}"


def draw_message() -> str:
    """Return the steps of a round, each in the column of who makes it."""
    columns = {"home": 20, "curator": 370, "public": 720}
    titles = {
        "home": "at home: private",
        "curator": "curator: sees sums alone",
        "public": "billboard: public",
    }
    parts = [f'<text x="{x}" y="24" class="head">{titles[who]}</text>' for who, x in columns.items()]
    middle = None
    for number, step in enumerate(traced()):
        who, does = STEPS[step]
        x, y = columns[who], 44 + 58 * number
        here = (x + 160, y)
        if middle is not None:
            (x1, y1), (x2, y2) = (middle[0], middle[1] + 44), here
            parts.append(f'<path d="M{x1},{y1} C{x1},{y1 + 10} {x2},{y2 - 10} {x2},{y2}" class="arrow"/>')
        middle = here
        parts.append(f'<rect x="{x}" y="{y}" width="320" height="44" rx="7" class="{who}"/>')
        parts.append(f'<text x="{x + 10}" y="{y + 18}">{escape(label(step))}</text>')
        parts.append(f'<text x="{x + 10}" y="{y + 35}" class="small">{escape(does)}</text>')
    return _svg(1060, 50 + 58 * len(STEPS), parts)


def rooms() -> list[str]:
    """Return the rooms in the order of the import contract, the highest first."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return [room.strip(" ()") for layer in layers for room in layer.split("|")]


def draw_rooms() -> str:
    """Return a matrix: a dot says that the room of the row imports that of the column."""
    graph, names = grimp.build_graph("cloister"), rooms()
    size, left = 22, 130
    right = left + size * len(names)
    parts = ['<text x="12" y="24" class="head">A room imports only from rooms below it</text>']
    for row, name in enumerate(names):
        y = 60 + size * row
        parts.append(f'<text x="{left - 10}" y="{y}" text-anchor="end">{name}</text>')
        parts.append(f'<line x1="12" x2="{right + 520}" y1="{y + 6}" y2="{y + 6}" class="line"/>')
        for column, other in enumerate(names):
            x = left + size * column
            if name == other:
                parts.append(f'<rect x="{x + 4}" y="{y - 11}" width="13" height="13" rx="3" class="box"/>')
            elif _imports(graph, name, other):
                parts.append(f'<circle cx="{x + 10}" cy="{y - 4}" r="4" class="dot"/>')
        parts.append(f'<text x="{right + 12}" y="{y}" class="small">{escape(_purpose(name))}</text>')
    return _svg(right + 560, 60 + size * len(names), parts)


def _imports(graph: grimp.ImportGraph, importer: str, imported: str) -> bool:
    theirs = _members(graph, imported)
    return any(graph.find_modules_directly_imported_by(m) & theirs for m in _members(graph, importer))


def _members(graph: grimp.ImportGraph, room: str) -> set[str]:
    return {f"cloister.{room}"} | graph.find_descendants(f"cloister.{room}")


def _purpose(room: str) -> str:
    """Return the first line of a room's docstring."""
    module = DOCS.parent / "src" / "cloister" / room
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    first = path.read_text(encoding="utf-8").split("\n")[0].lstrip("r").strip('"').rstrip(".")
    return first.replace("``", "") if len(first) <= 72 else f"{first[:70].rsplit(' ', 1)[0]} …"


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    )
    return "\n".join([head, STYLE, *parts, "</svg>", ""])


if __name__ == "__main__":
    (DOCS / "rooms.svg").write_text(draw_rooms(), encoding="utf-8")
    (DOCS / "message.svg").write_text(draw_message(), encoding="utf-8")
