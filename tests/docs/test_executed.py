"""Every command that a page tells people to type is typed by a test, or the page says why it is not."""

import re
from pathlib import Path

import pytest

from tests.support.pages import CHECKOUT, PAGES, Block, blocks, commands_run_by_tests, page_id

INSTALL = "tests/images/test_install_guide.py"
KIND = "tests/images/test_kind_guide.py"
COMMAND_LINE = "tests/docs/test_command_line.py"
TRAINER = "tests/isoloss_trainer/test_main.py"
DEMO = "tests/docs/test_demo_page.py"
BARE = "scripts/test_bare.py"
PIPELINES = "tests/isoloss_operator/test_pipelines.py"
GITOPS = "tests/controllers/test_gitops_guide.py"
RUN = ".ci/run"
EXECUTED: dict[str, dict[str, str]] = {
    "README.md": {"make": BARE, "helm": INSTALL, "isoloss": COMMAND_LINE},
    "CONTRIBUTING.md": {"make": RUN},
    "docs/guides/debug-the-trainer.md": {
        "TORCH_LOGS": TRAINER,
        "python traced.py": TRAINER,
        "kubectl": KIND,
    },
    "docs/guides/demo.md": {"make": BARE, "export": DEMO},
    "docs/guides/gitops.md": {"generation=": PIPELINES, "kubectl": GITOPS, "argocd": GITOPS},
    "docs/guides/install.md": {"": INSTALL},
    "docs/guides/kind.md": {"": KIND},
    "docs/guides/monitoring.md": {"helm": INSTALL},
    "docs/guides/quickstart.md": {"isoloss": COMMAND_LINE},
    "docs/guides/reading-a-fit.md": {"kubectl": INSTALL},
    "docs/guides/runbooks.md": {"kubectl": INSTALL},
    "docs/guides/sizing.md": {"isoloss": COMMAND_LINE},
    "docs/guides/troubleshooting.md": {"kubectl": INSTALL},
    "docs/guides/upgrade.md": {"": INSTALL},
    "docs/guides/validation.md": {
        "kubectl": INSTALL,
        "isoloss open": INSTALL,
        "isoloss validate": COMMAND_LINE,
    },
    "docs/guides/watch.md": {"isoloss": INSTALL},
    "docs/guides/your-runs.md": {"isoloss": COMMAND_LINE},
    "helm/isoloss/README.md": {"helm": INSTALL},
}
"""By page, and by what a block begins with: the file that types it. A test of that file types every such block."""
REASONS = {
    "needs a GPU",
    "needs a cloud",
    "needs Docker",
    "needs Kueue",
    "needs other loaders",
    "takes hours",
    "takes published tables",
    "a form, not a command",
}
"""Why a command may go without a test."""


def executing(page: str, block: Block) -> str:
    """The file that types a block; "" for none."""
    files = EXECUTED.get(page, {})
    return next((file for begins, file in files.items() if block.text.startswith(begins)), "")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_is_typed_by_a_test_or_marked_with_a_reason(page: Path) -> None:
    untested = [b for b in commands_run_by_tests(page) if not executing(page_id(page), b)]
    assert [(block.line, block.text) for block in untested] == []
    assert {block.mark for block in blocks(page)} <= {"", *REASONS}


@pytest.mark.parametrize("page", EXECUTED)
def test_the_file_that_is_said_to_type_a_page_names_it_and_has_something_to_type(
    page: str,
) -> None:
    commands = commands_run_by_tests(CHECKOUT / page)
    for begins, file in EXECUTED[page].items():
        assert [each for each in commands if each.text.startswith(begins)], begins
        assert (CHECKOUT / file).exists(), file
        if file.startswith("tests/"):
            assert f'"{Path(page).name}"' in (CHECKOUT / file).read_text(), file


def test_no_reason_is_kept_that_no_page_gives() -> None:
    assert {block.mark for page in PAGES for block in blocks(page) if block.mark} == REASONS


# ------------------------------------------------------------------------------ how pages are read


def test_no_page_hides_a_mark_that_is_not_read() -> None:
    """A misspelt comment would except nothing, and say nothing."""
    for page in PAGES:
        comments = re.findall(r"<!--.*?-->", page.read_text(), re.DOTALL)
        known = re.compile(r"<!-- (?:page )?not executed: [^\n]+? -->")
        stray = [each for each in comments if "execut" in each and not known.fullmatch(each)]
        assert stray == [], page_id(page)
