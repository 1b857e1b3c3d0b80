r"""Choosing one of several candidates for all tasks, and paying for the choice.

What a task chooses for itself, at home, is free (see `ChooseAtHome`). A choice for all is a function
of all their data, and so are the runs it is chosen from. Two ways of paying:

* `vote`: all candidates are run, every task votes for the one that predicts its own held-out rows best, and
  the noisy count decides. The price is that of all runs and the vote together; boards are public.
* `repeat_and_select`: a random number of runs of random candidates, of which only the best is shown. The
  price is a few times that of one run, whatever the number of candidates; but nobody, the tasks included, may
  see the others.

Choosing is dear. At epsilon 1 a vote on the strength of `MeanRegularized` (four values, and single tasks;
half of the rows for training, four splits) gave errors of 1.00, 1.13 and 0.97 times single-task learning's on
tables of 160, 65 and 2410 schools. The estimator's default, set with such tables in sight, gave 0.96,
0.97 and 1.00. With few tasks spend on one run with a sensible default, and let tasks choose at home.

References
----------
Papernot and Steinke, "Hyperparameter tuning with Rényi differential privacy", arXiv:2110.03620, Theorems 2
and 6.
"""

from cloister.app.choice import Ballot, TuningResult, Vote
from cloister.app.vote import vote
from cloister.tune.estimators import fit_best
from cloister.tune.selection import RepeatAndSelect, repeat_and_select, selection_epsilon

__all__ = [
    "Ballot",
    "RepeatAndSelect",
    "TuningResult",
    "Vote",
    "fit_best",
    "repeat_and_select",
    "selection_epsilon",
    "vote",
]
