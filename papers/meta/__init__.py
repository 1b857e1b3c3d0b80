"""Task-level differentially private meta-learning.

X. Zhou and R. Bassily, "Task-level differentially private meta learning", NeurIPS 2022.
"""

#: What its figures depend on of the library.
PATHS = (
    "src/cloister/algorithms",
    "src/cloister/channel.py",
    "src/cloister/datasets",
    "src/cloister/engines/local.py",
    "src/cloister/learners/linear",
    "src/cloister/lifts.py",
    "src/cloister/plan.py",
    "src/cloister/privacy",
)
