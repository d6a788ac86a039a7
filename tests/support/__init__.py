"""What several test modules share: random tasks, guarded memory, the property check and its forked workers."""
