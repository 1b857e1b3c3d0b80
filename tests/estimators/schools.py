"""A table of pupils in schools that tests of estimators share."""

from __future__ import annotations

import numpy as np
import pandas as pd

M, N = 60, 10
BOUNDS = {"age": (0, 100), "sex": ["F", "M"], "target": (0, 50)}
KINDS = {"age": (0, 100), "sex": ["F", "M"], "target": ["no", "perhaps", "yes"]}


def make_table(m=M, n=N, seed=0):
    """Return a table with a task column, numeric targets and three classes, with related tasks."""
    rng = np.random.default_rng(seed)
    school = np.repeat([f"s{i:03d}" for i in range(m)], n)
    age = rng.uniform(0, 100, m * n)
    sex = rng.choice(["F", "M"], m * n)
    own = np.repeat(rng.normal(0, 3, m), n)
    score = np.clip(10 + 0.2 * age + 5 * (sex == "M") + own + rng.normal(0, 2, m * n), 0, 50)
    kind = np.array(["no", "perhaps", "yes"])[np.digitize(score + rng.normal(0, 3, m * n), [18, 28])]
    table = pd.DataFrame({"school": school, "age": age, "sex": sex})
    return table, pd.Series(score, name="target"), kind
