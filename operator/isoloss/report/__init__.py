"""The report on a sweep: laws, evidence and refusals on one self-contained page."""
