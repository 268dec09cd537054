"""Numbers and pictures of the pages that no walk types: each is compared with where it is from."""

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import isoloss
from isoloss import datasets, formatting
from isoloss_operator.planning.flops import (
    DENSE_UTILISATION,
    MIXTURE_UTILISATION,
    SMALL_UTILISATION,
)
from tests.support.pages import CHECKOUT
from tests.support.synthetic_runs import answered, synthetic_optimum

DOCS = CHECKOUT / "docs"
README = (CHECKOUT / "README.md").read_text()
EVIDENCE = (DOCS / "evidence" / "README.md").read_text()
ROWS = {
    "dense models, one size left out": "dense leave one size out",
    "dense models, larger sizes": "dense smallest to larger",
    "dense models, 3 x 3 grids": "dense 3 x 3 windows",
    "mixtures of experts, one size left out": "mixtures leave one size out",
    "mixtures of experts, larger sizes": "mixtures smallest to larger",
}


def rows(page: str) -> dict[str, list[str]]:
    """The cells of every table row by the first one; of equal names the first row."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        if line.startswith("|"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name.strip("*"), cells)
    return found


@pytest.fixture(scope="module")
def laws() -> isoloss.Laws:
    return isoloss.fit_laws(datasets.load_sample_runs())


@pytest.fixture(scope="module")
def answer(laws: isoloss.Laws) -> isoloss.Prediction:
    return answered(laws, datasets.QUESTION)


@pytest.mark.parametrize("name", ROWS)
def test_the_readmes_evidence_is_that_of_the_evidence_page(name: str) -> None:
    assert rows(README)[name] == rows(EVIDENCE)[ROWS[name]][:4]


def test_the_readmes_last_row_is_all_questions_and_counts_them() -> None:
    with (DOCS / "evidence" / "questions.csv").open() as file:
        (_, *asked) = ((name, cells) for name, *cells in csv.reader(file))
    shown = rows(EVIDENCE.partition("Two more rivals")[0])
    kept = {name: cells for name, cells in asked if name in shown}
    assert kept == {name: shown[name] for name in kept}
    assert {"all", "dense 3 x 3 windows", "mixtures smallest to larger"} < set(kept)
    assert not [name for name in shown if name.startswith("synthetic") and name not in kept]
    reported = rows(README)[f"all {len(asked) - 1} rows, synthetic sweeps included"]
    assert reported == dict(asked)["all"][:4]


def test_what_a_search_saves_is_that_of_its_measurements() -> None:
    """Both columns: what was asked for, and what the replay trained."""
    found = rows((DOCS / "evidence" / "search.md").read_text())
    spans = {
        size: (cells[0].partition(" ")[0], cells[1])
        for name, cells in found.items()
        if (size := name.partition(" grids")[0].partition(" (")[0]) in ("3 x 3", "4 x 4", "5 x 5")
        and len(cells) == 2
    }
    sentence = " ".join(README.split())
    for size, (asked, trained) in spans.items():
        low, high = (round(100 * float(share)) for share in (asked, trained))
        assert re.search(rf"{low} to {high}% of (the compute of a )?{size}", sentence), size
    concept = (DOCS / "concepts" / "search.md").read_text()
    assert all(f"{float(asked):.0%}" in concept for asked, _ in spans.values())


def test_the_guide_to_a_fit_shows_the_answer_of_the_sample_runs(
    answer: isoloss.Prediction,
) -> None:
    page = (DOCS / "guides" / "reading-a-fit.md").read_text()
    for name, found in (
        ("Learning Rate", answer.learning_rate),
        ("Batch Size", answer.batch_size),
    ):
        line = next(each for each in page.splitlines() if each.startswith(f"{name}:"))
        numbers = [float(text) for text in re.findall(r"[\d.]+(?:e-?\d+)?", line)]
        assert numbers == pytest.approx([found.value, found.low, found.high], rel=0.02), name
    factor = float(page.partition("Compute Factor ")[2].split()[0])
    assert factor == pytest.approx(answer.extrapolation.compute_factor, rel=0.02)


def test_every_page_with_the_answer_of_the_sample_runs_has_the_digits_that_are_printed(
    answer: isoloss.Prediction,
) -> None:
    """Walks compare what is printed with a tolerance; readers compare digits."""
    rate = formatting.interval(answer.learning_rate, formatting.learning_rate)
    batches = formatting.interval(answer.batch_size, formatting.batch_size).partition(" ")[2]
    guides = (DOCS / "guides" / name for name in ("library.md", "quickstart.md"))
    for page in (CHECKOUT / "README.md", *guides):
        shown = re.findall(r"^ *learning rate +(\S+ \[.+\])$", page.read_text(), re.MULTILINE)
        assert rate in shown, page
        # One of them asks for a multiple of 8: its interval is the same.
        shown = re.findall(r"^ *batch size.* (\[.+\])$", page.read_text(), re.MULTILINE)
        assert batches in shown, page
    bounds = (answer.learning_rate.value, answer.learning_rate.low, answer.learning_rate.high)
    value, low, high = map(formatting.learning_rate, bounds)
    guide = (DOCS / "guides" / "reading-a-fit.md").read_text()
    assert f"value {value}, low {low}, high {high}" in guide


def test_the_page_on_metrics_names_the_labels_of_whatever_is_of_one_resource() -> None:
    found = {
        name: labels
        for name, (_, labels, _) in rows((DOCS / "reference" / "metrics.md").read_text()).items()
        if re.match(r"`isoloss_(scalingsweep|hyperparamprediction)_", name)
    }
    assert len(found) > 10
    for name, labels in found.items():
        assert labels.startswith("`namespace`, `name`"), name
    assert found["`isoloss_scalingsweep_lowest_loss`"] == "`namespace`, `name`, `size`"
    for quantity in ("learning_rate", "batch_size", "initial_loss", "target_loss"):
        bounds = found[f"`isoloss_hyperparamprediction_{quantity}`"]
        assert bounds == "`namespace`, `name`, `bound`"


def test_the_page_of_supported_versions_names_what_the_controllers_tests_run() -> None:
    tested = rows((DOCS / "reference" / "support.md").read_text())
    for tool, name in (
        ("argo-cd", "Argo CD, Flux"),
        ("kustomize-controller", "Argo CD, Flux"),
        ("kueue", "Kueue"),
    ):
        module = f"devcluster/tools/{tool}/go.mod"
        assert f"`{module}`" in tested[name][1]
        assert (CHECKOUT / module).exists()
        assert "make test-controllers" in tested[name][1]
    driver = tested["NVIDIA driver"][1].partition(",")[0]
    assert f"driver {driver}" in (DOCS / "evidence" / "gpu.md").read_text()


def test_the_picture_of_the_laws_is_what_is_drawn_today(
    laws: isoloss.Laws, answer: isoloss.Prediction
) -> None:
    """python -m tests.docs.pictures draws it again; other fonts and libraries move single pixels."""
    figure = isoloss.plot_laws(
        laws,
        answer,
        initial_loss=datasets.QUESTION.initial_loss,
        known_optimum=datasets.OPTIMUM,
    )
    drawn, kept = (
        np.asarray(imread(source))[..., :3]
        for source in (io.BytesIO(figure._repr_png_()), DOCS / "concepts" / "laws.png")
    )
    assert drawn.shape == kept.shape
    assert float(np.abs(drawn - kept).mean()) < 0.01


def test_the_optimum_of_the_sample_is_that_of_its_surface_at_the_answers_compute(
    answer: isoloss.Prediction,
) -> None:
    params = datasets.QUESTION.params
    assert params is not None
    found = synthetic_optimum(params, answer.total_flops.value / (6 * params))
    assert found == pytest.approx(datasets.OPTIMUM, rel=2e-3)
    estimate = answer.variants["paper"]
    off = estimate.learning_rate.value / found[0] - 1, 1 - estimate.batch_size.value / found[1]
    message = [
        int(share) for share in re.findall(r"is (\d+)% above it .* (\d+)% below", README)[0]
    ]
    assert [round(100 * each) for each in off] == message


def test_the_demos_answer_is_the_same_on_every_page() -> None:
    shown = re.compile(
        r"    learning rate +\S+ +\[.*\]\n    batch size .*\n(?:    .*\n)+?(?=\n|```|    Report)"
    )
    pages: list[str] = []
    for page in (CHECKOUT / "README.md", DOCS / "guides" / "demo.md"):
        match = shown.search(page.read_text())
        assert match, page
        pages.append(match[0])
    assert pages[0] == pages[1]


def test_the_demo_needs_as_much_disk_as_it_says() -> None:
    asked = re.findall(r"ISOLOSS_NEEDED_GB := (\d+)", (CHECKOUT / "Makefile").read_text())
    intro = (CHECKOUT / "scripts" / "demo-intro.sh").read_text()
    assert re.findall(r"- (\d+) GB of disk", README) == asked
    assert re.findall(r"in (\d+) GB of disk", intro) == asked


def test_no_page_tells_to_install_from_an_index_before_there_is_a_release() -> None:
    pages = [
        *CHECKOUT.glob("*.md"),
        *DOCS.glob("**/*.md"),
        *CHECKOUT.glob("operator/isoloss/**/*.py"),
    ]
    reported = [
        str(page) for page in pages if re.search(r"pip install '?isoloss", Path(page).read_text())
    ]
    assert reported == []


def test_the_speeds_of_the_sizing_page_are_those_that_plans_assume_and_the_gpu_was_measured_at() -> (
    None
):
    page = (DOCS / "guides" / "sizing.md").read_text()
    assumed = re.search(r"reaches (\d+)% of .* peak, (\d+)% with .* and (\d+)% with", page)
    assert assumed is not None
    assert [int(share) / 100 for share in assumed.groups()] == [
        *(DENSE_UTILISATION, SMALL_UTILISATION, MIXTURE_UTILISATION)
    ]
    measured = rows((DOCS / "evidence" / "gpu.md").read_text())
    named = re.findall(r"(\d+)%? \(`((?:dense|moe)-\d+m)`\)", page)
    assert len(named) == 4
    for share, preset in named:
        assert measured[f"`{preset}`"][3] == f"{share}%", preset
