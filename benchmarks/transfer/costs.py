"""What is done, and what the rest costs."""

from collections.abc import Iterator, Sequence

from benchmarks.transfer import design

FLOPS_PER_SECOND = {"cpu": 5e10, "cuda": 1e14}
"""6 N for each token, over all runs: measured with every size on one core with AVX-512; assumed of a GPU."""


def cost_table(
    results: design.Results, device: str, flops_per_second: float, sizes: Sequence[str] = ()
) -> Iterator[str]:
    """In Markdown, in the order in which parts are trained."""
    yield f"At {flops_per_second:.2g} FLOP/s over all runs ({device})."
    yield ""
    yield "| size | part | to tokens | runs done | tokens left | tokens/s | minutes | in all |"
    yield "|" + " --- |" * 8
    minutes = 0.0
    paid: dict[tuple[str, str, object], int] = {}
    for size in (design.SIZES[name] for name in sizes or design.ORDER[device]):
        speed = flops_per_second / (6 * size.shape.params)
        for part in size.parts:
            runs, end = results.get((size.name, part.origin), {}), size.tokens(part.per_param)
            places = list(design.grid_of(size, part, results).places())
            done = sum(design.reached(runs, place) >= end for place in places)
            began = {
                p: max(design.reached(runs, p), paid.get((size.name, part.origin, p), 0))
                for p in places
            }
            left = sum(max(0, end - tokens) for tokens in began.values())
            paid |= {(size.name, part.origin, p): end for p in places}
            if left:
                left += _past_tokens(size, part, paid)
            minutes += left / speed / 60
            yield (
                f"| {size.name} | {part.origin} | {end:,} | {done} of {len(places)} | {left / 1e6:,.1f}M | "
                f"{speed:,.0f} | {left / speed / 60:,.1f} | {minutes:,.1f} |"
            )


def _past_tokens(
    size: design.Size, part: design.Part, paid: dict[tuple[str, str, object], int]
) -> int:
    """Of pre-training that no earlier part of the table has paid; the whole grid continues one run."""
    past = part.checkpoint
    if past is None:
        return 0
    key, end = (size.name, past.run, None), size.tokens(past.per_param)
    added = max(0, end - paid.get(key, 0))
    paid[key] = max(end, paid.get(key, 0))
    return added + (size.tokens(design.DECAY * past.per_param) if past.ending == "decayed" else 0)
