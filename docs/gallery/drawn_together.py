"""Drawn together: one coefficient of every school, alone and with the others.

How much a family's means say about mathematics, in 160 American schools. Alone, the slope of a
school with few pupils may be anything.
"""

import matplotlib.pyplot as plt

from cloister import SharedPriorRegressor, datasets
from cloister.estimators import SingleTaskRegressor
from cloister.report import plots

data = datasets.load("hsb82")
model = SharedPriorRegressor(epsilon=4.0, bounds=data.codebook).fit(data.X, data.y, tasks=data.task)
alone = SingleTaskRegressor(bounds=data.codebook).fit(data.X, data.y, tasks=data.task)

plots.shrinkage(model, alone, "ses")
plt.show()
