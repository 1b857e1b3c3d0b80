"""A school that comes later: predictions from the billboard, before it has a row, and with each it gets.

It was not in the run. It reads what is public and learns at home: nothing leaves it, nothing is
spent. Shaded is where 90 % of its pupils are predicted to be; they are the dots.
"""

import matplotlib.pyplot as plt
import numpy as np

from cloister import SharedPriorRegressor, datasets

data = datasets.load("exam")
late = data.task == 14
others = {name: column[~late] for name, column in data.X.items()}
own = {name: column[late] for name, column in data.X.items()}
model = SharedPriorRegressor(epsilon=4.0, bounds=data.codebook)
model.fit(others, data.y[~late], tasks=data.task[~late])

order = np.argsort(own["standLRT"])
pupils = {name: column[order] for name, column in own.items()}
figure, panels = plt.subplots(1, 3, sharey=True)
for axes, count in zip(panels, (0, 5, 50), strict=True):
    if count:
        rows = {name: column[:count] for name, column in own.items()}
        home = model.replay(rows, data.y[late][:count])
        middle, (low, high) = home.predict(pupils), home.predict_interval(pupils, coverage=0.9)
    else:
        nobody = np.full(len(order), 14)
        middle = model.predict(pupils, tasks=nobody)
        low, high = model.predict_interval(pupils, tasks=nobody, coverage=0.9)
    axes.scatter(pupils["standLRT"], data.y[late][order], s=6, color="#999999", lw=0)
    axes.fill_between(pupils["standLRT"], low, high, color="#2c6fbb", alpha=0.15, lw=0)
    axes.plot(pupils["standLRT"], middle, ".", ms=3, color="#2c6fbb")
    axes.set(title=f"{count} rows of its own", xlabel="earlier test")
panels[0].set_ylabel("exam")
plt.show()
