"""Speed, as ratios to a peer or to the machine measured in the same run."""
