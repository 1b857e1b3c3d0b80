"""What everything speaks of: arrays, tasks, channels, errors, and how values stand in files."""
