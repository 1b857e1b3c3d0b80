"""What estimators and commands share: rows in, a plan run, a result kept, read back and used."""
