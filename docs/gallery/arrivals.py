"""One by one: wards that join a stream, each with a model at its arrival.

400 made-up wards of ten rows come one after the other. Each learns from what those before it have
said and its own rows, then says one bounded message. Without noise the error is as low as it gets
after some 60 wards. At epsilon 5 the first ones gain as much; after some 230 wards both are alike.
"""

import matplotlib.pyplot as plt
import numpy as np

import cloister as cl

count, dim = 400, 10
data = cl.datasets.around_centres(seed=0, tasks=count, centres=1, dim=dim, rows=20)
X, y = data.train.X.reshape(count, 20, dim), data.train.y.reshape(count, 20)
algorithm = cl.algorithms.FTMRL(
    cl.learners.Convex(cl.learners.LeastSquares(dim)),
    cl.learners.ExactSolver(),
    lam=0.1,
    clip=0.2,
    rounds=count,
    lam_meta=1.5,
)
figure, axes = plt.subplots()
for epsilon, color in ((np.inf, "#999999"), (5.0, "#1e8449")):
    noise = cl.mechanisms.Toeplitz() if epsilon < np.inf else cl.mechanisms.NoNoise()
    plan = cl.Plan(algorithm, noise, cl.sampling.InOrder(), n_tasks=count)
    plan = plan.calibrate(epsilon) if epsilon < np.inf else plan
    errors = []
    with cl.engines.TaskStream(plan) as stream:
        for i in range(count):
            own = stream.join(f"ward {i}", X[i, :10], y[i, :10])["coef"]  # for this ward alone
            errors.append(np.mean((X[i, 10:] @ own - y[i, 10:]) ** 2))
    axes.plot(np.convolve(errors, np.ones(25) / 25, "valid"), color=color, label=f"epsilon {epsilon:g}")
axes.set(xlabel="wards so far", ylabel="mean squared error, over 25 wards", ylim=(0, None))
axes.legend()
plt.show()
