"""Models beside other ways to run them: inputs and oracles."""
