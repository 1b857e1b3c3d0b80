"""The figures and tables of the papers whose algorithms are here, one module each, as plain data."""
