"""The report in a real browser: nothing leaves the page, nothing fails on its console, and it prints."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from isoloss.laws import FitOptions, fit_laws
from isoloss.report.page import render_report
from tests.support.synthetic_runs import answered, synthetic_runs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on PATH (Debian: apt install chromium)"
    ),
]
A4_POINTS = (595, 842)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = synthetic_runs()
    laws = fit_laws(runs, FitOptions(bootstrap_samples=50))
    answer = answered(laws, initial_loss=2.75, cpt_flops=3e19, params=1e9)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_report(laws, runs, title="dense", prediction=answer, initial_loss=2.75))
    return path


def browser(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = (
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"),
        *(f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri()),
    )
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def requests_and_console(page: Path) -> tuple[set[str], bool]:
    """The addresses that a page asks for, and whether it wrote to the console."""
    log = page.parent / "net.json"
    shown = browser(
        page,
        *("--dump-dom", f"--log-net-log={log}", "--enable-logging=stderr", "--v=0"),
        "--host-resolver-rules=MAP * ~NOTFOUND",
    )
    # Chromium's own services have no origin as initiator; a page has one, if only "null".
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    asked = {
        event["url"]
        for event in events
        if event.get("initiator", "not an origin") != "not an origin"
    }
    return asked, "CONSOLE" in shown.stderr


def test_nothing_but_the_page_is_fetched_and_the_console_stays_empty(page: Path) -> None:
    assert requests_and_console(page) == (set(), False)


def test_a_page_that_fetches_and_fails_would_be_noticed(page: Path) -> None:
    """The control of the test above."""
    other = page.with_name("other.html")
    other.write_text('<img src="http://host.invalid/x.png"><script>console.error("no")</script>')
    assert requests_and_console(other) == ({"http://host.invalid/x.png"}, True)


def measured(page: Path, expression: str, *options: str) -> str:
    """What an expression gives in a copy of the page whose policy lets scripts run."""
    copy = page.with_name("measured.html")
    script = f"<script>addEventListener('load', () => document.title = {expression})</script>"
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    copy.write_text(policy.sub("", page.read_text()).replace("</body>", f"{script}</body>"))
    shown = browser(copy, "--dump-dom", "--virtual-time-budget=5000", *options).stdout
    found = re.search(r"<title>(.*?)</title>", shown)
    assert found
    return found[1]


def test_every_figure_is_drawn_and_its_marks_have_titles(page: Path) -> None:
    wide = "[...document.querySelectorAll('figure svg')].map(i => i.clientWidth > 300).join()"
    assert measured(page, wide) == "true,true,true,true"
    assert int(measured(page, "document.querySelectorAll('.tip > title').length")) > 200


def test_at_400_pixels_nothing_but_figures_and_tables_is_wider_than_the_screen(page: Path) -> None:
    """Headless windows are at least 500 pixels wide, so the page is shown in a frame."""
    frame = page.with_name("frame.html")
    frame.write_text(
        f'<!doctype html><title></title><iframe src="{page.name}" width=400 height=800></iframe>'
        "<script>addEventListener('load', () => { const d = frames[0].document;"
        "document.title = [d.documentElement.scrollWidth,"
        " getComputedStyle(d.querySelector('figcaption')).fontSize,"
        " Math.min(...[...d.querySelectorAll('figure svg')].map(s => s.clientWidth))].join() })</script>"
    )
    shown = browser(
        frame, "--dump-dom", "--virtual-time-budget=5000", "--allow-file-access-from-files"
    ).stdout
    found = re.search(r"<title>(\d+),([\d.]+)px,(\d+)</title>", shown)
    assert found
    assert int(found[1]) <= 400
    assert float(found[2]) >= 12
    assert int(found[3]) > 400, "figures keep their size, in which labels can be read"


def test_in_the_dark_the_paper_is_dark_and_the_ink_is_light(page: Path) -> None:
    style = "getComputedStyle(document.body)"
    colours = f"{style}.backgroundColor + ' ' + {style}.color"
    assert measured(page, colours) == "rgb(255, 255, 255) rgb(17, 17, 17)"
    dark = measured(page, colours, "--blink-settings=preferredColorScheme=0")
    assert dark == "rgb(20, 20, 20) rgb(220, 220, 220)"


def test_it_prints_on_a4(page: Path) -> None:
    paper = page.parent / "report.pdf"
    browser(page, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", paper.read_bytes())
    assert boxes
    for width, height in boxes:
        assert (float(width), float(height)) == pytest.approx(A4_POINTS, abs=2)
