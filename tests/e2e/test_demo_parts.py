"""The demo's parts: its corpus, and how it reads the resources."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from demo import corpus
from demo.answer import last_screen, verdict_line
from demo.commands import run
from demo.kubectl import Kubectl
from demo.operator_process import kinds_seen
from demo.report import fetch_report
from demo.tokenizer import END, VOCABULARY, train_tokenizer
from demo.watching import DemoFailed
from isoloss.laws import RefusalReason
from isoloss.status import View
from isoloss.validation import Reason
from isoloss.validation.outcome import UNDECIDED
from isoloss_contract.records import DomainSource
from isoloss_contract.store import Store
from isoloss_operator.process.metrics import Metrics
from isoloss_trainer.corpus import find_files, read_documents
from tests.support.texts import text
from tests.support.watched import put_kubectl

SOURCE = '''"""Module docstring."""

import os


class Thing:
    """Class docstring
    of two lines."""

    def method(self):
        "Docstring in plain quotes."
        return """no docstring"""
'''
DIGESTS = {
    "general": (
        "af272f6a70df98e8ced2746c756e86f2f595f56e05a0218260ebf85599a5bf4b",
        "2ba66af21a7caf885965ca170a00bfa65ccaa5ce5bfe3626bc9947702d1c632d",
    ),
    "math": (
        "f861b3169befce1f01f77931c7b3f4ebb58a1f61b86e706269dae87d21939a7e",
        "55ddf3244ff09dd9da92423b1052adcfb260168035abcce450d048590260cf67",
    ),
    "code": (
        "bfa114a75053e8231b5f41c9a2eb26ee48bac5f904accbd1318f83f314dcbd42",
        "4dc7db51f48681a64905a4687f03118541d250fd6be1387a72d65554b2d377f7",
    ),
}
"""Of the corpus, and of what the checkpoint reads."""
TEXTS = ["first\ndocument " * 10, "zweites Dokument, größer " * 10]
Json = dict[str, Any]


@pytest.mark.parametrize("output", ["no [/bold] here", "see [red] and [link=x]", "a [/] b"])
def test_a_failure_is_shown_as_it_is_said(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets in an error are no markup: they would vanish, or end the demo with a trace."""
    explained = []

    def fail(_: object) -> None:
        raise DemoFailed(output)

    demo: Any = SimpleNamespace(explain_failure=lambda: explained.append(True))
    assert run(fail, demo) == 1
    assert output in capsys.readouterr().out
    assert explained == [True]


def test_only_docstrings_are_removed_from_the_code() -> None:
    left = corpus.without_docstrings(SOURCE)
    assert "ocstring in" not in left
    assert "two lines" not in left
    assert 'return """no docstring"""' in left
    assert corpus.without_docstrings("def broken(:") == ""


def test_long_texts_are_cut_between_paragraphs_and_nothing_is_lost() -> None:
    text = "\n\n".join(f"{number} " * 200 for number in range(20))
    parts = list(corpus.pieces(text))
    assert "\n\n".join(parts) == text
    assert len(parts) > 5
    assert all(len(part) < 2 * corpus.LONGEST for part in parts)


def test_documents_are_distinct_and_of_some_length() -> None:
    domain = corpus.Domain(("fsspec", "kopf"), corpus.without_docstrings, 100_000)
    found = domain.documents()
    assert len(set(found)) == len(found)
    assert min(map(len, found)) >= corpus.SHORTEST
    assert 100_000 <= sum(len(text.encode()) for text in found) < 150_000


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "code" else pytest.mark.whole) for name in DIGESTS],
)
def test_the_corpus_is_the_same_on_every_machine(name: str) -> None:
    """The grid of the demo's sweep was chosen on this text: if another lock changes it, run
    `make demo` to its end before writing the new digests here."""
    for texts, digest in zip(corpus.DOMAINS[name].split(), DIGESTS[name], strict=True):
        assert hashlib.sha256("\0".join(texts).encode()).hexdigest() == digest


def test_the_trainer_reads_back_every_format_that_the_demo_writes(tmp_path: Path) -> None:
    files = corpus.write_corpus({"general": TEXTS, "math": TEXTS, "code": TEXTS}, tmp_path)
    assert len({path.suffix for path in files}) == 3
    for path, field in zip(files, ("text", "text", "content"), strict=True):
        source = DomainSource(name="domain", uri=f"file://{path}", text_field=field)
        filesystem, (file,) = find_files(source)
        assert isinstance(filesystem, fsspec.AbstractFileSystem)
        assert list(read_documents(filesystem, file, field)) == TEXTS


def test_the_tokenizer_is_the_same_every_time_and_loses_nothing(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    texts = [text(200_000)]
    for name in ("one", "two"):
        train_tokenizer([texts], tmp_path / name)
    content = [(tmp_path / name / "tokenizer.json").read_text() for name in ("one", "two")]
    assert content[0] == content[1]
    tokenizer = Tokenizer.from_str(content[0])
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert tokenizer.token_to_id(END) is not None
    assert tokenizer.decode(tokenizer.encode(TEXTS[1]).ids) == TEXTS[1]


def resource(generation: int = 1, **conditions: tuple[str, str, int]) -> Json:
    """An object whose conditions are (status, reason, observed generation)."""
    listed = [
        {"type": t, "status": s, "reason": r, "message": "", "observedGeneration": g}
        for t, (s, r, g) in conditions.items()
    ]
    return {"metadata": {"generation": generation}, "status": {"conditions": listed}}


def asked_for_probes(status: str, reason: str, **answered: Any) -> Json:
    """A prediction that is ready, with probes."""
    found = resource(Ready=("True", "Predicted", 1), Validated=(status, reason, 1))
    answer = {"learningRate": {"value": "1.5e-3"}, "batchSize": {"value": "4"}}
    return {
        **found,
        "spec": {"validation": {"sweepRef": {"name": "near"}}},
        "status": found["status"] | answer | answered,
    }


def test_every_verdict_that_leaves_it_open_ends_the_waiting() -> None:
    """As isoloss.validation names them, and as the laws refuse probes. The operator's own end when somebody
    changes something."""
    decided = {Reason.ANSWER_HOLDS, Reason.BETTER_ANSWER_NEARBY, Reason.ANSWER_DIVERGED}
    stuck = {
        "BadConfiguration",
        "CheckpointChanged",
        "CheckpointDiffers",
        "CorpusDiffers",
        "DataChanged",
        "InvalidSpec",
        "LossDiffers",
        "NoResults",
        "OptimizerDiffers",
        "TooManyFailedPoints",
    }
    assert {*(set(Reason) - decided), *RefusalReason, *stuck} == UNDECIDED


def test_the_verdict_is_told_once_there_is_one() -> None:
    judged = View({}, asked_for_probes("True", "AnswerHolds"))
    assert verdict_line(judged) == "Validated=True AnswerHolds: "
    assert verdict_line(View({}, asked_for_probes("Unknown", "Training"))) == ""


def pages(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Kubectl, View]:
    """A cluster in which the demo's prediction is judged, and whose page is in the store."""
    judged = resource(Validated=("True", "AnswerHolds", 1))
    judged["status"]["conditions"][0]["message"] = "It's <b>right</b>."
    judged["status"]["reportUri"] = store.location("predictions/demo-1/report.html")
    judged["spec"] = {"sweepRef": {"name": "demo"}}
    put_kubectl(
        folder, monkeypatch, hyperparamprediction__demo=judged, scalingsweep__demo=resource()
    )
    return Kubectl(folder / "kubectl", folder / "kubeconfig"), View(resource(), judged)


def test_the_report_is_the_operators_page_once_it_has_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"file://{tmp_path}/store")
    kubectl, view = pages(store, tmp_path, monkeypatch)
    store.write("predictions/demo-1/report.html", b"the page before")

    def draw(_: float) -> None:
        store.write("predictions/demo-1/report.html", b"It&#39;s &lt;b&gt;right&lt;/b&gt;.")

    monkeypatch.setattr("demo.report.time.sleep", draw)
    fetch_report(kubectl, view, tmp_path / "report.html")
    assert "It&#39;s" in (tmp_path / "report.html").read_text()
    assert "--namespace research" in (tmp_path / "calls").read_text()


def test_a_report_that_is_not_drawn_ends_the_demo_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"file://{tmp_path}/store")
    kubectl, view = pages(store, tmp_path, monkeypatch)
    with pytest.raises(DemoFailed, match="no page there yet"):
        fetch_report(kubectl, view, tmp_path / "report.html", patience=0.0)
    store.write("predictions/demo-1/report.html", b"the page before")
    with pytest.raises(DemoFailed, match="has not got the verdict"):
        fetch_report(kubectl, view, tmp_path / "report.html", patience=0.0)


MESSAGE = (
    "The probes cannot show whether the answer holds: it loses 0.0105 nats at the full budget (between 0.0015 and "
    "0.0382), where 0.0100 are tolerated. Train more seeds (validation.seeds), or longer probes "
    "(validation.tokensShare)."
)


@pytest.mark.parametrize(
    "kubectl", ["", "KUBECONFIG=.demo/cluster/kubeconfigs/admin.json kubectl get isoloss"]
)
@pytest.mark.parametrize("message", [MESSAGE, 4 * MESSAGE], ids=["short", "long"])
def test_the_last_screen_is_the_answer_in_15_lines_of_80_columns(
    kubectl: str, message: str
) -> None:
    sweep = resource(Ready=("True", "Fitted", 1))
    sweep |= {"spec": {"proxies": [{}, {}]}}
    sweep["status"] |= {"points": {"total": 18, "succeeded": 18}}
    prediction = resource(Validated=("Unknown", "WithinNoise", 1))
    prediction["spec"] = {"budget": {"tokens": 800_000}}
    prediction["status"]["conditions"][0]["message"] = message
    prediction["status"] |= {
        "learningRate": {"value": "1.49e-3", "low": "8.94e-4", "high": "2.52e-3"},
        "batchSize": {"value": "4", "low": "1.7", "high": "9"},
        "extrapolation": {"computeFactor": "6.83944"},
        "initialLoss": {"value": "3.8670"},
        "equivalentFlops": {"value": "2.95e11"},
        "totalFlops": {"value": "1.07e12"},
        "validation": {"places": [{}] * 5},
    }
    lines = last_screen(
        View(sweep, prediction),
        report=Path(".demo/report.html"),
        log=Path(".demo/demo.log"),
        kubectl=kubectl,
    )
    assert len(lines) <= 14, "and a title above them"
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for words in (
        "learning rate 1.49e-3 [8.94e-4, 2.52e-3]",
        "batch size (sequences) 4 [1.7, 9]",
        "From laws of 18 runs of 2 model sizes, asked for 6.8 times their compute. "
        "The checkpoint's loss, 3.87 nats, is worth 28% of all compute.",
        "Checked by 5 continued runs: WithinNoise.",
        ".demo/report.html",
        "make demo-down",
    ):
        assert words in text
    assert ("kubectl" in text) is bool(kubectl)
    report = next(number for number, line in enumerate(lines) if "Report with" in line)
    assert lines[report - 1].endswith("."), (
        "no sentence is cut, but for one that is too long alone"
    )


def test_the_demo_waits_for_the_passes_of_the_operator_that_it_has_just_started() -> None:
    """Until then a status is of the operator before, whose engine may have been another."""
    metrics = Metrics()
    assert kinds_seen(metrics.page().decode()) == set()
    metrics.reconcile_seconds.labels("ScalingSweep").observe(0.1)
    assert kinds_seen(metrics.page().decode()) == {"ScalingSweep"}
