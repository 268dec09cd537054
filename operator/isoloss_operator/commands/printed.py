"""What `isoloss plan` prints for people."""

from collections.abc import Mapping, Sequence

from isoloss import formatting
from isoloss.cli.outcome import PIPED_WIDTH, console, grid
from isoloss.report.content import saving_sentence
from isoloss.savings import SearchCost
from isoloss_contract.checkpointing import STORE_BYTES_PER_SECOND, checkpoint_bytes
from isoloss_contract.footprint import Fit
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.commands.costs import Elapsed, Pace, PlacedSize, Planned, SizePlan
from isoloss_operator.decide.choose import ENDINGS, least_in_words
from isoloss_operator.planning.evaluation_share import (
    GOAL,
    affordable_sequences,
    largest_evaluation_share,
)
from isoloss_operator.planning.points import COVERAGE

WORTH_SAYING = 0.05
"""Share of the hours in which accelerators are idle."""


def print_plan(planned: Planned, pace: Pace, cost: SearchCost | None) -> None:
    """All of it but for predictions."""
    print_sizes(planned, pace, cost)
    print_placed(planned.placed)
    first = planned.first_step
    if first is not None and first.stop is not None and first.least_flops is None:
        _say(f"Nothing would be trained ({first.stop}): {ENDINGS[first.stop]}.")
        return
    print_search(planned)
    print_budget(planned, pace)
    print_elapsed(planned.elapsed(pace), planned.sizes)
    if pace.price_per_hour is not None:
        _say(price_sentence(planned, pace, pace.price_per_hour))


def print_sizes(planned: Planned, pace: Pace, cost: SearchCost | None) -> None:
    """The table of sizes, and what its numbers include and leave out."""
    terminal, spec, sizes = console(PIPED_WIDTH), planned.spec, planned.sizes
    table = grid(
        "size",
        "points",
        "active",
        "in all",
        "tokens",
        "FLOPs (6ND)",
        "accelerator h",
        "evaluation",
    )
    for size in sizes:
        table.add_row(
            size.name,
            str(size.points),
            formatting.count(size.params),
            formatting.count(size.total_params),
            formatting.count(size.tokens),
            formatting.flops(size.flops),
            formatting.number(pace.hours(size)),
            f"{size.evaluation_share:.1%}",
        )
    table.add_row(
        "all",
        str(sum(size.points for size in sizes)),
        "",
        "",
        formatting.count(sum(size.tokens for size in sizes)),
        formatting.flops(planned.flops),
        formatting.number(planned.hours(pace)),
        "",
    )
    terminal.print(table)
    terminal.print(f"\nAccelerator hours at {pace.in_words(sizes)}, for the whole grid.")
    for size in sizes:
        if size.idle_share >= WORTH_SAYING:
            terminal.print(_idle_sentence(size))
    terminal.print(_warmup_sentence(sizes))
    for size in sizes:
        if size.memory.device >= 2**30:
            terminal.print(_memory_sentence(size))
            terminal.print(_checkpoint_sentence(size))
    if spec.grid is not None and spec.has_one_batch_size:
        (batch_size,) = spec.grid.batch_sizes
        terminal.print(
            f"One batch size: such a sweep answers predictions that set spec.batchSize to {batch_size}, and no others."
        )
    _print_evaluation(spec)
    if cost is not None:
        terminal.print(saving_sentence(cost, "sweep" if planned.search is None else "whole grid"))
    else:
        terminal.print(
            "--target-params and --target-tokens show what its answer is expected to lose, and the saving against a direct grid."
        )


def _memory_sentence(size: SizePlan) -> str:
    found = size.memory
    least, most = (f"{number / 2**30:.0f}" for number in found.host_train)
    fits = ", ".join(f"on {name} {_fit_in_words(each)}" for name, each in size.fits.items())
    return (
        f"Memory of {size.name} on {size.accelerators} GPU{'s' if size.accelerators > 1 else ''}: "
        f"{found.device / 2**30:.1f} GiB of each for the training state; sequences at once in the rest: {fits}; "
        f"memory of a node: up to {found.host_build / 2**30:.0f} GiB while the model is built, "
        f"{least} to {most} GiB while it trains or resumes."
    )


def _checkpoint_sentence(size: SizePlan) -> str:
    found = size.checkpointing
    sentence = (
        f"A checkpoint of {size.name}, {checkpoint_bytes(size.total_params) / 1e9:.1f} GB, takes about {found.write:.0f} s at "
        f"{STORE_BYTES_PER_SECOND / 1e6:.0f} MB per second; its pods have {found.grace:g} s of grace"
    )
    if found.is_in_time:
        return f"{sentence}, which is enough unless a node leaves them less."
    most, mean = found.write + found.interval, found.write + found.interval / 2
    sentence += f". That is too few: a preemption loses up to {most:.0f} s of training, {mean:.0f} s on average"
    if not found.preemptions_per_day:
        return f"{sentence}. With training.preemptionsPerDay its trainers choose the interval (now {found.interval:.0f} s)."
    return (
        f"{sentence}. With {found.preemptions_per_day:g} preemptions a day its trainers write one about every "
        f"{found.interval:.0f} s, and {found.lost_share:.1%} of the training is lost."
    )


def _fit_in_words(found: Fit | None) -> str:
    if found is None:
        return "none"
    return f"{found.sequences}{' with layers computed twice' if found.recompute else ''}"


def _idle_sentence(size: SizePlan) -> str:
    batches = ", ".join(map(str, size.batch_sizes))
    return (
        f"Accelerators of {size.name} are idle for {size.idle_share:.0%} of its hours: batches of {batches} sequences do "
        f"not divide evenly among the {size.accelerators} accelerators of a Job."
    )


def _warmup_sentence(sizes: Sequence[SizePlan]) -> str:
    lengths = {size.warmup_tokens for size in sizes}
    if len(lengths) == 1:
        return f"Every run warms up over {formatting.count(lengths.pop())} tokens."
    each = ", ".join(f"{size.name} {formatting.count(size.warmup_tokens)}" for size in sizes)
    return f"Tokens of the warm-up: {each}."


def _print_evaluation(spec: ScalingSweepSpec) -> None:
    share = largest_evaluation_share(spec)
    if share > GOAL:
        _say(
            f"Evaluations take up to {share:.1%} of a run on top of that: for {GOAL:.0%}, set "
            f"data.validation.sequencesPerDomain to {affordable_sequences(spec)}, or fewer evaluation.perDecade with more "
            "sequences."
        )


def print_placed(placed: Sequence[PlacedSize]) -> None:
    """The grids of sizes that have none of their own."""
    for size in placed:
        rates = ", ".join(formatting.learning_rate(rate) for rate in size.learning_rates)
        batches = ", ".join(map(str, size.batch_sizes))
        _say(
            f"Grid of {size.name}, placed by {size.source}: learning rates {rates}; batch sizes "
            f"{batches} sequences."
        )
    if placed:
        _say(COVERAGE)


def print_search(planned: Planned) -> None:
    """What a search costs, and whether its budget lets it begin."""
    search, first = planned.search, planned.first_step
    if search is None or first is None:
        return
    expected, worst = search.expected_flops, search.worst_flops
    count = search.max_added_points
    added = f" and {formatting.counted(count, 'added point')}" if count else ""
    _say(
        f"Sequential search: {formatting.flops(expected)} FLOPs expected "
        f"({expected / search.grid_flops:.0%} of the whole grid), {formatting.flops(worst)} at worst "
        f"(the whole grid{added}). {search.basis}"
    )
    if first.least_flops is not None:
        field = "flops" if first.least_seconds is None else "acceleratorHours"
        least = least_in_words(first.least_flops, first.least_seconds)
        _say(
            f"Nothing would be trained: a search takes at least {least}, more than spec.budget.{field} has. It would end "
            "with BudgetExhausted: raise the budget above that."
        )


def print_budget(planned: Planned, pace: Pace) -> None:
    """Which limits of the budget the sweep would meet, if any; `print_search` says it of one that cannot begin."""
    budget, sizes, first = planned.spec.budget, planned.sizes, planned.first_step
    if budget is None or (first is not None and first.least_flops is not None):
        return
    if budget.flops:
        name = f"budget of {formatting.flops(float(budget.flops))} FLOPs"
        cheapest = min(size.flops / size.points for size in sizes)
        _print_limit(name, float(budget.flops), planned, cheapest, per_flop=1.0)
    if budget.accelerator_hours is not None:
        name = f"budget of {budget.accelerator_hours} accelerator hours at this throughput"
        cheapest = min(min(pace.point_hours(size)) for size in sizes)
        per_flop = planned.hours(pace) / planned.flops
        _print_limit(name, budget.accelerator_hours, planned, cheapest, per_flop=per_flop)


def _print_limit(
    name: str, limit: float, planned: Planned, cheapest_point: float, *, per_flop: float
) -> None:
    """`per_flop`: the limit's unit for each FLOP of the plan."""
    search = planned.search
    if search is not None:
        if search.expected_flops * per_flop > limit:
            _say(
                f"Over the {name}: the search is expected to need more, and would end with BudgetExhausted."
            )
        elif search.worst_flops * per_flop > limit:
            _say(f"The {name} covers the expected cost of the search, but not its worst case.")
    elif cheapest_point > limit:
        _say(f"Over the {name}: no point would start.")
    elif planned.flops * per_flop > limit:
        _say(f"Over the {name}: some points would not start.")


def print_elapsed(took: Elapsed, sizes: Sequence[SizePlan]) -> None:
    """How long it takes with as many Jobs at a time as the manifest allows."""
    jobs = "1 Job at a time" if took.parallelism == 1 else f"{took.parallelism} Jobs at a time"
    jobs += _accelerators_of_each({size.accelerators for size in sizes})
    whole = formatting.number(took.whole_grid_hours)
    if took.search_hours is None:
        _say(f"About {whole} hours with {jobs}.")
        return
    searched = formatting.number(took.search_hours)
    longer = took.search_hours > took.whole_grid_hours
    rounds = "; a round starts when the slowest Job of the one before has ended" if longer else ""
    _say(f"About {searched} hours for the search with {jobs}, {whole} for the whole grid{rounds}.")


def price_sentence(planned: Planned, pace: Pace, per_hour: float) -> str:
    """What the accelerator hours cost."""
    whole = f"{formatting.number(per_hour * planned.hours(pace))} for the whole grid"
    if planned.search is not None:
        expected = formatting.number(per_hour * planned.expected_hours(pace))
        whole = f"{expected} expected of the search, {whole}"
    return f"At {formatting.number(per_hour)} per accelerator hour: {whole}."


def _accelerators_of_each(counts: set[int]) -> str:
    fewest, most = min(counts), max(counts)
    if most == 1:
        return ""
    return (
        f" of {fewest} to {most} accelerators each"
        if fewest < most
        else f" of {most} accelerators each"
    )


def print_validations(validations: Mapping[str, Planned], pace: Pace) -> None:
    """What sweeps around the answers of predictions cost."""
    for name, found in validations.items():
        points = sum(size.points for size in found.sizes)
        _say(
            f"ScalingSweep {name}, around answers, on top of that: at most {points} points, {formatting.flops(found.flops)} "
            f"FLOPs, {formatting.number(found.hours(pace))} accelerator hours."
        )


def print_refused(refused: Mapping[str, str]) -> None:
    """Predictions that these sizes cannot answer, whatever their runs show."""
    for name, why in refused.items():
        _say(f"Laws of these sizes would refuse prediction {name} (ExtrapolationTooFar): {why}")


def _say(sentence: str) -> None:
    console(PIPED_WIDTH).print(sentence)
