"""Scores of predictions, task by task."""

from __future__ import annotations

from cloister.core.metrics import Share, Spread, average_auc, nmse, per_task, score_tasks, spread

__all__ = ["Share", "Spread", "average_auc", "nmse", "per_task", "score_tasks", "spread"]
