"""Compiled models for programs without Python."""
