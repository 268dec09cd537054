"""What is trained, in which order, and what of it is missing. docs/evidence/transfer.md registers it; nothing here trains."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.transfer.grids import Grid, Place, Runs, best_place, has_optimum, losses_at
from benchmarks.transfer.stack import Shape
from benchmarks.transfer.texts import FAR, NEAR
from isoloss_contract.records import OptimizerConfig

CHECKED = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Tokens a parameter at which optima are read, and looked for inside the grid."""
BUDGETS = tuple(ratio for ratio in CHECKED if ratio != 16.0)
"""Of the continued runs that are judged."""
FIRST_READING = 1 / 32
"""Tokens a parameter; then at each doubling."""
DECAY, DECAYED_TO = 0.2, 0.1
"""Of a decayed checkpoint: the share of its tokens over which the rate falls, and the share of the rate that it falls to."""


@dataclass(frozen=True)
class Checkpoint:
    """A model pre-trained on a text for so many tokens a parameter: its weights averaged, or after a decay of the rate."""

    text: str
    per_param: int
    ending: Literal["averaged", "decayed"] = "averaged"
    slower: int = 0
    """Halvings of its learning rate from that of the size's other checkpoints."""

    @property
    def run(self) -> str:
        """The run that it is from."""
        return f"{self.text}-slower-{self.slower}" if self.slower else self.text

    @property
    def name(self) -> str:
        """Distinct within a size."""
        decayed = "-decayed" if self.ending == "decayed" else ""
        slower = f"-slower-{self.slower}" if self.slower else ""
        return f"{self.text}-{self.per_param}{slower}{decayed}"


SCRATCH = "scratch"


@dataclass(frozen=True)
class Part:
    """A grid from scratch, or continued from a checkpoint, to so many tokens a parameter."""

    checkpoint: Checkpoint | None
    per_param: int
    grid: Grid | None = None
    """Where its grid begins, if not where those of its size do."""

    @property
    def origin(self) -> str:
        """Where its runs begin."""
        return SCRATCH if self.checkpoint is None else self.checkpoint.name


_FAR_5, _NEAR_5, _NEAR_20 = Checkpoint(FAR, 5), Checkpoint(NEAR, 5), Checkpoint(NEAR, 20)
PARTS = (
    *(Part(past, until) for until in (2, 8) for past in (None, _FAR_5)),
    Part(_NEAR_20, 8),
    Part(None, 16),
    *(
        Part(past, 8)
        for past in (
            Checkpoint(FAR, 20),
            _NEAR_5,
            Checkpoint(NEAR, 80),
            Checkpoint(FAR, 80),
            Checkpoint(NEAR, 20, "decayed"),
        )
    ),
    Part(_FAR_5, 32),
)


@dataclass(frozen=True)
class Size:
    """A model, where its grids begin, and how its checkpoints are trained."""

    name: str
    shape: Shape
    grid: Grid
    pretraining: Place
    warmup_tokens: int
    parts: tuple[Part, ...] = PARTS
    """In the order in which they are trained."""
    lowest_batch: int = 2

    @property
    def optimizer(self) -> OptimizerConfig:
        """Of every run: with beta2 0.999 runs this short want one sequence a step."""
        return OptimizerConfig(beta2=0.95, weight_decay=0.1, warmup_tokens=self.warmup_tokens)

    def tokens(self, per_param: float) -> int:
        """So many tokens a parameter, in whole batches of every size."""
        batch = Place(0, self.grid.batches[1] + 2).batch * self.shape.length
        return max(1, round(per_param * self.shape.params / batch)) * batch

    def checkpoints(self, wanted: Checkpoint) -> list[Checkpoint]:
        """Those that the run up to `wanted` passes, in order, averaged weights first."""
        found = {part.checkpoint for part in self.parts if part.checkpoint is not None} | {wanted}
        passed = (c for c in found if c.run == wanted.run and c.per_param <= wanted.per_param)
        return sorted(passed, key=lambda c: (c.per_param, c.ending))

    def readings(self, per_param: float) -> list[int]:
        """Tokens at which a run of so many tokens a parameter is evaluated, ascending; the last is its end."""
        ratio, found = FIRST_READING, set()
        while ratio <= per_param:
            found.add(self.tokens(ratio))
            ratio *= 2
        return sorted(found)


_LINK_GRID = Grid((-10, -7), (2, 4))
_LOWER = {FAR: Grid((-11, -8), (2, 4)), NEAR: Grid((-12, -9), (3, 5))}
_WIDER = {FAR: Grid((-11, -7), (1, 4)), NEAR: Grid((-12, -7), (2, 5))}


def _at_rates(
    per_param: int,
    ending: Literal["averaged", "decayed"],
    *halvings: int,
    grids: Mapping[str, Grid] = _LOWER,
) -> Iterator[Part]:
    """Checkpoints that differ in their learning rate, and otherwise are the same."""
    for slower in halvings:
        for text in (FAR, NEAR):
            yield Part(Checkpoint(text, 5, ending, slower), per_param, grids[text])


LINK = Size(
    "link",
    Shape(width=128, layers=1, heads=4, vocabulary=512, length=64),
    _LINK_GRID,
    pretraining=Place(-8, 3),
    warmup_tokens=4096,
    parts=(
        *(Part(past, until) for until in (1, 2, 4, 8) for past in (None, _FAR_5)),
        *(Part(Checkpoint(text, 5, slower=2), 4) for text in (FAR, NEAR)),
        Part(_NEAR_5, 8),
        *_at_rates(2, "decayed", 1, 3),
        *_at_rates(2, "averaged", 1, 3),
        *_at_rates(2, "decayed", 2),
        Part(Checkpoint(FAR, 5, slower=1), 4, _LOWER[FAR]),
        Part(_NEAR_20, 8),
    ),
    lowest_batch=1,
)
"""The shape of the largest models of the first study."""
HALF = Size(
    "half",
    Shape(width=64, layers=1, heads=2, vocabulary=512, length=64),
    _LINK_GRID,
    LINK.pretraining,
    LINK.warmup_tokens,
    parts=(
        Part(None, 8),
        Part(None, 8, Grid((-10, -7), (1, 5))),
        *_at_rates(2, "decayed", 1, 3, 2, 0),
        *_at_rates(2, "averaged", 1, 3, 2, 0),
        *_at_rates(2, "decayed", 0, 1, 2, 3, grids=_WIDER),
        *_at_rates(2, "averaged", 0, 1, 2, 3, grids=_WIDER),
    ),
    lowest_batch=1,
)
"""Half as wide as `LINK`, and all else the same."""


def _size(name: str, width: int, layers: int, rate: int, batch: int) -> Size:
    """`rate` and `batch` are the lowest exponents of its grids."""
    return Size(
        name,
        Shape(width, layers, heads=width // 32, vocabulary=4096, length=256),
        Grid((rate, rate + 4), (batch, batch + 3)),
        pretraining=Place(rate + 2, batch + 1),
        warmup_tokens=16 * 4096,
    )


SIZES = {
    size.name: size
    for size in (
        HALF,
        LINK,
        _size("1M", 96, 5, -10, 2),
        _size("3M", 192, 5, -10, 3),
        _size("10M", 320, 7, -11, 4),
        _size("30M", 512, 9, -11, 5),
    )
}
ORDER = {
    "cpu": ("half", "link", "1M", "3M", "10M", "30M"),
    "cuda": ("10M", "3M", "1M", "30M", "link", "half"),
}
"""By device."""

Results = dict[tuple[str, str], Runs]
"""Losses by tokens of every run, by size and origin."""


@dataclass(frozen=True)
class Missing:
    """A part, and the places of its grid whose runs are not at its end."""

    size: Size
    part: Part
    places: tuple[Place, ...]


def grid_of(size: Size, part: Part, results: Results) -> Grid:
    """As far as it has grown: by a line on each side on which the best run lies at a reading without an optimum inside.

    Readings that an earlier part of the same runs ends at, or passes, have made that part grow.
    """
    runs, grid = results.get((size.name, part.origin), {}), part.grid or size.grid
    end = size.tokens(part.per_param)
    earlier = (p.per_param for p in size.parts if p.origin == part.origin)
    passed = max((ratio for ratio in earlier if ratio < part.per_param), default=0)
    checked = [size.tokens(ratio) for ratio in CHECKED if passed < ratio <= part.per_param]
    while all(reached(runs, place) >= end for place in grid.places()):
        inside = {place: runs[place] for place in grid.places()}
        larger = grid
        for tokens in checked:
            losses = losses_at(inside, tokens)
            if losses and not has_optimum(losses):
                larger = larger.widened(best_place(losses), size.lowest_batch)
        if larger == grid:
            break
        grid = larger
    return grid


def reached(runs: Runs, place: Place) -> int:
    """Tokens that a run was read at last; 0 if there is none."""
    return max(runs.get(place, {0: 0.0}))


def missing(
    results: Results, device: str, sizes: Sequence[str] = (), origins: Sequence[str] = ()
) -> Iterator[Missing]:
    """What is left to train, in order; grids may grow once it is done. `sizes` and `origins` leave others out."""
    for name in sizes or ORDER[device]:
        size = SIZES[name]
        for part in size.parts:
            runs = results.get((name, part.origin), {})
            end = size.tokens(part.per_param)
            places = grid_of(size, part, results).places()
            lacking = tuple(place for place in places if reached(runs, place) < end)
            if lacking and (not origins or part.origin in origins):
                yield Missing(size, part, lacking)
