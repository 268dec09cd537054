"""Two rivals that fit all losses at once: twelve lines of least squares each, without intervals and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

WINDOW = 0.03
"""Nats above a cell's best within which losses count most."""

Cells = Mapping[tuple[float, float], np.ndarray]
"""Points (ln LR, ln B, loss) by size and tokens."""
Vertex = Callable[[float, float], np.ndarray | None]
"""(N, D) to (ln LR, ln B); None where the fit has no minimum."""


Levels = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(points, terms) of the loss at the optimum, from ln N, ln D and the cell's index."""


def joint_least_squares(cells: Cells) -> Vertex:
    """A level per cell and one curvature over (ln LR, ln B), the linear terms linear in ln N and ln D."""
    return _least_squares(cells, lambda _n, _d, cell: np.eye(cell.max() + 1)[cell])


def quadratic_surface(cells: Cells) -> Vertex:
    """All terms up to the second degree in ln LR, ln B, ln N and ln D."""
    return _least_squares(
        cells, lambda n, d, _: np.stack([np.ones_like(n), n, d, n * n, n * d, d * d], axis=1)
    )


def _least_squares(cells: Cells, levels: Levels) -> Vertex:
    x, y, n, d, loss, cell, weights = _stack(cells)
    centre = [float(np.average(v, weights=weights)) for v in (x, y, n, d)]
    x, y, n, d = (v - c for v, c in zip((x, y, n, d), centre, strict=True))
    slopes = [v * w for v in (x, y) for w in (np.ones_like(x), n, d)]
    shape = np.stack([0.5 * x * x, x * y, 0.5 * y * y, *slopes], axis=1)
    design = np.concatenate([shape, levels(n, d, cell)], axis=1) * weights[:, None]
    c = np.linalg.lstsq(design, loss * weights, rcond=None)[0]

    def vertex(size: float, tokens: float) -> np.ndarray | None:
        where = np.array([1.0, np.log(size) - centre[2], np.log(tokens) - centre[3]])
        return _minimum(c[:3], np.array([c[3:6] @ where, c[6:9] @ where]), centre)

    return vertex


def _stack(cells: Cells) -> tuple[np.ndarray, ...]:
    """ln LR, ln B, ln N, ln D, loss, the cell's index and the root of the weight, of every point."""
    rows = []
    for index, ((size, tokens), points) in enumerate(sorted(cells.items())):
        excess = points[:, 2] - points[:, 2].min()
        root = (1.0 + (excess / WINDOW) ** 2) ** -0.25
        same = np.ones(len(points))
        rows.append(
            np.column_stack(
                [
                    points[:, :2],
                    np.log(size) * same,
                    np.log(tokens) * same,
                    points[:, 2],
                    index * same,
                    root,
                ]
            )
        )
    x, y, n, d, loss, cell, weights = np.concatenate(rows).T
    return x, y, n, d, loss, cell.astype(int), weights


def _minimum(curvature: np.ndarray, slope: np.ndarray, centre: list[float]) -> np.ndarray | None:
    hessian = np.array([[curvature[0], curvature[1]], [curvature[1], curvature[2]]])
    if np.linalg.eigvalsh(hessian)[0] <= 0.0:
        return None
    return np.asarray(centre[:2] - np.linalg.solve(hessian, slope))
