"""`python -m benchmarks` (or `make bench`): all figures."""

from benchmarks.core import main

main()
