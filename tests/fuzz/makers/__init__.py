"""What random models are made of: per module a table from a name to a maker and its weight."""
