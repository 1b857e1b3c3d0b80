"""Small mistakes that the tests must notice."""
