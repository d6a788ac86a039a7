"""The model graph: values, nodes, and the tensor expression of every operator."""
