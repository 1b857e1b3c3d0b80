"""Linear models in NumPy: convex losses, and regression and classification with a prior."""
