"""The data flow of a run as a picture: what stays at home, what the curator sees, what everybody sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloister.core.spelling import counted
from cloister.plan.plan import Plan
from cloister.report.figures import Frame, caption

#: Who sees what: the task itself, whoever holds all rows in one table, the curator, everybody else.
SEEN: tuple[tuple[str, bool, bool, bool, bool], ...] = (
    ("a task's rows, and how many there are", True, True, False, False),
    ("its message in each round, clipped", True, True, True, False),
    ("the noisy sums on the billboard", True, True, True, True),
    ("what all tasks have in common, from the sums", True, True, True, True),
    ("a task's own model and predictions", True, True, False, False),
)


def seen_under(plan: Plan) -> tuple[tuple[str, bool, bool, bool, bool], ...]:
    """Return the same for a plan: who is not trusted sees no bare message."""
    if not plan.trust.at_home:
        return SEEN
    rows, (message, *_), *rest = SEEN
    leaves = (
        "as it leaves: masked, with its share of the noise" if plan.trust.masked else "with its own noise"
    )
    at_home = (message, True, True, False, False)
    return rows, at_home, (f"its message {leaves}", True, True, True, False), *rest


def _curator(plan: Plan) -> _Box:
    if plan.trust.masked:
        lines = ("sees masked messages,", "and opens their sum:", "it has the tasks' noise")
        return _Box("curator", "curator", lines)
    if plan.trust.at_home:
        return _Box("curator", "curator", ("sees noisy messages,", "and adds them up", "as they are"))
    return _Box("curator", "curator, trusted", ("sees clipped messages,", "adds them up,", "and adds noise"))


def flow_picture(plan: Plan, width: int, height: int) -> str:
    """Draw the way of a message, from left to right, or downwards where there is little room."""
    count = len(plan.rounds)
    rounds, sums = counted(count, "round"), counted(count, "noisy sum")
    boxes = (
        _Box(
            "home",
            f"{plan.n_tasks:,} tasks",
            ("each has its own rows", "and ends with its own", "model, for it alone"),
        ),
        _curator(plan),
        _Box(
            "public",
            "billboard, public",
            (f"{sums}, chained", "by hashes; what follows", "from them is free"),
        ),
    )
    kind = "masked" if plan.trust.masked else "noisy" if plan.trust.at_home else "clipped"
    said = (
        (f"a {kind}", "message of", _numbers(plan), f"in {rounds}"),
        ("", "a noisy sum", "in each round", ""),
    )
    label = (
        f"Data flow: each of {plan.n_tasks} tasks says a {kind} message to the curator in each of {rounds}; "
        "the curator posts noisy sums on a public billboard; every task listens, and makes its own model."
    )
    parts = _across(boxes, said, width) if width > 500 else _down(boxes, said)
    return Frame(width, height, (0.0, 1.0), (0.0, 1.0)).svg(parts, f"w{width}", label)


@dataclass(frozen=True)
class _Box:
    """A place where something is seen."""

    kind: str
    title: str
    lines: Sequence[str]

    def drawn(self, left: float, top: float, width: float, height: float) -> list[str]:
        first = top + (height - 20 * (len(self.lines) + 1)) / 2 + 15
        size = f'x="{left + 1}" y="{top}" width="{width - 2}" height="{height}" rx="10"'
        middle = left + width / 2
        texts = (caption(middle, first + 20 * (i + 1), line, "mid") for i, line in enumerate(self.lines))
        return [
            f'<rect class="{self.kind}" {size}/>',
            caption(middle, first, self.title, "strong mid"),
            *texts,
        ]


def _across(boxes: Sequence[_Box], said: Sequence[Sequence[str]], width: int) -> list[str]:
    box, gap, top, tall = 166, 131, 14, 128
    lefts, level = [i * (box + gap) for i in range(3)], top + tall / 2
    parts = [
        part for left, each in zip(lefts, boxes, strict=True) for part in each.drawn(left, top, box, tall)
    ]
    for left, texts in zip(lefts, said, strict=False):
        start, middle = left + box, left + box + gap / 2 - 3
        parts.append(_arrow(f"M{start + 4} {level}H{start + gap - 12}", start + gap - 3, level, 0))
        heights = (level - 52, level - 34, level - 16, level + 22)
        parts += [caption(middle, y, text, "soft mid") for y, text in zip(heights, texts, strict=True)]
    low, right, home = top + tall, lefts[2] + box / 2, lefts[0] + box / 2
    parts.append(_arrow(f"M{right} {low + 4}V{low + 44}H{home}V{low + 13}", home, low + 4, -90))
    words = "every task listens, and so may everybody: nothing leaves here"
    return [*parts, caption(width / 2, low + 36, words, "soft mid")]


def _down(boxes: Sequence[_Box], said: Sequence[Sequence[str]]) -> list[str]:
    box, gap, tall, left = 300, 62, 104, 10
    tops = [6 + i * (tall + gap) for i in range(3)]
    parts = [part for top, each in zip(tops, boxes, strict=True) for part in each.drawn(left, top, box, tall)]
    for top, (*what, when) in zip(tops, said, strict=False):
        start = top + tall
        parts.append(_arrow(f"M{left + 28} {start + 4}V{start + gap - 12}", left + 28, start + gap - 3, 90))
        texts = (" ".join(filter(None, what)), when)
        parts += [caption(left + 46, start + 27 + 18 * i, text, "soft") for i, text in enumerate(texts)]
    right, first, last = left + box, tops[0] + tall / 2, tops[2] + tall / 2
    parts.append(_arrow(f"M{right + 4} {last}H{right + 34}V{first}H{right + 13}", right + 4, first, 180))
    words = ("Every task listens, and so may everybody:", "nothing leaves a task on this way.")
    low = tops[2] + tall
    return [*parts, *(caption(left, low + 24 + 18 * i, text, "soft") for i, text in enumerate(words))]


def _arrow(path: str, x: float, y: float, turn: int) -> str:
    tip = f'<path class="tip" d="M0 0l-10 -5v10z" transform="translate({x} {y}) rotate({turn})"/>'
    return f'<path class="arrow" d="{path}"/>{tip}'


def _numbers(plan: Plan) -> str:
    sizes = sorted({channel.dim for each in set(plan.rounds) for channel in each.channels})
    if len(sizes) == 1:
        return f"{sizes[0]:,} number{'s' if sizes[0] != 1 else ''}"
    return f"{sizes[0]:,} to {sizes[-1]:,} numbers"
