"""The library's surface: the names that isoloss exports, what importing costs, and the guide, run block by block."""

import contextlib
import doctest
import io
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isoloss
from isoloss import datasets
from tests.support.printed_numbers import NUMBER, TOLERANCE, numbers

README = Path(__file__).parents[2] / "README.md"
GUIDE = README.parent / "docs" / "guides" / "library.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_exported_name_is_there() -> None:
    assert len(isoloss.__all__) == 20
    for name in isoloss.__all__:
        assert getattr(isoloss, name) is not None
    assert sorted(dir(isoloss)) == sorted(isoloss.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fitlaws'"):
        operator.attrgetter("fitlaws")(isoloss)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import isoloss", {"numpy", "scipy", "matplotlib", "pyarrow", "pydantic", "typer"}),
        ("from isoloss import fit_laws, predict", {"matplotlib", "pyarrow", "fsspec", "typer"}),
        ("from isoloss import read_runs", {"matplotlib", "pyarrow", "fsspec", "typer"}),
    ],
)
def test_what_is_not_used_is_not_imported(code: str, absent: set[str]) -> None:
    reported = f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"
    process = subprocess.run([sys.executable, "-c", reported], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert not absent & set(process.stderr.split())


def run_blocks(page: Path) -> None:
    """Word for word, and number for number but for the last digits, which differ between machines."""
    names: dict[str, object] = {}
    printed = ""
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "text":
            assert NUMBER.sub("#", printed) == NUMBER.sub("#", text)
            assert numbers(printed) == pytest.approx(numbers(text), rel=TOLERANCE), printed
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(text, str(page), "exec"), names)
        printed = output.getvalue()
        print(text, printed, sep="\n")


def test_the_guide_runs_from_top_to_bottom_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(GUIDE)
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()


def test_the_readmes_example_prints_what_it_says() -> None:
    run_blocks(README)


@pytest.mark.parametrize("name", isoloss.__all__)
def test_each_name_has_an_example_that_runs(
    name: str, desk: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With runs, laws, a query and its answer at hand, as in a notebook."""
    monkeypatch.chdir(str(desk["folder"]))
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    (found,) = finder.find(getattr(isoloss, name), name, globs={"isoloss": isoloss, **desk})
    assert found.examples
    output = io.StringIO()
    assert runner.run(found, out=output.write).failed == 0, output.getvalue()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "runs.csv").write_text(datasets.sample_text(datasets.RUNS))
    (folder / "probes.csv").write_text(datasets.sample_text(datasets.PROBES))
    header, first, *_ = datasets.sample_text(datasets.RUNS).splitlines()
    (folder / "history.csv").write_text(f"{header.replace('loss', 'eval/loss')}\n{first}\n")
    (folder / "settings.csv").write_text(f"run,optimizer\n{first.partition(',')[0]},AdamW\n")
    runs = isoloss.read_runs(str(folder / "runs.csv"))
    laws = isoloss.fit_laws(runs)
    isoloss.write_laws(laws, folder / "laws.json")
    query = isoloss.PredictionQuery(initial_loss=2.75, params=1e9, cpt_tokens=5e9)
    answer = isoloss.predict(laws, query)
    return {"folder": folder, "runs": runs, "laws": laws, "query": query, "answer": answer}
