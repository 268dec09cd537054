"""The ways to a learning rate and a batch size that are compared."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.science.judging import WIDE, near_best, quadratic, terms
from benchmarks.science.tables import SEQUENCE
from isoloss import laws as engine

ENGINE, PLAIN, PUBLISHED, ARGMIN = "isoloss", "plain", "published", "argmin"
JOINT, SURFACE = "joint", "quadratic"
NEAR = np.log(1.01)
LATE = 0.25
"""Share of a size's tokens from which the plain regression reads trajectories."""
PLAIN_CUTS = 4
FEWEST_POINTS = 6
WINDOW = 0.03
"""Nats above a cell's best within which losses count most in least squares through all."""


@dataclass(frozen=True)
class Answer:
    """ln LR and ln B with an 80% interval of each (low, high), where the contender has one."""

    log_rate: float
    log_batch: float
    rate_interval: tuple[float, float] | None = None
    batch_interval: tuple[float, float] | None = None
    expected_regret: float = 0.0
    """Nats that it says it is expected to lose."""


Contender = Callable[[float, float], Answer | None]
"""(N, D) to an answer or a refusal."""


def law_engine(runs: Sequence[engine.Run], options: engine.FitOptions) -> Contender:
    """The law engine through its public interface."""
    return answering(engine.fit_laws(runs, options))


def answering(laws: engine.Laws) -> Contender:
    """What these laws answer where a compute is given."""

    def answer(n: float, d: float) -> Answer | None:
        found = engine.predict(laws, engine.PredictionQuery(total_flops=6.0 * n * d, params=n))
        if isinstance(found, engine.Refused):
            return None
        rate, batch = found.learning_rate, found.batch_size
        return Answer(
            float(np.log(rate.value)),
            float(np.log(found.batch_size_raw)),
            (float(np.log(rate.low)), float(np.log(rate.high))),
            (float(np.log(max(batch.low, 1e-9))), float(np.log(batch.high))),
            found.expected_regret,
        )

    return answer


def plain_regression(runs: Sequence[engine.Run]) -> Contender:
    """A quadratic per cell (size and token count), then least squares of the vertices on ln N and ln D.

    Cells without a minimum, or with fewer runs than a quadratic needs, are left out.
    """
    keys, vertices = [], []
    for key, points in _cells(runs).items():
        near = near_best(points, WIDE)
        design = terms(near[:, :2] - near[:, :2].mean(axis=0))
        if len(near) < FEWEST_POINTS or np.linalg.matrix_rank(design, tol=1e-6) < design.shape[1]:
            continue
        found = quadratic(points)
        if found.convex:
            keys.append([1.0, np.log(key[0]), np.log(key[1])])
            vertices.append(found.vertex)
    design = np.array(keys).reshape(-1, 3)
    if np.linalg.matrix_rank(design - [0.0, 20.0, 24.0], tol=1e-3) < design.shape[1]:
        return lambda _n, _d: None
    c = np.linalg.lstsq(design, np.array(vertices), rcond=None)[0]

    def answer(n: float, d: float) -> Answer:
        rate, batch = np.array([1.0, np.log(n), np.log(d)]) @ c
        return Answer(float(rate), float(batch))

    return answer


def _cells(runs: Sequence[engine.Run]) -> dict[tuple[float, float], np.ndarray]:
    """Points (ln LR, ln B, loss) by size and tokens; trajectories are cut at their last quarters."""
    longest = {
        n: max(r.tokens[-1] for r in runs if r.params == n) for n in {r.params for r in runs}
    }
    single = all(len(r.tokens) == 1 for r in runs)
    nominal = _nominal_counts(runs)
    found: dict[tuple[float, float], list[tuple[float, float, float]]] = defaultdict(list)
    for run in runs:
        if run.diverged:
            continue
        x, y = np.log(run.learning_rate), np.log(run.batch_size)
        if single:
            d = nominal[float(run.tokens[0])]
            found[run.params, d].append((x, y, float(run.losses[0])))
            continue
        for d in longest[run.params] * np.geomspace(LATE, 1.0, PLAIN_CUTS):
            if run.tokens[0] <= d <= run.tokens[-1] * 1.001:
                loss = float(np.interp(np.log(d), np.log(run.tokens), run.losses))
                found[run.params, float(d)].append((x, y, loss))
    return {key: np.array(rows) for key, rows in found.items()}


def _nominal_counts(runs: Sequence[engine.Run]) -> dict[float, float]:
    """Last token counts to the least of those near them: rounded to whole steps, they are one count."""
    nominal: dict[float, float] = {}
    previous = current = 1.0
    for tokens in sorted({float(run.tokens[-1]) for run in runs}):
        if np.log(tokens / previous) > NEAR:
            current = tokens
        nominal[tokens] = current
        previous = tokens
    return nominal


def published(n: float, d: float) -> Answer:
    """Step Law's own fit, converted from tokens to sequences."""
    rate, batch = 1.797 * n**-0.713 * d**0.307, 0.581 * d**0.571 / SEQUENCE
    return Answer(float(np.log(rate)), float(np.log(batch)))


def argmin(runs: Sequence[engine.Run]) -> Contender:
    """The best run of the nearest size: what people copy."""
    sizes = np.array(sorted({r.params for r in runs}))

    def answer(n: float, _d: float) -> Answer:
        size = sizes[np.argmin(np.abs(np.log(sizes / n)))]
        longest = max(r.tokens[-1] for r in runs if r.params == size)
        last = [r for r in runs if r.params == size and r.tokens[-1] > 0.99 * longest]
        best = min(last, key=lambda r: float(r.losses[-1]))
        return Answer(float(np.log(best.learning_rate)), float(np.log(best.batch_size)))

    return answer


# --------------------------------------------------------- least squares through all losses at once


Cells = Mapping[tuple[float, float], np.ndarray]
"""Points (ln LR, ln B, loss) by size and tokens."""
Vertex = Callable[[float, float], np.ndarray | None]
"""(N, D) to (ln LR, ln B); None where the fit has no minimum."""
Levels = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(points, terms) of the loss at the optimum, from ln N, ln D and the cell's index."""


def of_all_losses(fit: Callable[[Cells], Vertex], runs: Sequence[engine.Run]) -> Contender:
    """A rival that fits all cells at once."""
    vertex = fit(_cells(runs))

    def answer(n: float, d: float) -> Answer | None:
        found = vertex(n, d)
        return None if found is None else Answer(float(found[0]), float(found[1]))

    return answer


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


def contenders(runs: Sequence[engine.Run], options: engine.FitOptions) -> dict[str, Contender]:
    """All of them, fitted to these runs."""
    return {
        ENGINE: law_engine(runs, options),
        PLAIN: plain_regression(runs),
        JOINT: of_all_losses(joint_least_squares, runs),
        SURFACE: of_all_losses(quadratic_surface, runs),
        PUBLISHED: published,
        ARGMIN: argmin(runs),
    }
