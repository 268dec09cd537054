"""What a sweep and its points have come to, read from the store or from the cluster, and told as text."""
