"""Generated files: CRDs, the API reference, the table of presets."""
