"""The learned cost model."""
