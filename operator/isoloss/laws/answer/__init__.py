"""From a question to an answer with intervals, or to a refusal."""
