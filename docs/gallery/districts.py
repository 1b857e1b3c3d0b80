"""Schools in districts: public groups have priors of their own, for the same epsilon.

300 made-up schools in three districts that differ. A new school that names its district is
predicted by its district's prior.
"""

import matplotlib.pyplot as plt
import numpy as np

from cloister import SharedPriorRegressor

rng = np.random.default_rng(0)
level = {"north": -12, "west": 0, "south": 12}
names = np.array(list(level))
school = np.repeat(np.arange(300), 5)
district = names[school % 3]
age = rng.uniform(6, 18, len(school))
own = rng.normal(0, 2, 300)[school]
score = 25 + age + [level[name] for name in district] + own + rng.normal(0, 3, len(school))

bounds = {"age": (5, 20), "target": (0, 60)}
table = {"school": school, "district": district, "age": age}
together = SharedPriorRegressor("school", epsilon=2.0, bounds=bounds)
together.fit({"school": school, "age": age}, score)
grouped = SharedPriorRegressor("school", groups="district", epsilon=2.0, bounds=bounds).fit(table, score)

ages = np.linspace(6, 18, 30)
new = {"school": np.full(30, 999), "age": ages}
figure, axes = plt.subplots()
for name, color in zip(names, ("#2c6fbb", "#b9770e", "#c0392b"), strict=True):
    axes.scatter(age[district == name], score[district == name], s=3, color=color, alpha=0.3, lw=0)
    said = grouped.predict(new | {"district": np.full(30, name)})
    axes.plot(ages, said, color=color, label=f"a new school in the {name}")
axes.plot(ages, together.predict(new), "--", color="#444444", label="the same, without groups")
axes.set(xlabel="age", ylabel="score")
axes.legend()
plt.show()
