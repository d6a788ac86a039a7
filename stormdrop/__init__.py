"""Stormdrop: an auto-scheduler that makes tensor programs fast on the machine you have."""

__version__ = "0.1.0"
