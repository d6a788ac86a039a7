"""The space of programs: structures derived by rules, knobs, and what can be said of every point without lowering
it.
"""
