"""Fits of the laws, each in its own process."""
