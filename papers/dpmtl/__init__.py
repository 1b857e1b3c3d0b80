"""Private multi-task learning: formulation and methods (DPMTL).

S. Hu, Z. S. Wu and V. Smith, "Private multi-task learning: formulation and methods", 2021: the earlier form
of PMTL, with every task in every round and models projected to a ball.
"""
