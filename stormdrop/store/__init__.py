"""The tuning database (store): all measurements and decisions, and their reuse."""
