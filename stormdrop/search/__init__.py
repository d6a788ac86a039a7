"""Search strategies, and the one loop that tunes with them."""
