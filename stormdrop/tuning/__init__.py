"""Tuning: search strategies, the learned cost model, the task scheduler, and the loop that runs them."""
