"""Tensor expressions: the result that a task computes, without its schedule."""
