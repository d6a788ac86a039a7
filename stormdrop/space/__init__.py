"""The schedule space: structures derived by rules, knobs, and analytic estimates of points without lowering."""
