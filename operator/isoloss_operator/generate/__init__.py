"""Generated files: CRDs, the API reference."""
