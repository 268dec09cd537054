"""The API server: calls, manifests, and what Jobs and pods say."""
