"""A fit of the laws as it is asked for, what it depends on, and its outcome; a step of a search is decided in the same process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field

from isoloss.laws import FitOptions, Laws, Prediction
from isoloss.report.content import PointRow
from isoloss.runs import Weights
from isoloss.search import SearchOptions, Seen, Size
from isoloss_contract import records
from isoloss_contract.ledger import MAX_ADDITIONS

PAGE_SECONDS: Final = 60.0
"""Between two pages of one resource."""

# --------------------------------------------------------------------------------- steps of a search


@dataclass(frozen=True)
class SearchRequest:
    """Decide what to train next."""

    sizes: tuple[Size, ...]
    points: Mapping[str, Seen]
    """The ledger's by key. Trajectories are those of the fit's points of these keys."""
    options: SearchOptions
    """Without a budget of FLOPs and without those of the fit."""
    flops_left: float | None
    """FLOPs left of the budget; None: it does not limit them."""


Text = Annotated[str, Field(max_length=64)]


@dataclass(frozen=True)
class PointDecision:
    """What is newly wanted of one point."""

    size: records.Name
    batch_size: int
    learning_rate: records.PositiveFinite
    tokens: records.Tokens
    """To train until."""
    reason: Text
    """One of isoloss.search.Reason."""
    flops: records.Finite
    """What following it costs."""
    saves: records.Finite
    """FLOPs of the target that it is expected to save."""
    added: bool


@dataclass(frozen=True)
class SearchStep:
    """The decisions that follow once all points have reached their targets."""

    decisions: Annotated[tuple[PointDecision, ...], Field(max_length=MAX_ADDITIONS)] = ()
    ended: Text = ""
    """One of isoloss.search.StopReason; empty: the search goes on, and there are decisions."""
    next_flops: records.Finite | None = None
    """What the next best point would cost, if the search is over because it is not worth it."""
    next_saves: records.Finite | None = None
    """FLOPs of the target that it would be expected to save."""
    least_flops: records.Finite | None = None
    """What a search must train at the least, if the budget does not cover it and the search is over before that."""
    least_seconds: records.Finite | None = None
    """Accelerator seconds that it takes, if it is these that the budget does not cover."""


# ------------------------------------------------------------------------------------ fits and pages


@dataclass(frozen=True)
class FitPoint:
    """One finished point to fit, and where its trajectory is."""

    key: str
    name: str
    config: records.PointConfig
    trajectory_sha256: str
    diverged: bool
    finished: bool = True
    """It came to its proxy's tokens, or diverged."""
    stopped: str = ""
    """Run.stopped"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the process of a fit is asked for: a fit, or a page that is drawn without one."""

    inputs: str
    """Hash of all that goes into it: equal inputs need it no second time."""
    ledger_sha256: str
    laws_path: str
    report_path: str
    """Of the page."""
    provisional: bool = True
    """It may wait until others had their turn."""


@dataclass(frozen=True, kw_only=True)
class SweepRequest(Request):
    """One whose page shows a sweep and its points."""

    points: tuple[FitPoint, ...]
    weights: Weights
    missing: tuple[PointRow, ...] = ()
    """Points that the fit does not use, for the report's table: failed ones with their termination message, and pending
    ones."""
    resource: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Its metadata, and the status of the pass that asks for it: the page shows them, and no law depends on them."""


@dataclass(frozen=True, kw_only=True)
class FitRequest(SweepRequest):
    """Fit these points, write laws.json and the report, and show the outcome in the next pass."""

    options: FitOptions
    search: SearchRequest | None = None
    """Decide the next step of the search as well; unless it ends with that, the laws are provisional."""


@dataclass(frozen=True, kw_only=True)
class SweepPage(SweepRequest):
    """Draw the page of a sweep on the way."""

    laws: Laws | None
    """Those of the newest fit; None: there was none."""


@dataclass(frozen=True, kw_only=True)
class AnswerPage(Request):
    """Draw the page of a prediction: the answer on the laws."""

    laws: Laws
    prediction: Prediction
    """In sequences of the target's length."""
    initial_loss: float
    parameters: float | None
    """Active ones of the target; None: unknown."""
    resource: Mapping[str, Any]
    """Its status as the API server shows it, and of its spec the targetSequenceLength."""


Work = FitRequest | SweepPage | AnswerPage
"""Every kind of Request there is."""


@dataclass(frozen=True)
class FitOutcome:
    """The outcome of a Request. The shell keeps the newest and reads it back after a restart."""

    inputs: str
    """Request.inputs that it answers."""
    laws: Laws | None
    """None if the fit could not run; refusals are part of Laws."""
    laws_sha256: str = ""
    """Digest of laws.json."""
    report_written: bool = False
    ledger_sha256: str = ""
    """Digest of the ledger it was fitted to."""
    points: int = 0
    """Runs that it used."""
    unreadable: tuple[tuple[str, str], ...] = ()
    """(point key, message): trajectories that are missing, truncated or do not match their result's
    digest. Those points are trained again."""
    error: str = ""
    """Why the fit itself failed, in a sentence."""
    may_pass: bool = False
    """Whether the error may go of itself: the fit is tried again soon, and nobody need do anything."""
    step: SearchStep | None = None
    """Step of the search, if one was asked for."""

    @property
    def is_page(self) -> bool:
        """Whether it is of a page: every fit, failed ones too, names its ledger."""
        return self.laws is None and not self.ledger_sha256


FEWEST_FOR_PROVISIONAL: Final = 4
"""Below this many points no law is worth fitting."""
