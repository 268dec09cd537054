"""Law fits, each in a process of its own."""
