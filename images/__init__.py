"""How the two images are built: base, lock parts, slimming, SBOM."""
