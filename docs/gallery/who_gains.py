"""Who gains: what joining brings each school, by how many pupils it has.

Each dot is one of 2,410 English schools; above 0 its error is smaller than it would be alone. Small
schools gain most, large ones lose nothing on average. The picture is for whoever holds all rows.
"""

import matplotlib.pyplot as plt
import numpy as np

from cloister import SharedPriorRegressor, datasets
from cloister.estimators import SingleTaskRegressor
from cloister.report import plots

data = datasets.load("chem97")
test = np.random.default_rng(0).uniform(size=len(data.y)) < 0.3
test &= np.isin(data.task, data.task[~test])  # a school must have rows to learn from, to do it alone
learned = {name: column[~test] for name, column in data.X.items()}
new = {name: column[test] for name, column in data.X.items()}

model = SharedPriorRegressor(epsilon=1.0, bounds=data.codebook)
model.fit(learned, data.y[~test], tasks=data.task[~test])
alone = SingleTaskRegressor(bounds=data.codebook)
alone.fit(learned, data.y[~test], tasks=data.task[~test])

plots.gain_by_size(model, alone, new, data.y[test], tasks=data.task[test])
plt.show()
