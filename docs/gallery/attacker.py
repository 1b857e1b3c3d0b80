"""What an attacker can do: the whole trade-off that a plan proves, before any data are touched.

All others together test whether one task holds certain data. They choose how often they may raise a
false alarm; the curve says how often they can be right, at most. Dashed: a person with rows in two
tasks.
"""

import matplotlib.pyplot as plt
import numpy as np

from cloister import Plan
from cloister.algorithms import SharedPrior
from cloister.learners import Regression

false_alarms = np.linspace(0, 1, 200)
figure, axes = plt.subplots()
axes.plot(false_alarms, false_alarms, color="#999999", lw=0.8, label="guessing")
for epsilon in (0.5, 1, 2, 4):
    promised = Plan(SharedPrior(Regression(5)), n_tasks=500).calibrate(epsilon).guarantee
    (line,) = axes.plot(false_alarms, promised.tradeoff.detected(false_alarms), label=f"epsilon {epsilon:g}")
    if epsilon == 1:
        twice = [promised.detection(share, tasks=2) for share in false_alarms]
        axes.plot(false_alarms, twice, "--", color=line.get_color(), label="epsilon 1, in two tasks")
axes.set(xlabel="false alarms", ylabel="detected, at most", xlim=(0, 1), ylim=(0, 1))
axes.legend()
plt.show()
