"""Which points of a sweep are trained, and how far."""

from typing import Literal

from pydantic import Field

from isoloss_operator.api.fields import ApiType, Factor, PlacementFactor

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


class SearchPrecision(ApiType):
    """How narrow the 80% interval of the optimum at the largest size must be for the search to end."""

    learning_rate: Factor = "1.3"
    """Factor between the answer and either end of the interval of the learning rate."""
    batch_size: Factor = "1.5"
    """Factor between the answer and either end of the interval of the batch size."""


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
    """Exhaustive trains every point to its end. Sequential trains the smallest size first, stops points at 30% and
    60% of their tokens, prunes those that cannot end lowest, places larger sizes by the laws of the smaller, and ends
    once the optimum is known to `precision`. It may be changed at any time."""
    extend_grid: ExtendGrid = ExtendGrid()
    """Points that Sequential may add if an optimum is on the edge of a grid."""
    precision: SearchPrecision = SearchPrecision()
    """When Sequential ends before every point near the optima is trained."""
    replicates: int = Field(default=2, ge=0, le=8)
    """Number of times that Sequential repeats the best point of the cheapest size with other seeds, for 60% of its
    tokens, to measure the noise of losses."""
    placement: SearchPlacement = SearchPlacement()
    """First points of sizes that have no grid."""
