"""One pass over a resource: observe, decide, apply, write the status."""
