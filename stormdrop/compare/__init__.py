"""Models beside other ways to run them: inputs, oracles, races, and tuned against untuned."""
