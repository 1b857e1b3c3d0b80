"""Private multi-task learning: formulation and applications to federated learning (PMTL).

S. Hu, Z. S. Wu and V. Smith, "Private multi-task learning: formulation and applications to federated
learning", arXiv:2108.12978.
"""
