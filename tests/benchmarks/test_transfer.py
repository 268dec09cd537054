"""The benchmark of continued runs: its stacked trainer, what it trains next, and its judgements on a synthetic world."""

import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.transfer import costs, design, reading, texts, training  # noqa: E402
from benchmarks.transfer.design import Checkpoint, Part, Results, Size, missing  # noqa: E402
from benchmarks.transfer.figure import draw  # noqa: E402
from benchmarks.transfer.grids import Grid, Place, has_optimum, optimum, standard_errors  # noqa: E402
from benchmarks.transfer.stack import Shape, Stack, initial  # noqa: E402
from benchmarks.transfer.training import Stopped, Study, read_results, write_results  # noqa: E402
from isoloss_contract.records import EvaluationConfig, OptimizerConfig, PointConfig  # noqa: E402
from isoloss_trainer.learner import Learner  # noqa: E402
from isoloss_trainer.model import build_network, count_parameters  # noqa: E402
from isoloss_trainer.world import World  # noqa: E402
from tests.support.pages import CHECKOUT  # noqa: E402

TINY = Shape(width=32, layers=2, heads=2, vocabulary=64, length=16)
SIZE = Size("tiny", Shape(16, 1, 2, 32, 16), Grid((-8, -6), (1, 3)), Place(-7, 2), 256)
PAST = Checkpoint("far", 5)


def bowl(rate: float, batch: float, grid: Grid, lowest: float = 3.0) -> Mapping[Place, float]:
    """Losses on a grid around an optimum, with the ridge of small batches."""
    found = {}
    for place in grid.places():
        x, y = np.log(place.rate / rate), np.log(place.batch / batch)
        found[place] = lowest + 0.03 * x**2 + 0.02 * y**2 - 0.02 * x * y
    return found


def point(
    rate: float, batch: int, precision: Literal["bf16", "float32"] = "float32"
) -> PointConfig:
    return PointConfig(
        data_digest="0" * 64,
        mixture={"any": 1.0},
        model=TINY.model,
        optimizer=OptimizerConfig(beta2=0.95, weight_decay=0.1, warmup_tokens=2048),
        learning_rate=rate,
        batch_size=batch,
        sequence_length=TINY.length,
        seed=0,
        evaluation=EvaluationConfig(),
        precision=precision,
    )


# ---------------------------------------------------------------------------------- the stacked trainer


def test_a_stack_agrees_with_the_trainer_over_200_steps() -> None:
    points = [point(1e-3, 4), point(3e-3, 4), point(3e-3, 8)]
    # Zipf's law, so that there is something to learn.
    drawn = np.random.default_rng(0).zipf(1.5, size=(1600, TINY.length + 1)) % TINY.vocabulary
    data = torch.from_numpy(drawn)
    stack = Stack(TINY, points, initial(TINY), "cpu")
    assert stack.at_once(10**9) == 4
    learners = [Learner(build_network(TINY.model, seed=0), point, World()) for point in points]
    inputs, targets = data[:64, :-1], data[:64, 1:]
    compared = 0
    for start in range(0, 1600, 4):
        stack.learn(data[start : start + 4])
        for run, (at, learner) in enumerate(zip(points, learners, strict=True)):
            end = start + 4
            if end % at.batch_size or end > 200 * at.batch_size:
                continue
            learner.step(data[end - at.batch_size : end], end * TINY.length)
            if end < 200 * at.batch_size:
                continue
            raw, averaged = (stack.evaluate(data[:64], 16, averaged=a)[run] for a in (False, True))
            assert raw == pytest.approx(learner.token_losses(inputs, targets).mean(), abs=1e-4)
            with learner.averaged():
                found = learner.token_losses(inputs, targets).mean()
            assert averaged == pytest.approx(found, abs=1e-4)
            assert found < np.log(TINY.vocabulary) - 0.5
            compared += 1
    assert compared == len(points)


def test_batch_sizes_that_do_not_divide_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="divide"):
        Stack(TINY, [point(3e-3, 4), point(3e-3, 6)], initial(TINY), "cpu")


def test_a_run_that_goes_on_elsewhere_changes_nothing_where_it_came_from() -> None:
    """As the run whose rate decays, while the one that it is from goes on."""
    data = torch.from_numpy(np.random.default_rng(0).zipf(1.5, size=(8, 17)) % TINY.vocabulary)
    stack, other = (Stack(TINY, [point(3e-3, 4)], initial(TINY), "cpu") for _ in range(2))
    stack.learn(data[:4])
    before = io.BytesIO()
    torch.save(stack.state(0), before)
    other.restore(0, stack.state(0))
    other.learn(data[4:])
    after = io.BytesIO()
    torch.save(stack.state(0), after)
    assert after.getvalue() == before.getvalue()


def test_bfloat16_learns_as_float32_does() -> None:
    data = torch.from_numpy(np.random.default_rng(0).zipf(1.5, size=(400, 17)) % TINY.vocabulary)
    found = []
    for precision in ("float32", "bf16"):
        stack = Stack(TINY, [point(3e-3, 4, precision)], initial(TINY), "cpu")
        for start in range(0, 400, 4):
            stack.learn(data[start : start + 4])
        found.append(stack.evaluate(data[:64], 16, averaged=True).item())
    assert found[1] == pytest.approx(found[0], abs=0.01)
    assert found[1] != found[0]


def test_parameters_are_counted_as_the_trainer_counts_them() -> None:
    for size in (SIZE, design.LINK):
        counts = count_parameters(build_network(size.shape.model, seed=0))
        assert size.shape.params == counts.body_active + counts.head
    sizes = {name: size.shape.params / 1e6 for name, size in design.SIZES.items()}
    assert sizes == pytest.approx(
        {"half": 0.083, "link": 0.27, "1M": 1, "3M": 3, "10M": 10, "30M": 30}, rel=0.05
    )


# ------------------------------------------------------------------------------------------- the study


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Size:
    """A study of one size whose grids do not grow."""
    parts = (Part(None, 1), Part(PAST, 1), Part(Checkpoint("far", 5, "decayed"), 1), Part(PAST, 2))
    size = Size("tiny", SIZE.shape, Grid((-8, -7), (1, 2)), Place(-7, 2), 256, parts)
    monkeypatch.setattr(design, "SIZES", {"tiny": size})
    monkeypatch.setattr(design, "has_optimum", lambda _: True)
    return size


def study(folder: Path, stop: Callable[[], bool]) -> Study:
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    tokens = {n: random.zipf(1.5, 3000).astype(np.uint16) % 32 for n in texts.DOMAINS}
    texts.write(texts.path(folder, 32), tokens)
    return Study(folder, "cpu", stop, lambda _: None)


def test_a_study_that_is_stopped_ends_with_the_same_losses(tmp_path: Path, tiny: Size) -> None:
    study(tmp_path / "at once", lambda: False).train(["tiny"])
    checks = iter(range(1, 10**6))
    pieces = 0
    while True:
        pieces += 1
        try:
            study(tmp_path / "pieces", lambda: next(checks) % 97 == 0).train(["tiny"])
            break
        except Stopped:
            continue
    assert pieces > 4
    whole, resumed = (tmp_path / name / "results.jsonl" for name in ("at once", "pieces"))
    assert resumed.read_bytes() == whole.read_bytes()
    results = read_results([whole])
    assert {origin: len(runs) for (_, origin), runs in results.items()} == {
        "scratch": 4,
        "far-5": 4,
        "far-5-decayed": 4,
    }
    ends = [max(run) for run in results["tiny", "far-5"].values()]
    assert ends == [tiny.tokens(2)] * 4
    starts = {o: {run[0] for run in results["tiny", o].values()} for o in ("scratch", "far-5")}
    # Before any step all runs of a grid are one model, and a checkpoint knows more than none.
    assert max(starts["far-5"]) < min(starts["scratch"])
    assert len(starts["far-5"]) == len(starts["scratch"]) == 1
    assert not list((tmp_path / "pieces" / "states").iterdir())
    assert next(missing(results, "cpu", ["tiny"]), None) is None


def test_a_study_that_is_killed_while_it_saves_ends_with_the_same_losses(
    tmp_path: Path, tiny: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of two runs of four are there already."""
    study(tmp_path / "at once", lambda: False).train(["tiny"])
    save, left = training._save, iter(range(2))

    def killed(path: Path, content: object) -> None:
        next(left)
        save(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_save", killed)
        with pytest.raises(StopIteration):
            study(tmp_path / "killed", lambda: False).train(["tiny"])
    study(tmp_path / "killed", lambda: False).train(["tiny"])
    whole, resumed = (tmp_path / name / "results.jsonl" for name in ("at once", "killed"))
    assert resumed.read_bytes() == whole.read_bytes()


def test_what_travels_is_enough_to_go_on(tmp_path: Path) -> None:
    runs = {Place(-8, 2): {0: 3.5, 64: float("nan")}}
    write_results(tmp_path / "results.jsonl", {("tiny", "scratch"): runs})
    found = read_results([tmp_path / "results.jsonl"])
    assert list(found) == [("tiny", "scratch")]
    assert design.reached(found["tiny", "scratch"], Place(-8, 2)) == 64
    assert np.isnan(found["tiny", "scratch"][Place(-8, 2)][64])


def test_a_grid_grows_where_the_best_run_lies_on_its_edge() -> None:
    part = Part(None, 1)
    end = SIZE.tokens(1)

    def results(grid: Grid) -> Results:
        losses = bowl(2.0**-5.4, 5.0, grid)
        return {("tiny", "scratch"): {p: {SIZE.tokens(0.5): v, end: v} for p, v in losses.items()}}

    assert design.grid_of(SIZE, part, {}) == SIZE.grid
    grown = Grid((-8, -5), (1, 3))
    assert design.grid_of(SIZE, part, results(SIZE.grid)) == grown
    assert design.grid_of(SIZE, part, results(grown)) == grown


def test_the_cost_table_counts_what_is_left() -> None:
    lines = list(costs.cost_table({}, "cpu", 5e10, ["link"]))
    link = design.LINK
    cells = [[cell.strip() for cell in line.split("|")] for line in lines[4:]]
    assert cells[0][2:5] == ["scratch", f"{link.tokens(1):,}", "0 of 12"]
    assert cells[0][5] == f"{12 * link.tokens(1) / 1e6:.1f}M"
    # The second pays for the checkpoint, the third goes on with the first.
    assert cells[1][5] == f"{(12 * link.tokens(1) + link.tokens(5)) / 1e6:.1f}M"
    assert cells[2][5] == f"{12 * (link.tokens(2) - link.tokens(1)) / 1e6:.1f}M"


def test_every_epoch_reads_every_window_once() -> None:
    tokens = np.arange(33, dtype=np.uint16)
    sequences = texts.Sequences(tokens, 4, seed=0)
    first = sequences.read(0, 8)
    assert sorted(first[:, 0]) == list(range(0, 32, 4))
    assert np.array_equal(first[:, 1:], first[:, :-1] + 1)
    assert np.array_equal(texts.Sequences(tokens, 4, seed=0).read(6, 4), sequences.read(6, 4))


def test_the_text_is_made_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MEGABYTES", {300: 1})
    with tarfile.open(tmp_path / "linux.tar.xz", "w:xz") as tar:
        for number in range(300):
            for name in (f"net/{number}.c", f"Documentation/{number}.rst", f"arch/{number}.c"):
                content = f"{name} static int number_{number};\n".encode()
                member = tarfile.TarInfo(f"linux-source-6.1/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    with pytest.raises(FileNotFoundError, match=r"texts\.py"):
        texts.read(tmp_path, 300)
    texts.make(tmp_path / "linux.tar.xz", tmp_path)
    found = texts.read(tmp_path, 300)
    documents = {name: int(np.sum(tokens == 0)) for name, tokens in found.items()}
    assert documents[texts.FAR] == 300
    assert documents[texts.NEAR] + documents[texts.TARGET] + documents[texts.HELD_OUT] == 300
    assert min(documents.values()) > 0


# ------------------------------------------------------------------------------------------ judgements


def test_the_measured_optimum_is_the_synthetic_one_and_its_regret_the_synthetic_loss() -> None:
    losses = bowl(3e-3, 5.0, Grid((-10, -6), (1, 4)))
    found = optimum(losses)
    assert has_optimum(losses)
    assert np.exp(found.vertex) == pytest.approx([3e-3, 5.0], rel=1e-6)
    assert found.regret(6e-3, 5.0) == pytest.approx(0.03 * np.log(2) ** 2)
    assert standard_errors(losses) == pytest.approx([0.0, 0.0], abs=1e-6)


def world(
    wish: Callable[[float], float],
    ratios: Sequence[float] = design.CHECKED[:5],
    origin: str = "near-5",
) -> Results:
    """A world of size `link` in which continued runs want `wish(s)` times the learning rate of runs from scratch, and
    (2 - s) times the batch size. The checkpoint is worth 1.06 million tokens."""
    grid, link = Grid((-11, -6), (1, 6)), design.LINK
    past = link.tokens(4)
    readings = [t for ratio in (0.25, *ratios) for t in [link.tokens(ratio)]]

    def law(tokens: float) -> tuple[float, float, float]:
        return (
            2e-3 * (tokens / past) ** 0.1,
            8.0 * (tokens / past) ** 0.3,
            8.0 - 0.35 * np.log(tokens),
        )

    scratch: dict[Place, dict[int, float]] = {p: {} for p in grid.places()}
    continued: dict[Place, dict[int, float]] = {p: {0: law(past)[2]} for p in grid.places()}
    for tokens in readings:
        share = tokens / (past + tokens)
        rate, batch, lowest = law(tokens)
        for place, loss in bowl(rate, batch, grid, lowest).items():
            scratch[place][tokens] = loss
        rate, batch, lowest = law(past + tokens)
        for place, loss in bowl(rate * wish(share), batch * (2 - share), grid, lowest).items():
            continued[place][tokens] = loss
    return {("link", "scratch"): scratch, ("link", origin): continued}


def test_wishes_and_regrets_are_those_of_a_synthetic_world() -> None:
    found = reading.cases(world(np.sqrt))
    assert [case.per_param for case in found] == pytest.approx([4.5, 5, 6, 8, 12], rel=0.01)
    for case in found:
        assert case.past == pytest.approx(design.LINK.tokens(4), rel=0.05)
        assert case.wish == pytest.approx(np.sqrt(case.share), rel=0.05)
        assert case.holds() == (True, True)
        losses = {
            rule: case.found.regret(*np.exp(message))
            for rule in reading.RULES
            if (message := reading.answer(rule, case, found))
        }
        assert set(losses) == set(reading.RULES) - {"rated"}
        assert losses["Measured"] == pytest.approx(0.0, abs=1e-3)
        assert losses["Measured"] == min(losses.values())
    text = "\n".join(reading.tables(world(np.sqrt)))
    # Every grid, and every case.
    assert text.count("|link|near-5|") == 5 + 5


def test_continued_runs_are_judged_at_the_registered_budgets() -> None:
    results = world(np.sqrt, design.CHECKED)
    found = [case.tokens / design.LINK.tokens(1) for case in reading.cases(results)]
    assert found == pytest.approx([0.5, 1, 2, 4, 8, 32], rel=0.02)


def test_an_interval_does_not_hold_what_is_far_from_the_rule() -> None:
    assert not any(case.holds()[0] for case in reading.cases(world(lambda s: 5.0 * np.sqrt(s))))


def test_an_elasticity_is_that_of_a_synthetic_world_and_broken_rates_have_none() -> None:
    results: Results = {}
    for text in ("far", "near"):
        for slower, factor in ((0, 9.0), (1, 2.0**0.4), (2, 1.0), (3, 2.0**-0.4)):
            name = Checkpoint(text, 5, "decayed", slower).name
            # The two texts differ, which is no error of a.
            of_text = 0.8 if text == "far" else 1.0
            wish = partial(lambda s, by: np.sqrt(s) * by, by=factor * of_text)
            results |= world(wish, (2.0, 4.0), name)
    scratch = results["link", "scratch"]
    # 2^-11 loses as much as 2^-7 does, and is not too high.
    assert [reading.breaks(design.LINK, scratch, i) for i in (-12, -11, -8, -6)] == [
        *(False, False, False),
        True,
    ]
    found = [case for case in reading.cases(results) if case.elastic]
    assert {case.checkpoint.slower for case in found} == {0, 1, 2, 3}
    unbroken = [case for case in found if case.checkpoint.slower]
    of = reading.elasticity(unbroken)
    assert of is not None
    assert (of.raw, of.value, of.checkpoints) == (pytest.approx(0.4, abs=0.01),) * 2 + (6,)
    assert max(of.errors) < 0.01
    with_jump = reading.elasticity(found)
    assert with_jump is not None
    assert with_jump.value > 0.6
    assert with_jump.errors[1] > 0.1
    assert reading.elasticity(unbroken[:2]) is None
    assert reading.elasticity([]) is None
    assert "|link|decayed|1.11 ± 0.33|" in "\n".join(reading.tables(results))


# ------------------------------------------------------------------------------- what the page says of it


def test_the_page_has_the_cases_of_the_losses_in_the_repository(tmp_path: Path) -> None:
    evidence = CHECKOUT / "docs" / "evidence"
    page = (evidence / "transfer.md").read_text()
    found = reading.cases(read_results([evidence / "transfer_stacked.jsonl"]))
    rows = [*reading._summary_rows(found), *reading._elasticity_rows(found)]
    assert len(rows) == 20
    assert [row for row in rows if row not in page] == []
    half, link = (
        [c for c in found if c.size == size and not c.broken and c.ratio > reading.LOWEST_RATIO]
        for size in ("half", "link")
    )
    for some in (half, link):
        rated, measured = (reading._regret(rule, some, found) for rule in ("rated", "Measured"))
        assert f"{rated} nats for Measured's {measured}" in page
        assert float(measured) - float(rated) > 0.002
    draw(found, tmp_path / "transfer.png")
    assert (tmp_path / "transfer.png").stat().st_size > 10_000


def test_a_checkpoint_at_a_lower_rate_is_of_a_run_of_its_own() -> None:
    usual, slower = Checkpoint("far", 5), Checkpoint("far", 5, slower=2)
    assert (usual.name, usual.run) == ("far-5", "far")
    assert (slower.name, slower.run) == ("far-5-slower-2", "far-slower-2")
    assert design.LINK.checkpoints(slower) == [slower, Checkpoint("far", 5, "decayed", 2)]
    assert slower not in design.LINK.checkpoints(usual)
