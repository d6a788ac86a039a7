"""Checks of this installation, and calibration of the machine."""
