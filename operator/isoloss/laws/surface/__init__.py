"""The joint surface: one fit over every size and token count, and how far optima deviate from its law."""
