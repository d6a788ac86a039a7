"""From a schedule to a concrete loop program: exact tails, register tiles, vectors, packed and staged operands."""
