"""Building and timing candidates in isolated worker processes."""
