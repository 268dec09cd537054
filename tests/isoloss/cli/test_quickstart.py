"""`isoloss quickstart`: sample runs, their laws, an answer and a report, by commands that a reader can type again."""

import contextlib
import io
import shlex
import webbrowser
from pathlib import Path
from unittest import mock

import pytest

from isoloss.cli import reporting
from isoloss.cli.application import run
from isoloss.cli.quickstart import commands, in_shell
from tests.support.command_line import Isoloss
from tests.support.pages import drawn_empty


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def printed(home: Path) -> str:
    """What it prints in an empty folder. test_core_installation draws the figures, too."""
    output = io.StringIO()
    with (
        contextlib.chdir(home),
        contextlib.redirect_stdout(output),
        mock.patch.object(reporting, "draw_figures", drawn_empty),
    ):
        assert run(["quickstart"]) == 0
    return output.getvalue()


def typed(printed: str) -> list[list[str]]:
    """The commands of its output, as a shell would read them."""
    lines = printed.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("isoloss ")]


def test_it_prints_the_three_commands_that_it_ran_and_one_to_go_on_with(printed: str) -> None:
    *ran, further = typed(printed)
    assert ran == [list(each) for each in commands(Path("quickstart"))]
    assert further[0] == "validate"


def test_its_commands_typed_again_give_the_answer_that_it_printed(
    isoloss: Isoloss, printed: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    _, predict, _, validate = typed(printed)
    answer = isoloss(*predict)
    assert answer.code == 0
    for quantity in ("learning rate", "batch size (sequences)"):
        message = [
            line.split()[-3:] for line in printed.splitlines() if quantity in line and "[" in line
        ]
        found = [
            line.split()[-3:] for line in answer.out.splitlines() if line.startswith(quantity)
        ]
        assert message == found[:1]
    judged = isoloss(*validate)
    assert judged.code == 0
    assert "AnswerHolds" in judged.out


def test_its_report_is_where_it_says(printed: str, home: Path) -> None:
    page = home / "quickstart" / "report.html"
    assert str(page) in printed
    assert page.read_text().startswith("<!doctype html>")


def test_it_fits_a_terminal_of_80_columns_but_for_paths(printed: str, home: Path) -> None:
    lines = printed.replace(str(home), "").splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) <= 30


def test_a_command_is_continued_between_its_options_alone() -> None:
    (fit, *_) = commands(Path("a folder with blanks") / ("x" * 60))
    text = in_shell(fit)
    assert shlex.split(text.replace("\\\n", " ")) == ["isoloss", *fit]
    assert "\n    --out " in text


def test_a_second_time_it_writes_over_its_own_files_and_never_over_those_of_others(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    (tmp_path / "laws.json").write_text("mine")
    refused = isoloss("quickstart", "--folder", tmp_path)
    assert "--folder" in refused.error
    assert "has files of your own" in refused.error
    assert (tmp_path / "laws.json").read_text() == "mine"
    assert not (tmp_path / "runs.csv").exists()


def test_the_page_is_opened_if_asked_for_and_a_program_gets_one_document(
    isoloss: Isoloss, printed: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder of an earlier quickstart, which it may write to."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: bool(opened.append(uri)) or True)
    monkeypatch.setattr("isoloss.cli.quickstart._run", lambda arguments: None)
    monkeypatch.chdir(home)
    assert isoloss("quickstart", "--json").document["commands"][1].startswith("isoloss predict ")
    assert opened == []
    assert "opened in a browser" in isoloss("quickstart", "--open").out
    assert opened == [(home / "quickstart" / "report.html").as_uri()]
