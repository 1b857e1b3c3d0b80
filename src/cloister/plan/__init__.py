"""What an algorithm is, and what it costs: plans, priced before data is touched."""
