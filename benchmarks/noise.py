"""How fast exact noise is drawn: a million integers at each deviation, beside OpenDP and a float Gaussian.

All on one core, in one run, from the same kind of generator that a private run uses. OpenDP (``pip install
opendp``) draws fewer, because it takes longer, and its time is given for a million.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy import stats

from cloister.privacy.noise import discrete_gaussian
from cloister.privacy.randomness import SystemRandomness, normals

NAME = "noise"
PATHS = (
    "src/cloister/privacy/chacha_proposals.py",
    "src/cloister/privacy/noise.py",
    "src/cloister/privacy/randomness.py",
)
MILLION = 1_000_000
POWERS = (10, 20, 30, 40)

Figures = dict[str, float]
Targets = dict[str, tuple[str, float]]


def fastest(function: Callable[[], object], repeats: int = 3) -> float:
    """Return the shortest of a few wall-clock times."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def opendp_seconds(deviation: int, count: int) -> float | None:
    """Return OpenDP's time for a million, from `count` draws; None if it is not installed."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    measurement = dp.m.make_gaussian(*space, scale=float(deviation))
    zeros = [0] * count
    return fastest(lambda: measurement(zeros), 2) * MILLION / count


def run(quick: bool) -> tuple[Figures, Targets, list[list[str]]]:
    source, count = SystemRandomness(), 20_000 if quick else 200_000
    discrete_gaussian(1000, 1000, source.stream("warm"))
    floating = fastest(lambda: normals(source.stream("float").uniforms(MILLION)))
    figures: Figures = {"float_s": floating}
    targets: Targets = {}
    rows = [["deviation", "exact, s", "OpenDP, s", "OpenDP / exact", "exact / float", "KS p-value"]]
    for power in POWERS:
        draws = discrete_gaussian(2**power, MILLION, source.stream("law", power))
        p = stats.kstest((draws + np.random.default_rng(0).random(MILLION) - 0.5) / 2**power, "norm").pvalue
        exact = fastest(
            lambda power=power: discrete_gaussian(2**power, MILLION, source.stream("time", power))
        )
        peer = opendp_seconds(2**power, count)
        figures[f"exact_s_2^{power}"] = exact
        figures[f"exact_over_float_2^{power}"] = exact / floating
        targets[f"exact_over_float_2^{power}"] = ("<=", 2.0)
        targets[f"opendp_over_exact_2^{power}"] = (">=", 5.0)
        if peer is not None:
            figures[f"opendp_over_exact_2^{power}"] = peer / exact
        ratio = "-" if peer is None else f"{peer / exact:.0f}"
        seconds = "not installed" if peer is None else f"{peer:.2f}"
        rows.append([f"2^{power}", f"{exact:.3f}", seconds, ratio, f"{exact / floating:.1f}", f"{p:.2f}"])
    return figures, targets, rows
