"""Operators written as tensor expressions, channels-last. A pad stage always exists, even where it adds nothing."""
