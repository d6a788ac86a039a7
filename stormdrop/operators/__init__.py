"""Operators written as tensor expressions, channels-last. A pad stage always exists, even if it adds no element."""
