"""`isoloss plan` and `isoloss init`: what a sweep would train and cost, and a sweep for a checkpoint."""
