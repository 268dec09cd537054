"""The demonstration: a whole sweep and its prediction on one machine, every part real."""
