"""Enough tasks: what joining keeps of the gain, by how many take part.

From public numbers alone. Shaded is where four of five runs end, as a share of what sharing without
noise would gain. `cloister plan --web` has the same with sliders.
"""

import matplotlib.pyplot as plt
import numpy as np

from cloister import Plan
from cloister.algorithms import SharedPrior
from cloister.learners import Regression

tasks = np.unique(np.geomspace(16, 3000, 25).astype(int))
figure, axes = plt.subplots()
for epsilon, color in ((0.5, "#c0392b"), (1, "#2c6fbb"), (4, "#1e8449")):
    prior = SharedPrior(Regression(6))
    found = [Plan(prior, n_tasks=int(count)).calibrate(epsilon).forecast() for count in tasks]
    low, high = [one.low for one in found], [one.high for one in found]
    axes.fill_between(tasks, low, high, color=color, alpha=0.15, lw=0)
    axes.plot(tasks, low, color=color, label=f"epsilon {epsilon:g}: at least")
axes.axhline(0, color="#444444", lw=0.8)
axes.set(xscale="log", xlabel="tasks", ylabel="kept of the gain")
axes.yaxis.set_major_formatter("{x:.0%}")
axes.legend()
plt.show()
