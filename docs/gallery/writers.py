"""A network for each writer: what all have in common, and what each makes of it at home.

200 writers, made up of scikit-learn's digits, have eight images each, with an ink of their own.
They learn one network together, privately; at home each tunes it to itself. Needs the extra
`networks`.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import cloister as cl

X, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
images, labels = [], []
for _ in range(200):
    rows = rng.choice(np.flatnonzero(np.isin(y, rng.permutation(10)[:4])), 32, replace=False)
    ink = rng.normal(0, 0.3, 64)
    images.append(np.clip(X[rows] / 16 + ink, 0, 1).astype(np.float32))
    labels.append(y[rows])
train, test = cl.Tasks.from_list(images, labels).split(0.75)

torch.manual_seed(0)
network = cl.learners.Module(nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)))
tuning = cl.algorithms.FineTuning(cl.learners.Descent(lr=0.3, steps=20))
algorithm = cl.algorithms.FedAvg(
    network, cl.learners.Descent(lr=0.3, steps=5), clip=1.0, rounds=20, finetune=tuning
)
plan = cl.Plan(algorithm, n_tasks=200).calibrate(epsilon=8.0)
engine = cl.engines.Batched("cpu", compiled=False)
done = cl.run(plan, train, engine=engine)
cl.evaluation.over_rounds(done, train, test, rounds=[0, 2, 5, 10, 20], engine=engine).plot("accuracy")
plt.show()
