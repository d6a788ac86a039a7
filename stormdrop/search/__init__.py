"""Search strategies, and the single loop that tunes with them."""
