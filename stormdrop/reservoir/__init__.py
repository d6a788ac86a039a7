"""Everything ever measured, kept for the next search: the store and its records."""
