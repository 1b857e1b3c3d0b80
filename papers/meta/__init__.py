"""Task-level differentially private meta-learning.

X. Zhou and R. Bassily, "Task-level differentially private meta learning", NeurIPS 2022.
"""
