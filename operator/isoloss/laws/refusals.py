"""Reasons not to fit at all, found before any arithmetic, and the shape of a wholly refused result."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from isoloss.laws import results
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import FitOptions, Refusal, RefusalReason, Run
from isoloss.usual import USUAL_SCATTER

_NOT_COMPARABLE = "Their losses per token cannot be compared"
_NOT_ONE_LAW = {
    RefusalReason.MIXED_TOKENIZERS: _NOT_COMPARABLE,
    RefusalReason.MIXED_SEQUENCE_LENGTHS: _NOT_COMPARABLE,
    RefusalReason.MIXED_LOSS_KINDS: _NOT_COMPARABLE,
    RefusalReason.MIXED_OPTIMIZERS: "The best learning rate and batch size depend on it",
    RefusalReason.MIXED_STARTS: "Continued runs want other settings than runs from scratch",
}


def refuse_mixture(runs: Sequence[Run]) -> Refusal | None:
    """Losses that cannot be compared, or nothing to compare."""
    if not runs:
        return Refusal(RefusalReason.TOO_FEW_RUNS, "There are no runs.", {"runs": 0})
    for attribute, reason, words in (
        ("tokenizer", RefusalReason.MIXED_TOKENIZERS, "tokenizers"),
        ("sequence_length", RefusalReason.MIXED_SEQUENCE_LENGTHS, "sequence lengths"),
        ("loss_kind", RefusalReason.MIXED_LOSS_KINDS, "kinds of loss"),
        ("optimizer", RefusalReason.MIXED_OPTIMIZERS, "optimizers"),
        ("started_from", RefusalReason.MIXED_STARTS, "beginnings"),
    ):
        counts = Counter(getattr(run, attribute) for run in runs)
        if len(counts) > 1:
            listed = ", ".join(
                f"{value} ({n} run{'' if n == 1 else 's'})"
                for value, n in sorted(counts.items(), key=str)
            )
            return Refusal(
                reason,
                f"The runs have different {words}: {listed}. {_NOT_ONE_LAW[reason]}. Fit them separately.",
                {str(value): n for value, n in counts.items()},
            )
    return _mixed_text_per_token(runs)


def _mixed_text_per_token(runs: Sequence[Run]) -> Refusal | None:
    """Unnamed tokenizers differ in bytes per token: one tokenizer on one text gives one ratio."""
    ratios = [run.bytes_per_token for run in runs if run.bytes_per_token is not None]
    if not ratios or max(ratios) <= 1.02 * min(ratios):
        return None
    return Refusal(
        RefusalReason.MIXED_TOKENIZERS,
        f"bytes_per_token ranges from {min(ratios):.4g} to {max(ratios):.4g}: the runs do not share "
        "a tokenizer and a validation text. Fit them separately.",
        {"lowest": min(ratios), "highest": max(ratios)},
    )


def refused_laws(
    refusal: Refusal,
    runs: Sequence[Run],
    options: FitOptions,
    excluded: tuple[results.Exclusion, ...] = (),
) -> Laws:
    """All laws refused for one reason."""
    first = runs[0] if runs else None
    return Laws(
        status="refused",
        learning_rate=results.HyperparameterLaw(
            "learning_rate", "refused", options.form, refusal=refusal
        ),
        batch_size=results.HyperparameterLaw(
            "batch_size", "refused", options.form, refusal=refusal
        ),
        loss_compute=results.LossComputeLaw("refused", refusal=refusal),
        surface=results.SurfaceLaw("refused", refusal=refusal),
        optima=(),
        frontier=(),
        contours=(),
        excluded=excluded,
        warnings=(),
        data=results.DataRange(runs=len(runs), evaluations=sum(len(r.tokens) for r in runs)),
        draws=results.Draws(),
        sequence_length=first.sequence_length if first else None,
        options=options,
        tokenizer=first.tokenizer if first else None,
        loss_kind=first.loss_kind if first else None,
        optimizer=first.optimizer if first else None,
        started_from=first.started_from if first else None,
        rate_at_batch=results.RateAtBatchLaw("refused", refusal=refusal),
    )


def refuse_alike_sizes(params: Iterable[float]) -> Refusal | None:
    """None if there is one size, or several that differ enough.

    The best values of each size scatter about any law by a few per cent. Over a small step in size that looks like any
    exponent at all, and a law through it is believed where it is asked about other sizes.
    """
    sizes = np.unique(np.fromiter(params, dtype=float))
    if len(sizes) < 2 or np.log(sizes).std() >= USUAL_SCATTER:
        return None
    least, most = float(sizes[0]), float(sizes[-1])
    return Refusal(
        RefusalReason.TOO_FEW_SIZES,
        f"The sizes are too alike ({least:.3g} to {most:.3g} parameters, {most / least - 1:.1%} apart) to show the effect of "
        "size: train another of at least twice as many parameters.",
        {"sizes": len(sizes), "smallest": least, "largest": most},
    )


def law_figures(refusal: Refusal) -> dict[str, float | str]:
    """The figures of a law's own refusal, for the refusal of what rests on it."""
    return {**refusal.figures, "law_reason": refusal.reason.value}
