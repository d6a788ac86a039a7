"""From schedules to artifacts: lowering, emission and assembly of kernels, and groups of their phases."""
