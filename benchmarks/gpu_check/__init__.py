"""Everything about the trainer that only a GPU can show, in one command: `make gpu-check`."""
