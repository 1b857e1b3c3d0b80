"""Local learners, batched over tasks."""
