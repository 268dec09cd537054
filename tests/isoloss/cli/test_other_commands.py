"""`isoloss report` and `laws`, and what all commands have in common."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from isoloss import formatting
from isoloss.cli.inputs import count
from isoloss.cli.outcome import folded
from isoloss.cli.reporting import other_runs
from isoloss.errors import BadInput
from isoloss.laws import FitOptions, Interval, fit_laws
from isoloss.published import PUBLISHED
from tests.support.command_line import Isoloss
from tests.support.synthetic_runs import synthetic_runs, write_runs

EXAMPLE = Path(__file__).parents[3] / "crds" / "examples" / "dense-sweep.yaml"


@pytest.mark.usefixtures("without_figures")
def test_a_report_is_one_page_and_its_figures(
    isoloss: Isoloss, synthetic_laws: Path, synthetic_table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    ended = isoloss(
        *("report", synthetic_laws, "--out", out, "--runs", synthetic_table),
        *("--initial-loss", "2.75", "--cpt-flops", "3e19", "--params", "1e9"),
        *("--direct-grid-flops", "1e23", "--json"),
    )
    assert ended.code == 0
    assert ended.document["report"] == str(out)
    page = out.read_text()
    assert "C_pre" in page
    assert "% saved" in page
    names = [Path(figure).name for figure in ended.document["figures"]]
    assert names == ["answer.png", "laws.png", "iso-loss.png", "trajectories.png"]
    for figure in ended.document["figures"]:
        assert Path(figure).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("without_figures")
def test_a_report_tells_the_warnings_and_refusals_that_predict_tells(
    isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    for budget in ("3e19", "3e27"):
        asked = ("--initial-loss", "2.75", "--cpt-flops", budget, "--params", "1e9", "--json")
        predicted = isoloss("predict", synthetic_laws, *asked)
        reported = isoloss("report", synthetic_laws, "--out", out, *asked)
        assert reported.code == predicted.code
        assert reported.document["refused"] == predicted.document.get("refused", [])
        told = reported.document["warnings"]
        assert told == [w for w in predicted.document["warnings"] if w in told]
        assert told or predicted.code == 3


@pytest.mark.usefixtures("without_figures")
def test_a_report_without_an_answer_is_written_and_ends_with_code_3(
    isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    ended = isoloss("report", synthetic_laws, "--out", out, "--total-flops", "1e27", "--json")
    assert ended.code == 3
    assert ended.document["refused"][0]["reason"] == "ExtrapolationTooFar"
    assert "total compute" in ended.document["refused"][0]["message"]
    page = out.read_text()
    in_its_place = page[page.index("<h1>") : page.index('<h2 id="laws">')]
    assert "ExtrapolationTooFar" in in_its_place
    assert page.count("ExtrapolationTooFar") == 1


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--batch-size", "64"), "what this batch size costs"),
        (("--batch-size-tolerance", "0.01"), "batch sizes within 0.01 nats"),
        (("--sequence-length", "8192"), "sequences of 8192"),
    ],
)
def test_a_report_takes_the_options_of_a_prediction(
    isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    out = tmp_path / "report.html"
    question = ("--initial-loss", "2.75", "--cpt-flops", "3e19", "--params", "1e9", *options)
    assert isoloss("report", synthetic_laws, "--out", out, *question).code == 0
    page = html.unescape(out.read_text())
    assert says in page
    answer = isoloss("predict", synthetic_laws, *question, "--json").document
    rate = answer["learning_rate"]
    assert formatting.interval(Interval(**rate), formatting.learning_rate) in page
    asked = "--initial-loss 2.75 --cpt-flops 3e+19 --params 1000000000"
    assert f"<dt>asked</dt><dd>{asked}{''.join(f' {each}' for each in options)}</dd>" in page


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    "options",
    [("--params", "1e9"), ("--round-to", "64"), ("--composition", "Paper")],
    ids=lambda options: options[0],
)
def test_a_report_drops_no_option_of_a_question_that_lacks_its_budget(
    isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """For a page without an answer."""
    out = tmp_path / "report.html"
    ended = isoloss("report", synthetic_laws, "--out", out, *options, "--json")
    assert "exactly one of --cpt-flops" in ended.error
    assert not out.exists()


@pytest.mark.usefixtures("without_figures")
def test_a_report_of_runs_that_the_laws_are_not_from_says_so_on_its_page_and_in_the_terminal(
    isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    runs = synthetic_runs()
    smallest = min(run.params for run in runs)
    fewer = tuple(
        replace(run, sequence_length=1024, batch_size=2 * run.batch_size)
        for run in runs
        if run.params == smallest
    )
    table, out = write_runs(tmp_path / "fewer.csv", fewer), tmp_path / "report.html"
    asked = ("report", synthetic_laws, "--out", out, "--runs", table)
    (warning,) = isoloss(*asked, "--json").document["warnings"]
    for message in (
        f"{len(fewer)} runs in place of {len(runs)}",
        "sizes 30M in place of 30M, 100M, 300M",
        "sequences of 1024 tokens in place of 2048",
    ):
        assert message in warning
    assert f"warning: {warning}" in isoloss(*asked).err
    assert warning in html.unescape(out.read_text())


def test_runs_of_another_tokenizer_are_not_those_of_the_laws() -> None:
    runs = [replace(run, tokenizer="a") for run in synthetic_runs()]
    laws = fit_laws(runs, FitOptions(bootstrap_samples=20))
    assert other_runs(runs, laws) == ()
    (warning,) = other_runs([replace(run, tokenizer="b") for run in runs], laws)
    assert warning.endswith("another tokenizer")


@pytest.mark.parametrize("by", [-0.5, 0.5])
def test_runs_with_other_losses_are_not_those_of_the_laws(by: float) -> None:
    runs = synthetic_runs()
    laws = fit_laws(runs, FitOptions(bootstrap_samples=20))
    (warning,) = other_runs([replace(run, losses=run.losses + by) for run in runs], laws)
    assert re.search(r"losses of \d\.\d+ to \d\.\d+ in place of \d\.\d+ to", warning)


def test_the_runs_behind_laws_that_were_refused_as_a_mixture_are_theirs() -> None:
    runs = synthetic_runs()
    mixed = [replace(run, sequence_length=4096) if run.params > 2e8 else run for run in runs]
    laws = fit_laws(mixed, FitOptions(bootstrap_samples=20))
    assert laws.status == "refused"
    assert other_runs(mixed, laws) == ()
    assert "in place of" in other_runs(mixed[1:], laws)[0]


@pytest.mark.usefixtures("without_figures")
def test_a_report_with_an_answer_at_a_given_batch_size_is_not_headed_refused(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    table, laws, out = (tmp_path / name for name in ("one.csv", "laws.json", "report.html"))
    write_runs(table, [run for run in synthetic_runs() if run.batch_size == 128])
    assert isoloss("fit", table, "--bootstrap-samples", 20, "--out", laws).code == 3
    question = ("--initial-loss", "2.75", "--cpt-flops", "3e19", "--params", "1e9")
    assert isoloss("report", laws, "--out", out, *question, "--batch-size", "128").code == 0
    page = out.read_text()
    assert '<span class="status open">Not validated</span>' in page
    assert "What the data do not support" in page
    assert isoloss("report", laws, "--out", out, *question).code == 3


@pytest.mark.usefixtures("without_figures")
def test_a_report_of_the_runs_behind_its_laws_has_no_such_warning(
    isoloss: Isoloss, synthetic_laws: Path, synthetic_table: Path, tmp_path: Path
) -> None:
    """Nor has one of laws that left runs out by name."""
    out, laws = tmp_path / "report.html", tmp_path / "laws.json"
    asked = ("--out", out, "--runs", synthetic_table, "--json")
    assert isoloss("report", synthetic_laws, *asked).document["warnings"] == []
    largest = max(run.params for run in synthetic_runs())
    names = [run.name for run in synthetic_runs() if run.params == largest]
    left_out = [text for name in names for text in ("--exclude", name)]
    isoloss("fit", synthetic_table, "--bootstrap-samples", 20, *left_out, "--out", laws)
    assert isoloss("report", laws, *asked).document["warnings"] == []


def test_all_published_laws_are_listed_with_units_and_sources(isoloss: Isoloss) -> None:
    document = isoloss("laws", "--json").document
    assert [law["name"] for law in document["laws"]] == [f"published:{name}" for name in PUBLISHED]
    shown = isoloss("laws").out
    for law in PUBLISHED.values():
        assert law.source in shown
        assert law.units in shown


@pytest.mark.parametrize(("arguments", "code"), [(("--version",), 0), (("bogus",), 2), ((), 2)])
def test_the_top_level(isoloss: Isoloss, arguments: tuple[str, ...], code: int) -> None:
    assert isoloss(*arguments).code == code


def test_without_any_argument_the_help_is_printed_and_no_error(isoloss: Isoloss) -> None:
    bare = isoloss()
    assert bare.out == isoloss("--help").out
    assert bare.err == ""


def test_sentences_fold_between_words_on_a_terminal_and_paths_stay_whole(
    isoloss: Isoloss, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/" + "x" * 90
    assert (
        folded(f"one two three {path}\n\n  as it is", 12)
        == f"one two\nthree\n{path}\n\n  as it is"
    )
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", isoloss("plan", EXAMPLE).out)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("fit", "--weights Averaged|Raw"),
        ("predict", "--composition Measured|Paper"),
        ("validate", "between 0.003 and 0.010 nats"),
        ("init", "--checkpoint URI"),
    ],
)
def test_the_help_has_choices_as_they_are_written(
    isoloss: Isoloss, command: str, says: str
) -> None:
    assert says in isoloss(command, "--help").words


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        *(("5e9", 5e9), ("5.e9", 5e9), (".5e10", 5e9), ("+5e+09", 5e9), ("5000000000.0", 5e9)),
        *(
            ("5B", 5e9),
            ("2.5T", 2.5e12),
            ("1,000M", 1e9),
            ("1_000M", 1e9),
            ("55,000,000,000", 5.5e10),
        ),
    ],
)
def test_counts_are_taken_as_floats_are_written_and_with_a_letter(
    text: str, tokens: float
) -> None:
    assert count("--cpt-tokens", text) == tokens


@pytest.mark.parametrize("text", ["55X", "0", "2,5B", "55,00B", "1234,567M", "five", "-1"])
def test_what_is_no_count_is_refused_by_its_option(text: str) -> None:
    """A comma as a decimal point would be a factor of ten."""
    with pytest.raises(BadInput) as refused:
        count("--cpt-tokens", text)
    hint = "write 55B, 2.5T, 800M or 55e9"
    assert str(refused.value) == f"--cpt-tokens: {text} is not a count: {hint}"


@pytest.mark.parametrize("text", ["1e400", "8e400", "9" * 400, "1e16", "99999T"])
def test_a_count_beyond_all_tokens_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=f"^--params: {text[:40]} is not a count of at most 9e15"):
        count("--params", text)
