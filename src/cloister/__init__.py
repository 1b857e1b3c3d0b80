"""Private multi-task learning."""
