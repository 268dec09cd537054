"""`isoloss init`: from a checkpoint, a corpus and a number of tokens to manifests that can be applied."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from isoloss import formatting
from isoloss.cli.inputs import count, positive
from isoloss.cli.outcome import ANSWERED, PIPED_WIDTH, console, print_document
from isoloss.errors import BadInput
from isoloss.laws_files import write_file
from isoloss.usual import PUBLISHED_WASTE
from isoloss.yaml_text import read_documents
from isoloss_operator.commands import design, options
from isoloss_operator.commands.costs import (
    Pace,
    Planned,
    planned,
    price_document,
    sizes_document,
    with_continued_models,
)
from isoloss_operator.commands.manifest_writer import (
    GUESSED,
    VALIDATION,
    Written,
    guesses,
    manifests,
)
from isoloss_operator.commands.printed import price_sentence, print_plan
from isoloss_operator.commands.worth import (
    curve_document,
    in_words,
    print_curve,
    published_in_words,
)
from isoloss_operator.planning.evaluation_share import (
    GOAL,
    affordable_sequences,
    largest_evaluation_share,
)
from isoloss_operator.planning.points import GIVE_A_GRID
from isoloss_operator.planning.specs import InvalidSpec, parse_prediction_spec, parse_sweep_spec

BUDGET = 1.2
"""Over the whole grid, or over the expected search if that costs more: searches without a target took 1.08 of the grid at most, and
attempts that fail count, too."""
WEIGHT_BYTES, WEIGHTS_SHARE = 2, 0.8
"""Per parameter in an evaluation, and their part of an accelerator's memory."""
ACCELERATORS_OF_CONTINUED = (*design.ACCELERATORS_OF_JOB, 128, 256, 512)
"""Of a Job that continues the checkpoint: up to 64 nodes, the API's most."""
PACE = Pace()
MAX_NAME = 63
"""Characters of a sweep's name."""
TOKENS_DECIDE = ("spec.proxies", "spec.evaluation", "spec: every proxy's tokens")
"""How refusals begin that follow from --tokens: of how long each proxy trains."""


def init(
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="Folder of the checkpoint in Hugging Face format (s3://, gs:// or file://).",
        ),
    ],
    corpus: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]URI",
            help="Files or a folder to train on. May be given more than once.",
        ),
    ],
    tokens: Annotated[str, typer.Option(metavar="COUNT", help="Planned tokens, such as 55B.")],
    accelerators: Annotated[
        int, typer.Option(min=1, max=100_000, help="Accelerators of 80 GB to use at a time.")
    ] = 8,
    grid: Annotated[
        bool,
        typer.Option("--grid", help="Write grids and train all of them, in place of a search."),
    ] = False,
    spend: Annotated[
        str | None,
        typer.Option(
            metavar="CAP",
            help="The most that the sweep may be expected to cost: a share of the planned run's FLOPs such as 5%, or accelerator hours "
            "such as 40h. By default the design with the least sum of cost and expected regret.",
        ),
    ] = None,
    validate: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Also write a sweep of short runs around the answer, each of this share of the tokens.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of both. By default that of the checkpoint's folder."
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", metavar="NAME", help="By default that of kubectl."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Folder for what is trained. By default isoloss next to the checkpoint.",
        ),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Secret with the keys to the storage, for the pods."),
    ] = None,
    tokenizer_uri: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="URI",
            help="Folder of the tokenizer. By default the checkpoint's.",
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option("--sequence-length", min=8, help="Of the continued run, in tokens."),
    ] = None,
    price_per_hour: options.PricePerHour = None,
    out: Annotated[Path | None, typer.Option(help="File to write. By default NAME.yaml.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Write a sweep and a prediction for a checkpoint, ready to apply, and show what they cost."""
    cpt_tokens = count("--tokens", tokens)
    positive("--price-per-hour", price_per_hour)
    pace = replace(PACE, price_per_hour=price_per_hour)
    if validate is not None and not 0.0 < validate <= 1.0:
        raise BadInput(
            f"--validate: must be above 0 and at most 1, as in 0.3 for 30%, not {validate:g}"
        )
    parts = options.corpus_parts(corpus)
    found = options.read_checkpoint(checkpoint)
    called = options.name_of("--name", name, found.uri)
    if validate is not None and len(called + VALIDATION) > MAX_NAME:
        raise BadInput(f"--name: {called}{VALIDATION} is longer than {MAX_NAME} characters")
    path = out or Path(f"{called}.yaml")
    if path.exists():
        raise BadInput(f"--out: {path} exists: name another file, or remove it")
    if validate is not None and found.nearest is not None:
        raise BadInput(
            f"--validate: isoloss cannot continue a checkpoint of type {found.nearest.model_type}: leave it out, and compare runs "
            "around the answer in your own trainer"
        )
    is_length_guessed = length is None
    length = options.sequence_length(length, found.config)
    cap = _spend(spend)
    # All options before the designs, which take seconds.
    namespace = None if namespace is None else options.name_of("--namespace", namespace, "")
    secret = None if secret is None else options.name_of("--secret", secret, "")
    folder = options.folder("--storage", storage or f"{found.uri.rpartition('/')[0]}/isoloss")
    tokenizer_uri = options.tokenizer(tokenizer_uri, found.uri)
    try:
        compared = design.designs(
            found.config, cpt_tokens, accelerators, length, searches=not grid
        )
        chosen = design.choose(compared, cap)
    except design.NoDesign as error:
        raise BadInput(str(error)) from error
    each = chosen.accelerators(accelerators, None, searches=not grid)
    written = Written(
        name=called,
        namespace=namespace,
        checkpoint=found,
        cpt_tokens=cpt_tokens,
        storage=folder,
        is_storage_guessed=storage is None,
        secret=secret,
        tokenizer=tokenizer_uri,
        sequence_length=length,
        is_sequence_length_guessed=is_length_guessed,
        corpus=parts,
        design=chosen,
        accelerators=each,
        parallelism=design.parallelism(accelerators, each),
        evaluation_accelerators=_evaluation_accelerators(found.total),
        validated_share=validate,
        training_accelerators=design.training_accelerators(
            found.config, length, ACCELERATORS_OF_CONTINUED
        )
        or ACCELERATORS_OF_CONTINUED[-1],
    )
    as_planned, _ = _as_planned(written, accelerators, grid=grid)
    while (hours := as_planned.expected_hours) > cap.hours:
        tighter = cap.hours * written.design.expected_hours / hours
        try:
            chosen = design.choose(compared, replace(cap, hours=tighter))
        except design.NoDesign as error:
            idle = f"{hours:.3g} accelerator hours, idle ones at small batches included"
            raise BadInput(f"--spend: no sweep was found that costs less than {idle}") from error
        written = replace(written, design=chosen)
        as_planned, _ = _as_planned(written, accelerators, grid=grid)
    shown = [
        _as_planned(replace(written, design=other), accelerators, grid=grid)
        for other in design.curve(compared, chosen)
    ]
    written, plan = _completed(replace(written, design=as_planned), pace, accelerators, grid=grid)
    text = manifests(written)
    write_file(path, text)
    if as_json:
        cost = plan.cost(found.active, cpt_tokens)
        print_document(
            {
                "manifest": str(path),
                "guesses": guesses(text),
                **sizes_document(plan.sizes, pace, cost),
                **price_document(plan, pace),
                "designs": curve_document(shown, written.design),
                "warnings": list(_caveats(written, cap)),
            }
        )
    else:
        print_curve(shown, written.design, price_per_hour, is_capped=cap != design.Spend())
        _print(path, text, written, plan, pace, cap)
    return ANSWERED


def _spend(text: str | None) -> design.Spend:
    """Raises BadInput for what is neither a share nor hours."""
    if text is None:
        return design.Spend()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%|h)", text.strip())
    if found is None or float(found[1]) <= 0.0:
        raise BadInput(
            f"--spend: {text} is not a cap: write a share of the planned run such as 5%, or accelerator hours such as 40h"
        )
    value = float(found[1])
    return design.Spend(share=value / 100.0) if found[2] == "%" else design.Spend(hours=value)


def _as_planned(
    written: Written, accelerators: int, *, grid: bool
) -> tuple[design.Design, float | None]:
    """The design with the accelerator hours of its plan, which has those that idle beside batches they do not divide; and the
    hours until it ends. As it is, and None, if its grids could not be placed."""
    try:
        plan = _laid_out(written, accelerators, grid=grid)[1]
    except BadInput:
        return written.design, None
    took = plan.elapsed(PACE)
    hours = took.whole_grid_hours if took.search_hours is None else took.search_hours
    return replace(written.design, expected_hours=plan.expected_hours(PACE)), hours


def _evaluation_accelerators(total: int) -> int:
    """The least power of two that holds the checkpoint's weights."""
    needed, count = WEIGHT_BYTES * total / (WEIGHTS_SHARE * design.GPU_BYTES), 1
    while count < needed:
        count *= 2
    return count


def _completed(
    written: Written, pace: Pace, accelerators: int, *, grid: bool
) -> tuple[Written, Planned]:
    """With what follows from the plan of a draft, and the plan of all that."""
    written, plan = _laid_out(written, accelerators, grid=grid)
    costs = tuple(_costs(written, plan, pace))
    searched = 0.0 if plan.search is None else plan.search.expected_flops
    written = replace(written, budget=BUDGET * max(plan.flops, searched), costs=costs)
    return written, _plan_of(written)


def _laid_out(written: Written, accelerators: int, *, grid: bool) -> tuple[Written, Planned]:
    """With the Jobs, the grids and the validation text that its sizes call for, and their plan."""
    draft = _plan_of(written)
    smallest_batch = min(batch for size in draft.sizes for batch in size.batch_sizes)
    each = written.design.accelerators(accelerators, smallest_batch, searches=not grid)
    written = replace(
        written, accelerators=each, parallelism=design.parallelism(accelerators, each)
    )
    if grid:
        written = replace(written, grids=draft.placed)
    if largest_evaluation_share(draft.spec) > GOAL:
        written = replace(written, validation_sequences=affordable_sequences(draft.spec))
    return written, _plan_of(written)


def _plan_of(written: Written) -> Planned:
    """The plan of the manifests, read as the API server and the operator read them. Raises BadInput."""
    sweep, prediction, *around = read_documents(manifests(written))
    known = {written.checkpoint.uri: written.checkpoint.config}
    try:
        parse_prediction_spec(prediction["spec"])
        for each in around:
            with_continued_models(parse_sweep_spec(each["spec"]), known)
        return planned(parse_sweep_spec(sweep["spec"]))
    except (InvalidSpec, BadInput) as error:
        refusal = str(error).replace(f"; {GIVE_A_GRID}", "")
        raise BadInput(f"{_blamed(written, refusal)}: {refusal}") from error


def _blamed(written: Written, refusal: str) -> str:
    """The option that a refusal of the manifests is due to, as far as its first field tells."""
    if refusal.startswith("spec.proxies[0].checkpoint"):
        return "--validate: isoloss cannot continue this checkpoint: leave it out, or change config.json"
    if refusal.startswith(TOKENS_DECIDE):
        tokens = formatting.count(written.cpt_tokens)
        return (
            f"--tokens: {tokens} tokens allow no sweep of this checkpoint (write 5 billion as 5B)"
        )
    return "these options allow no sweep of this checkpoint"


def _costs(written: Written, plan: Planned, pace: Pace) -> list[str]:
    points = sum(size.points for size in plan.sizes)
    hours, price = plan.hours(pace), pace.price_per_hour
    planned_run = 6.0 * written.checkpoint.active * written.cpt_tokens
    whole = f"{points} points: {_cost(plan.flops, plan, hours)}"
    shares = " and ".join(f"{share:.0%}" for share in sorted({s.utilisation for s in plan.sizes}))
    if plan.search is None:
        sentences = [f"Cost: {whole} of an H100 ({shares} of its peak)."]
    else:
        expected = _cost(plan.search.expected_flops, plan, hours)
        sentences = [
            f"Cost: {expected} of an H100 ({shares} of its peak) expected of the search;",
            f"the whole grid of {whole}.",
        ]
    beyond = formatting.number(written.design.extrapolation, 2)
    return [
        *sentences,
        *([] if price is None else [price_sentence(plan, pace, price)]),
        f"Its answer is expected to lose {in_words(written.design.outlook)};",
        f"cost and regret together are {100.0 * written.design.total:.3g}% of the continued run.",
        f"The continued run itself takes {formatting.flops(planned_run)} FLOPs, {beyond} times a run of the largest proxy.",
        *_cost_of_validation(written),
    ]


def _cost_of_validation(written: Written) -> Iterator[str]:
    if (share := written.validated_share) is not None:
        yield (
            f"Five runs around the answer come on top: {5 * share:.3g} times the continued run, "
            f"on {formatting.counted(written.training_accelerators, 'accelerator')}."
        )


def _cost(flops: float, plan: Planned, hours: float) -> str:
    share = formatting.number(hours * flops / plan.flops)
    return f"{formatting.flops(flops)} FLOPs, about {share} accelerator hours"


def _caveats(written: Written, cap: design.Spend) -> Iterator[str]:
    """What differs from the checkpoint, and what makes the sweep a poor deal for a run as short, or as long, as that."""
    found, other = written.design, written.checkpoint.nearest
    yield from _cost_of_validation(written)
    if other is not None:
        yield " ".join(other.sentences)
    free = f"a published law, which costs nothing, is expected to lose {published_in_words(found.target)}"
    if found.outlook.wasted >= PUBLISHED_WASTE:
        larger = (
            "more accelerators hold larger proxies, on several nodes"
            if cap == design.Spend()
            else "a higher --spend allows larger proxies"
        )
        yield (
            f"The proxies worth their cost are so far from this checkpoint that the answer is expected to lose {in_words(found.outlook)}; {free}. "
            f"Its prediction may be refused (ExtrapolationTooFar): {larger}."
        )
    elif found.total >= PUBLISHED_WASTE:
        share = formatting.number(100.0 * found.total, 2)
        instead = (
            "; so may trying learning rates on the checkpoint itself" if found.cost > 1 else ""
        )
        yield (
            f"A sweep does not pay off for such a short run: cost and expected regret of the best design are {share}% of it, and "
            f"{free}. `isoloss predict published:step-law --params {formatting.count(written.checkpoint.active)} --total-flops FLOPS`, "
            f"with the FLOPs of pre-training included, is cheaper{instead}."
        )
    if found.tokens_per_parameter < design.FEWEST_TOKENS_PER_PARAMETER:
        yield (
            f"The planned tokens are {formatting.number(found.tokens_per_parameter, 2)} per parameter of the largest proxy. "
            f"Below {design.FEWEST_TOKENS_PER_PARAMETER} a run from scratch is mostly warm-up, as warm-up usually takes one per "
            "parameter: trying learning rates on the checkpoint itself may tell more."
        )


def _print(
    path: Path, text: str, written: Written, plan: Planned, pace: Pace, cap: design.Spend
) -> None:
    terminal = console(PIPED_WIDTH)
    print_plan(plan, pace, plan.cost(written.checkpoint.active, written.cpt_tokens))
    for sentence in _caveats(written, cap):
        terminal.print(f"\n{sentence}")
    where = f" --namespace {written.namespace}" if written.namespace else ""
    terminal.print(
        f"\nwritten to {path}; {guesses(text)} of its lines are marked '{GUESSED}'. When they are right:"
    )
    # Commands are to be pasted: a pipe gets them whole.
    console().print(
        f"\n    kubectl apply -f {shlex.quote(str(path))}\n    isoloss watch scalingsweep/{written.name}{where}"
    )
