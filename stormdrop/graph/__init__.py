"""The model graph: values, nodes, and what every operator computes."""
