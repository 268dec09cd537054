"""`isoloss predict`: a learning rate and a batch size from fitted or published laws."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from isoloss import formatting, published
from isoloss import laws as engine
from isoloss.cli import outcome, querying
from isoloss.cli.exports import Columns, Settings, print_read, refuse_idle_of_tables
from isoloss.cli.inputs import AsJson, refuse_idle
from isoloss.errors import BadInput
from isoloss.laws import predict as predict_from
from isoloss.laws_files import read_laws
from isoloss.report import predicted
from isoloss.tables import is_table
from isoloss.tables.naming import ReadAs

OWN_LAWS_ONLY = (
    *("initial_loss_standard_error", "flops_per_token", "pretraining_tokens"),
    "pretraining_learning_rate",
    *("composition", "composition_error", "batch_size", "batch_size_tolerance"),
)
"""What of a question no published law can answer."""


@querying.asks()
def predict(
    laws: Annotated[
        list[str],
        typer.Argument(
            metavar="LAWS",
            help="A file from isoloss fit, the URI of a sweep in the store, or published:NAME; or tables of runs, to which laws "
            "are fitted first.",
        ),
    ],
    column: Columns = None,
    settings: Settings = None,
    asked: engine.PredictionQuery = querying.NOTHING_ASKED,
    as_json: AsJson = False,
) -> int:
    """Predict the learning rate and batch size of a continued pre-training run."""
    refuse_idle_of_tables(laws, column, settings)
    source, *more = laws
    if any(map(is_table, laws)):
        return _from_own(lambda: _fitted(laws, column, settings, as_json), asked, as_json)
    if more:
        raise BadInput(f"{more[0]}: only tables of runs may be several: leave it out")
    if published.is_published(source):
        return _from_published(published.published_law(source), asked, as_json)
    return _from_own(lambda: (read_laws(source), ()), asked, as_json)


# ------------------------------------------------------------------------------------ own laws


def _fitted(
    runs: Sequence[str], column: list[str] | None, settings: str | None, as_json: bool
) -> tuple[engine.Laws, Sequence[ReadAs]]:
    """Laws of these tables, as `isoloss fit` fits them, and what was taken for what."""
    # Not above: a prediction from laws needs neither scipy nor pyarrow.
    from isoloss.fitting import fit_laws
    from isoloss.run_sources import read_runs

    given = read_runs(*runs, columns=column or (), settings=settings)
    if not as_json:
        print_read(given.read)
    return fit_laws(given), given.read


def _from_own(
    source: Callable[[], tuple[engine.Laws, Sequence[ReadAs]]],
    asked: engine.PredictionQuery,
    as_json: bool,
) -> int:
    querying.checked(asked)
    laws, read = source()
    answer = predict_from(laws, asked)
    if isinstance(answer, engine.Refused):
        code = outcome.print_refused(answer, as_json=as_json, read=read)
        if answer.answered_at is not None and not as_json:
            _print_notes(
                (f"The same command with --batch-size {answer.answered_at:.0f} answers.",)
            )
        return code
    opinions, silent = published.published_opinions(
        total_flops=answer.total_flops.value, params=asked.params
    )
    if as_json:
        notes = {"warnings": [*answer.warnings, *silent], "second_opinions": opinions}
        taken = {"read": read} if read else {}
        outcome.print_document({**asdict(answer), **notes, **taken})
    else:
        outcome.print_warnings(list(answer.warnings))
        _print_prediction(answer, asked, opinions, laws.sequence_length)
        _print_notes((*(each for law in opinions for each in law.warnings), *silent))
    return outcome.ANSWERED


def _print_prediction(
    answer: engine.Prediction,
    asked: engine.PredictionQuery,
    opinions: tuple[published.PublishedOptimum, ...],
    laws_length: int | None,
) -> None:
    terminal, unit = outcome.console(), predicted.unit_of_batches(answer, laws_length)
    head = outcome.grid("", f"{answer.interval_level:.0%} interval")
    head.add_row(
        "learning rate", formatting.interval(answer.learning_rate, formatting.learning_rate)
    )
    head.add_row(f"batch size ({unit})", engine.batch_size_text(answer, answer.batch_size))
    for name, value in predicted.prediction_facts(answer, asked.initial_loss, unit):
        head.add_row(name, value)
    terminal.print(head)
    terminal.print()
    others = predicted.alternatives_table(answer, opinions, laws_length)
    table = outcome.grid(*others.heads)
    for row in others.rows:
        table.add_row(*row)
    terminal.print(table)
    if answer.provisional:
        terminal.print("provisional: the sweep behind these laws is still running")


def _print_notes(notes: tuple[str, ...]) -> None:
    """What to know of the published laws' rows, and why a law has none: a column would be too narrow for it."""
    for note in notes:
        outcome.console().print(f"note: {note}")


# ------------------------------------------------------------------------------ published laws


def _from_published(
    law: published.PublishedLaw, asked: engine.PredictionQuery, as_json: bool
) -> int:
    # An answer would look as if it were of these, too.
    refuse_idle(
        querying.with_defaults(asked, OWN_LAWS_ONLY),
        f"published:{law.name} does not take it, only laws of your own do",
    )
    if asked.total_flops is None:
        budgets = [each for each in (asked.cpt_flops, asked.cpt_tokens) if each is not None]
        if len(budgets) > 1 or (not budgets and asked.initial_loss is None):
            querying.checked(asked)
        return outcome.print_refused(engine.Refused((_no_curve(law),)), as_json=as_json)
    querying.checked(asked)
    total_flops = asked.total_flops
    length = asked.sequence_length or law.sequence_length
    try:
        answer = law.evaluate(total_flops=total_flops, params=asked.params)
        raw = _sequences(law, answer, length)
    except published.MissingParams as error:
        raise BadInput(f"published:{law.name}: {error} (--params)") from error
    except published.NotApplicable as error:
        figures: dict[str, float | str] = {"total_flops": total_flops}
        reason = engine.RefusalReason.EXTRAPOLATION_TOO_FAR
        return outcome.print_refused(
            engine.Refused((engine.Refusal(reason, str(error), figures),)), as_json=as_json
        )
    warnings = (*_published_warnings(law, length), *answer.warnings)
    batch = raw
    # Rounding is asked for with --round-to; without it the formula's own value is more use.
    if asked.round_to > 1:
        batch = engine.rounded(raw, asked.round_to)
        anywhere = engine.Interval(raw, 0.0, math.inf)
        warnings = (*warnings, *engine.rounding_sentences(anywhere, asked.round_to))
    opinions, silent = published.published_opinions(total_flops=total_flops, params=asked.params)
    others = tuple(opinion for opinion in opinions if opinion.name != law.name)
    if as_json:
        outcome.print_document(
            {
                "learning_rate": _without_interval(answer.learning_rate),
                "batch_size": _without_interval(batch),
                "batch_size_raw": raw,
                "batch_size_tokens": _without_interval(batch * length),
                "total_flops": _without_interval(total_flops),
                "interval_level": None,
                "route": f"published:{law.name}",
                "source": law.source,
                "sequence_length": length,
                "second_opinions": others,
                "warnings": [*warnings, *silent],
            }
        )
    else:
        outcome.print_warnings(list(warnings))
        _print_published(law, answer, batch, length)
    return outcome.ANSWERED


def _sequences(
    law: published.PublishedLaw, answer: published.PublishedOptimum, length: int
) -> float:
    """The batch size in sequences of the length asked for. Raises NotApplicable for less than one."""
    if answer.batch_size(length) < 1:
        raise published.NotApplicable(
            f"{law.name} gives a batch size of {answer.batch_size_tokens:.3g} tokens, less than one sequence of {length} tokens"
        )
    return answer.batch_size(length)


def _without_interval(value: float) -> dict[str, float | None]:
    return {"value": value, "low": None, "high": None}


def _no_curve(law: published.PublishedLaw) -> engine.Refusal:
    return engine.Refusal(
        engine.RefusalReason.LAW_REFUSED,
        f"published:{law.name} has no loss-compute law, which converts an initial loss to "
        "equivalent compute: give --total-flops",
        {"law": law.name},
    )


def _published_warnings(law: published.PublishedLaw, length: int) -> tuple[str, ...]:
    found = [
        f"published:{law.name} has no covariance: there is no interval, low and high are null",
        *(f"published:{law.name}: {caveat}" for caveat in law.caveats),
    ]
    if length != law.sequence_length:
        found.append(
            f"published:{law.name} was fitted with sequences of {law.sequence_length} tokens; the batch size is "
            f"converted to sequences of {length} at equal tokens per step"
        )
    return tuple(found)


def _print_published(
    law: published.PublishedLaw, answer: published.PublishedOptimum, batch_size: float, length: int
) -> None:
    table = outcome.grid("", "no interval is published")
    table.add_row("learning rate", formatting.learning_rate(answer.learning_rate))
    table.add_row(f"batch size (sequences of {length})", formatting.batch_size(batch_size))
    table.add_row("batch size (tokens)", formatting.count(batch_size * length))
    table.add_row("source", law.source)
    outcome.console().print(table)
