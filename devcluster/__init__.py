"""A real Kubernetes control plane, S3 server and process node on one machine, for demo and tests.

Nothing here is part of the product; README.md says what is real and what is a test double.
"""
