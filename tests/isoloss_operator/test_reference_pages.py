"""The reference has every reason and every metric."""

import re
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from isoloss.laws import RefusalReason
from isoloss.search import Reason as SearchReason
from isoloss.search import StopReason
from isoloss.validation import Reason as Judged
from isoloss_operator.decide.jobs import MAX_NODE_FAILURES, MAX_VANISHED, FailureClass
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.generate.advice import ADVICE, FAILURES, REFUSALS
from isoloss_operator.generate.apidoc import api_page
from isoloss_operator.generate.crdgen import definitions
from isoloss_operator.generate.reasondoc import member_texts, reasons_page
from isoloss_operator.process.metrics import Metrics

OPERATOR = Path(__file__).parents[2] / "operator" / "isoloss_operator"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_has_a_meaning_and_advice(reason: Reason) -> None:
    assert member_texts(Reason)[reason.name]
    assert ADVICE[reason]


@pytest.mark.parametrize("reason", RefusalReason)
def test_a_refusal_of_the_laws_has_a_meaning_and_advice(reason: RefusalReason) -> None:
    assert all(REFUSALS[reason])


@pytest.mark.parametrize("failure", FailureClass)
def test_a_class_of_failures_has_a_meaning_and_advice(failure: FailureClass) -> None:
    assert member_texts(FailureClass)[failure.name]
    assert FAILURES[failure]


@pytest.mark.parametrize("word", [*StopReason, *SearchReason])
def test_a_word_of_a_search_has_a_meaning(word: StopReason | SearchReason) -> None:
    assert member_texts(type(word))[word.name]


def test_every_reason_is_given_by_some_decision() -> None:
    """A reason that nothing gives would be documented for nobody."""
    own = ("reasons.py", "advice.py")
    code = "\n".join(path.read_text() for path in OPERATOR.rglob("*.py") if path.name not in own)
    # Reasons that a pod's own code becomes are those of TRAINER_REASONS, without their names.
    by_code = member_texts(Reason).keys() - set(re.findall(r"Reason\.([A-Z_0-9]+)", code))
    # Verdicts on an answer are given by the values of those of isoloss.validation.
    by_code -= {Reason(each.value).name for each in Judged}
    trainer = (OPERATOR / "decide" / "reasons.py").read_text().split("TRAINER_REASONS")[1]
    assert {name for name in by_code if f"Reason.{name}" not in trainer} == set()


def test_the_page_has_numbers_and_no_names_of_the_code() -> None:
    page = reasons_page()
    assert re.findall(r"\b[A-Z]+_[A-Z_]+\b", page) == []
    reported = re.findall(r"Not charged until it has happened (\d+) times", page)
    assert [int(times) for times in reported] == [MAX_VANISHED, MAX_NODE_FAILURES, MAX_VANISHED]


def test_every_name_is_on_the_page_once() -> None:
    rows = re.findall(r"^\|`(\w+)`\|", reasons_page(), re.MULTILINE)
    kinds = (*Reason, *RefusalReason, *FailureClass, *StopReason, *SearchReason)
    assert set(rows) == {str(each) for each in kinds}


def test_every_metric_that_is_served_is_on_the_page_with_its_type_labels_and_meaning() -> None:
    metrics = Metrics()
    declared = {
        metric.name: collector._labelnames
        for collector in vars(metrics).values()
        if isinstance(collector, MetricWrapperBase)
        for metric in collector.describe()
    }
    rows = []
    for metric in sorted(metrics.registry.collect(), key=lambda metric: metric.name):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = declared.get(metric.name) or getattr(metric, "_labelnames", ())
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"|`{name}`|{metric.type}|{shown}|{metric.documentation}|")
    page = (DOCS / "reference" / "metrics.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("|`")] == rows
    served = re.findall(r"^# TYPE (\S+) ", metrics.page().decode(), re.MULTILINE)
    assert len(rows) == len(served)
    assert all(name.startswith("isoloss_") for name in served)


def test_the_fields_of_a_repeated_object_and_a_repeated_rule_are_on_the_page_once() -> None:
    page = api_page(definitions())
    assert page.count("Fields as in `spec.data.podTemplate`.") == 2
    assert "`spec.podTemplate.metadata`" not in page
    rules = re.findall(
        r"^- (`.+`): (.+)$", page.partition("## HyperparamPrediction")[0], re.MULTILINE
    )
    assert len({message for _, message in rules}) == len(rules)
    identity = next(fields for fields, message in rules if "sweep's identity" in message)
    assert {"`spec.optimizer`", "`spec.data.tokenizer`"} <= set(identity.split(", "))


def test_every_named_object_that_repeats_another_names_fields_that_are_on_the_page() -> None:
    for kind in api_page(definitions()).split("\n## ")[1:]:
        for name in re.findall(r"Fields as in `([^`]+)`", kind):
            assert re.search(rf"^\|`{re.escape(name)}(\[\])?\.", kind, re.MULTILINE), name
