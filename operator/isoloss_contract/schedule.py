"""When a run is evaluated and when copies of it cool down: rules over token counts, nothing else.

The trainer follows them, and the operator counts by them what a point will cost.
"""

from __future__ import annotations

import math

from isoloss_contract.records import WARMUP_MULTIPLE, CooldownConfig, EvaluationConfig


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
    return frozenset(_reaching(counts, batch_tokens))


def cooldown_steps(
    config: EvaluationConfig, batch_tokens: int, steps: int, warmup_tokens: int
) -> dict[int, int]:
    """For a run of `steps`: the number of steps of the cooldown after each step that has one.

    Cooldowns start at every n-th evaluation; none if the run's own losses are not fitted because of
    the warm-up. A longer run adds some and changes none. They end beyond `steps` if they start late.
    """
    cooldown = config.cooldown
    if cooldown is None:
        return {}
    every = config.per_decade // cooldown.per_decade
    counts = evaluation_tokens(config, steps * batch_tokens)[::every]
    return {
        start: _length(cooldown, start)
        for start in _reaching(counts, batch_tokens)
        if start * batch_tokens > WARMUP_MULTIPLE * warmup_tokens
    }


def steps_before_cooldown(cooldown: CooldownConfig, steps: int) -> int:
    """The most steps at a constant learning rate after which a cooldown ends within `steps` in all; 0 if
    there is no room for one."""
    start = math.floor(steps * (1.0 - cooldown.share)) + 1  # rounding gives it one more at most
    while start and start + _length(cooldown, start) > steps:
        start -= 1
    return start


def cooldown_tokens(
    config: EvaluationConfig, batch_tokens: int, tokens: int, warmup_tokens: int
) -> int:
    """Tokens that all cooldowns of a run of `tokens` take in addition to its own."""
    steps = -(-tokens // batch_tokens)
    return batch_tokens * sum(cooldown_steps(config, batch_tokens, steps, warmup_tokens).values())


def _length(cooldown: CooldownConfig, start: int) -> int:
    """Steps of a cooldown that begins after `start`."""
    ratio = cooldown.share / (1.0 - cooldown.share)
    return max(1, round(start * ratio))


def _reaching(counts: list[int], batch_tokens: int) -> list[int]:
    """The first step that reaches each count."""
    return [-(-count // batch_tokens) for count in counts]
