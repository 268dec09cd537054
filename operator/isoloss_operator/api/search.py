"""Which points of a sweep are trained, and how far."""

from typing import Literal

from pydantic import Field

from isoloss_operator.api.fields import ApiType, PlacementFactor, PositiveTokens

USUAL_ADDITIONS = 6
"""Points that one more line of learning rates, or of batch sizes, takes about an optimum, and two to spare."""


class ExtendGrid(ApiType):
    """Points that the search may add beyond the edges of the grids."""

    max_points: int | None = Field(default=None, ge=0, le=1000)
    """Maximum number of added points, over all sizes. Defaults to 6, or 6 for each size without a grid."""

    def limit(self, placed_sizes: int) -> int:
        """The maximum if so many sizes have no grid in the spec."""
        if self.max_points is not None:
            return self.max_points
        return USUAL_ADDITIONS * max(placed_sizes, 1)


class SearchTarget(ApiType):
    """The run that the answer is for."""

    parameters: PositiveTokens
    """Active parameters in matrix products, output head included."""
    tokens: PositiveTokens
    """Tokens of the run. What a better answer saves is counted in its FLOPs."""


class SearchPlacement(ApiType):
    """The first points of a size without a grid: all pairs of so many learning rates and batch sizes about the
    optimum that a published law gives for its parameters and tokens. status.search.placed says where that is;
    it stays there when tokens are raised."""

    lines: int = Field(default=3, ge=3, le=9)
    """Number of learning rates, and of batch sizes."""
    learning_rate_factor: PlacementFactor = "2"
    """Factor between two learning rates."""
    batch_size_factor: PlacementFactor = "2"
    """Factor between two batch sizes."""

    @property
    def points(self) -> int:
        """Number of points per size."""
        return self.lines**2


class Search(ApiType):
    """Which points of the grid are trained, and how far."""

    strategy: Literal["Exhaustive", "Sequential"] = "Exhaustive"
    """Exhaustive trains every point to its end. Sequential trains next what lowers the expected regret at `target` most
    per FLOP, and ends once the next best point would cost more than it saves there. It may be changed at any time."""
    extend_grid: ExtendGrid = ExtendGrid()
    """Points that Sequential may add if an optimum is on the edge of a grid."""
    target: SearchTarget | None = None
    """What Sequential weighs its costs against. When absent, a run of 200 times the compute of the largest size's."""
    placement: SearchPlacement = SearchPlacement()
    """First points of sizes that have no grid."""
