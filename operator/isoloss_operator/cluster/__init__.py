"""Every call to the API server: what Jobs and pods say, and Jobs as manifests."""
