"""What is public and durable: the billboard, its records, and the files they stand in."""
