"""Pictures of one run: what an attacker can do, what stood out from the noise, what was spent, models.

Those of a model are small, one for each row of a table: every row has its own scale, around zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv

from cloister.app.summary import Coefficient, OwnCoefficient, number
from cloister.core.arrays import Floats
from cloister.ledger.accounts import Balance
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.statement import per_hundred, percent, rounded_up
from cloister.privacy.tradeoff import FALSE_ALARMS
from cloister.privacy.tradeoff import epsilon as epsilon_of
from cloister.report.figures import Frame, caption, digits, nice
from cloister.store.records import Release

WIDTH, HEIGHT = 150, 26


def population_row(found: Coefficient) -> str:
    """Draw a coefficient of the population: its error, how far tasks lie apart, and what a new task gets."""
    if found.estimate is None and found.new_task is None:
        return ""
    centre = found.new_task if found.estimate is None else found.estimate
    assert centre is not None
    ends = [centre, found.new_task or 0.0]
    ends += [centre + s * 2 * (half or 0.0) for half in (found.std_error, found.spread) for s in (-1, 1)]
    frame = _around_zero(ends)
    parts = [_zero(frame)]
    if found.spread is not None:
        parts.append(_span(frame, centre - 2 * found.spread, centre + 2 * found.spread, "span"))
    if found.std_error is not None:
        parts.append(_span(frame, centre - 2 * found.std_error, centre + 2 * found.std_error, "thick"))
    if found.estimate is not None:
        parts.append(f'<circle class="dot" cx="{frame.px(centre)}" cy="{HEIGHT / 2}" r="4.5"/>')
    if found.new_task is not None:
        parts.append(f'<circle class="ring" cx="{frame.px(found.new_task)}" cy="{HEIGHT / 2}" r="3"/>')
    label = f"{found.name}: estimate {number(found.estimate)}, standard error {number(found.std_error)}"
    return frame.svg(parts, "row", label)


def own_row(found: OwnCoefficient) -> str:
    """Draw one task's coefficient: its error, what its rows say alone, and the prior it was drawn to."""
    ends = [found.estimate, found.alone or 0.0]
    ends += [found.estimate + s * 2 * (found.std_error or 0.0) for s in (-1, 1)]
    if found.prior is not None:
        ends += [found.prior + s * 2 * (found.prior_sd or 0.0) for s in (-1, 1)]
    frame = _around_zero(ends)
    parts = [_zero(frame)]
    if found.prior is not None and found.prior_sd is not None:
        parts.append(_span(frame, found.prior - 2 * found.prior_sd, found.prior + 2 * found.prior_sd, "span"))
    if found.std_error is not None:
        error = 2 * found.std_error
        parts.append(_span(frame, found.estimate - error, found.estimate + error, "thick"))
    parts.append(f'<circle class="dot" cx="{frame.px(found.estimate)}" cy="{HEIGHT / 2}" r="4.5"/>')
    if found.alone is not None:
        parts.append(f'<path class="bar warm" d="M{frame.px(found.alone)} 4v{HEIGHT - 8}"/>')
    return frame.svg(parts, "row", f"{found.name}: {number(found.estimate)}, alone {number(found.alone)}")


def leaning_picture(rows: Floats, weight: Floats, width: int, height: int) -> str:
    """Draw for each task how many rows it has and how far its own rows trust what tasks share. Private."""
    size = np.log10(np.maximum(rows, 1.0))
    first, last = (
        np.floor(size.min() * 2) / 2,
        max(np.ceil(size.max() * 2) / 2, np.floor(size.min() * 2) / 2 + 0.5),
    )
    frame = Frame(width, height, (first - 0.05, last + 0.05), (-0.04, 1.04))
    parts = frame.y_axis([0.0, 0.25, 0.5, 0.75, 1.0], ".0%", "weight of the others")
    marks = [m * 10**p for p in range(9) for m in (1, 2, 5) if first <= np.log10(m * 10**p) <= last]
    parts += frame.x_axis([(float(np.log10(m)), f"{m:,}") for m in marks], "rows of the task")
    for x, y in zip(size.tolist(), weight.tolist(), strict=True):
        parts.append(f'<circle class="better" opacity=".45" cx="{frame.px(x)}" cy="{frame.py(y)}" r="3.5"/>')
    middle = float(np.median(weight))
    at = frame.py(middle)
    parts.append(f'<path class="level shared" d="M{frame.left} {at}H{width - frame.right}"/>')
    below = at + 18 if middle > 0.9 else at - 7
    parts.append(caption(width - frame.right - 4, below, f"median {middle:.0%}", "end shared"))
    label = f"Weight of what tasks share against their rows, for {len(rows)} tasks. Median {middle:.0%}."
    return frame.svg(parts, f"w{width}", label)


def _around_zero(ends: Iterable[float]) -> Frame:
    reach = max(max(abs(end) for end in ends), 1e-300) * 1.06
    return Frame(WIDTH, HEIGHT, (-reach, reach), (0.0, 1.0), left=5, right=5, top=2, bottom=2)


def _zero(frame: Frame) -> str:
    return f'<path class="zero" d="M{frame.px(0)} 2V{HEIGHT - 2}"/>'


def _span(frame: Frame, low: float, high: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{frame.px(low)} {HEIGHT / 2}H{frame.px(high)}"/>'


#: More rounds than these are drawn as means of neighbours.
MOST_ROUNDS = 150


def curve_picture(guarantee: Guarantee, width: int, height: int) -> str:
    """Draw how often any test can detect the data of one, two or three units, against false alarms."""
    frame = Frame(width, height, (0.0, 1.0), (0.0, 1.0), right=24)
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    parts = frame.y_axis(ticks, ".0%", "detected at most")
    parts += frame.x_axis([(t, f"{t:.0%}") for t in ticks], "false alarms")
    parts.append(f'<path class="zero" d="M{frame.px(0)} {frame.py(0)}L{frame.px(1)} {frame.py(1)}"/>')
    alarms = np.concatenate([[0.0], np.geomspace(1e-4, 0.5, 60), 1 - np.geomspace(0.5, 1e-4, 60)[1:], [1.0]])
    changed, legend = alarms, []
    for tasks, kind in ((1, "curve"), (2, "second"), (3, "third")):
        if tasks > guarantee.protected:
            break
        changed = guarantee.tradeoff.detected(np.clip(changed, 0.0, 1.0))
        parts.append(f'<polyline class="{kind}" points="{frame.points(alarms, changed)}"/>')
        legend.append((kind, f"about {guarantee.some(tasks)}{' at once' * (tasks > 1)}"))
    left, low = frame.px(1.0) - 178, frame.py(0.0) - 22 * (len(legend) + 1) - 6
    for row, (kind, text) in enumerate([*legend, ("zero", "guessing")]):
        at = low + 22 * row + 12
        parts.append(f'<path class="{kind}" d="M{left} {at - 4}h26"/>')
        parts.append(caption(left + 34, at, text, "soft"))
    rate = guarantee.detection()
    tip = f"<title>{percent(rate)} with 5 % false alarms</title>"
    place = f'cx="{frame.px(FALSE_ALARMS)}" cy="{frame.py(rate)}"'
    parts.append(f'<circle class="dot" {place} r="6">{tip}</circle>')
    label = (
        f"Detected cases against false alarms. With 5 % false alarms: at most {percent(rate)} for "
        f"{guarantee.some(1)}."
    )
    return frame.svg(parts, f"w{width}", label)


def hundred_picture(guarantee: Guarantee, width: int, height: int) -> str:
    """Draw a hundred tasks about which a guess is true: how many chance finds, and how many the best test."""
    across = 20 if width > 500 else 10
    found, chance = per_hundred(guarantee.detection()), round(100 * FALSE_ALARMS)
    step = (width - 24) / across
    parts = []
    for i in range(100):
        x, y = 12 + step * (i % across + 0.5), 8 + 24 * (i // across + 0.5)
        kind = "tip" if i < chance else "worse" if i < found else "ring"
        parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{7.5 if kind != "ring" else 6.5}"/>'
        )
    frame = Frame(width, height, (0.0, 1.0), (0.0, 1.0))
    label = (
        f"Of 100 {guarantee.unit}s about which a guess is true, chance finds {chance} and the best test at "
        f"most {found}."
    )
    return frame.svg(parts, f"w{width}", label)


@dataclass(frozen=True, eq=False)
class SignalToNoise:
    """How far releases stand out of their noise: from the public board alone, never from what tasks said.

    Attributes
    ----------
    ratio : array of shape (rounds,)
        Length of each release over the length that noise alone has on average; infinite without noise.
    likely : array of shape (rounds,)
        What noise alone stays below in 97.5 % of cases.
    size : array of shape (rounds,)
        How many numbers each release has.
    """

    ratio: Floats
    likely: Floats
    size: Floats

    @property
    def heard(self) -> int:
        """How many releases are longer than noise alone would be."""
        return int((self.ratio > self.likely).sum())

    @property
    def signal(self) -> Floats:
        """What stands beside the noise, in units of it: 1 is as much as the noise."""
        return np.sqrt(np.maximum(self.ratio**2 - 1.0, 0.0))


def signal_to_noise(releases: Sequence[Release]) -> SignalToNoise:
    """Compare every release with the noise that it is known to have.

    Examples
    --------
    >>> two = [Release(np.array([3.0, 4.0]), 1.0, 9.0), Release(np.array([0.5, 0.5]), 1.0, 9.0)]
    >>> found = signal_to_noise(two)
    >>> found.ratio.round(2).tolist(), found.heard
    ([3.54, 0.5], 1)
    """
    length = np.array([float(np.linalg.norm(release.value)) for release in releases])
    size = np.array([release.value.size for release in releases], dtype=np.float64)
    noise = np.array([release.noise for release in releases]) * np.sqrt(size)
    ratio = np.divide(length, noise, out=np.full_like(length, np.inf), where=noise > 0)
    return SignalToNoise(ratio, np.sqrt(gammaincinv(size / 2, 0.975) * 2 / size), size)


def rounds_picture(found: SignalToNoise, width: int, height: int) -> str:
    """Draw the length of each release against that of noise alone, on a logarithmic axis."""
    ratio, likely, first = found.ratio, found.likely, np.arange(1.0, len(found.ratio) + 1)
    if len(ratio) > MOST_ROUNDS:
        parts_of = np.array_split(np.arange(len(ratio)), MOST_ROUNDS)
        ratio, likely, first = (
            np.array([a[part].mean() for part in parts_of]) for a in (ratio, likely, first)
        )
    powers = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0, 10_000.0, 1e6, 1e9]
    low, top = min(0.5, float(ratio.min())), max(2.0, float(ratio.max()), float(likely.max()))
    ticks = [t for t in powers if t <= next((p for p in powers if p >= top), powers[-1])]
    frame = Frame(
        width, height, (0.5, len(found.ratio) + 0.5), (math.log(min(low, ticks[0])), math.log(ticks[-1]))
    )
    shown = [t for t in ticks if t >= 100 or len(ticks) < 7 or t in (0.5, 1.0, 2.0, 10.0, 50.0)]
    half = (first[1] - first[0]) / 2 if len(first) > 1 else 0.5
    edges, levels = np.stack([first - half, first + half], axis=1).ravel(), np.log(np.repeat(likely, 2))
    corners = [f"{frame.px(x)},{frame.py(frame.y[0])}" for x in (float(edges[0]), float(edges[-1]))]
    parts = [f'<polygon class="noise" points="{corners[0]} {frame.points(edges, levels)} {corners[1]}"/>']
    for tick in shown:
        at = frame.py(math.log(tick))
        parts.append(f'<path class="grid" d="M{frame.left} {at}H{width - frame.right}"/>')
        parts.append(caption(frame.left - 8, at + 4, f"{tick:g} ×", "tick end"))
    middle = (frame.top + height - frame.bottom) / 2
    parts.append(
        f'<text class="axis" transform="translate(13 {middle}) rotate(-90)">against the noise</text>'
    )
    every = max(1, math.ceil(len(found.ratio) / (12 if width > 500 else 6)))
    marks = [1, *(n for n in range(every, len(found.ratio) + 1, every) if n > 1)]
    parts += frame.x_axis([(float(n), str(n)) for n in marks], "round")
    for x, r, usual in zip(first.tolist(), ratio.tolist(), likely.tolist(), strict=True):
        tip = f"<title>round {x:.0f}: {r:.3g} times what noise alone has</title>"
        kind = "dot" if r > usual else "ring"
        place = f'cx="{frame.px(x)}" cy="{frame.py(math.log(max(r, 1e-300)))}"'
        parts.append(f'<circle class="{kind}" {place} r="{5 if len(ratio) <= 40 else 3}">{tip}</circle>')
    label = f"How far {len(found.ratio)} noisy sums stand out from the noise: {found.heard} of them do."
    return frame.svg(parts, f"w{width}", label)


def budget_picture(balance: Balance, fingerprint: str, width: int, height: int) -> str:
    """Draw what was spent after each charged run, up to the budget of the account."""
    squares = np.cumsum([charge.mu**2 for charge in balance.charges])
    spent = np.array([epsilon_of(math.sqrt(total), balance.account.delta) for total in squares])
    budget = balance.account.epsilon
    ticks = nice(0.0, budget, 4)
    count = len(spent)
    frame = Frame(width, height, (0.4, count + 0.6), (0.0, max(ticks[-1], 1.06 * budget)), top=22)
    parts = frame.y_axis(ticks, f".{digits(ticks)}f", "epsilon, all runs so far")
    every = max(1, math.ceil(count / (12 if width > 500 else 6)))
    parts += frame.x_axis([(float(n), str(n)) for n in range(1, count + 1, every)], "charged run")
    half = min(0.32, 40.0 * (frame.x[1] - frame.x[0]) / width)
    for n, (charge, total) in enumerate(zip(balance.charges, spent.tolist(), strict=True), start=1):
        kind = "better" if charge.plan == fingerprint else "earlier"
        left, top = frame.px(n - half), frame.py(total)
        size = f'width="{frame.px(n + half) - left:.1f}" height="{frame.py(0) - top:.1f}"'
        tip = f"<title>after run {n}, {charge.time[:10]}: epsilon {total:.4g}</title>"
        parts.append(f'<rect class="{kind}" x="{left}" y="{top}" {size}>{tip}</rect>')
    at = frame.py(budget)
    parts.append(f'<path class="level warm" d="M{frame.left} {at}H{width - frame.right}"/>')
    parts.append(caption(frame.left + 6, at - 6, f"budget: epsilon {budget:g}", "warm strong"))
    label = f"Epsilon spent over {count} charged runs: {rounded_up(spent[-1])} of {budget:g}."
    return frame.svg(parts, f"w{width}", label)
