"""One lifecycle for the Jobs of all three tasks: prepare, train and evaluate."""
