"""Tensor expressions: what is computed, without a word about how."""
