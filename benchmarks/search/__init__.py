"""Searches that stop early against training everything, in sweeps whose outcome is known."""
