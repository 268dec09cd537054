"""The law engine: trajectories in, laws or refusals out. Pure; see model.py for the types."""
