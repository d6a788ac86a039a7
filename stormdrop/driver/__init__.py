"""What puts the parts of the pipeline together: compiling, building, tuning, and measuring one operator."""

ZOO = "zoo:"
"""How a model of the zoo is named where a file could stand."""

COMPILED = ".sd"
"""How the names of compiled models end."""
