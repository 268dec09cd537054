"""The demo: a sweep and a prediction on one machine."""
