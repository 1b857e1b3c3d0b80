"""Noise for running totals: five ways to hide one task in 1,024 rounds, equally well.

Fresh noise in each round adds up in a total; noise that takes back part of its past stays small.
"""

import matplotlib.pyplot as plt
import numpy as np

from cloister import Plan
from cloister.algorithms import MeanRegularized
from cloister.learners import LeastSquares
from cloister.mechanisms import BLT, Gaussian, Toeplitz, Tree
from cloister.sampling import OnePass

rounds = np.arange(1, 1025)
algorithm = MeanRegularized(LeastSquares(3), rounds=len(rounds))
figure, axes = plt.subplots()
fresh = Plan(algorithm, Gaussian(), OnePass(), n_tasks=10_240).calibrate(epsilon=1.0)
axes.plot(rounds, fresh.noise(0, fresh.schedule.channel) * np.sqrt(rounds), label="Gaussian()")
others = {"Tree()": Tree(), "Tree(honaker=True)": Tree(honaker=True)}
for name, mechanism in (others | {"Toeplitz()": Toeplitz(), "BLT()": BLT()}).items():
    plan = Plan(algorithm, mechanism, OnePass(), n_tasks=10_240).calibrate(epsilon=1.0)
    strategy, level = (ask(plan.schedule) for ask in (plan.mechanism.strategy, plan.mechanism.level))
    axes.plot(rounds, level * strategy.prefix_deviations, "--" if name == "BLT()" else "-", label=name)
axes.set(xscale="log", yscale="log", xlabel="rounds so far", ylabel="deviation of the total's noise")
axes.legend()
plt.show()
