"""Which models a sweep can train, how large they are and what a token costs."""
