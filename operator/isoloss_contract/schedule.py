"""When a run is evaluated: rules over token counts, nothing else.

The trainer follows them, and the operator counts by them what a point will cost.
"""

from isoloss_contract.records import EvaluationConfig


def whole_steps(tokens: int, batch_size: int, sequence_length: int) -> int:
    """Tokens of a run that ends with the first whole optimizer step at or beyond `tokens`."""
    step = batch_size * sequence_length
    return -(-tokens // step) * step


def evaluation_tokens(config: EvaluationConfig, tokens: int) -> list[int]:
    """The fixed token counts up to `tokens` at which any run is evaluated."""
    counts = []
    number = 0
    while (count := round(config.first_tokens * 10 ** (number / config.per_decade))) <= tokens:
        counts.append(count)
        number += 1
    return counts


def evaluation_steps(config: EvaluationConfig, batch_tokens: int, steps: int) -> frozenset[int]:
    """The steps, counted from 1, after which a run of `steps` is evaluated by schedule: the first
    ones that reach each count."""
    counts = evaluation_tokens(config, steps * batch_tokens)
    return frozenset(-(-count // batch_tokens) for count in counts)
