"""`isoloss predict`: answers with intervals from own laws, without from published ones."""

import io
import json
import math
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isoloss.cli.application import main
from isoloss.laws import FitOptions, fit_laws, laws_to_json
from isoloss_contract import layout
from isoloss_contract.store import Store
from tests.support.command_line import Isoloss
from tests.support.stored_sweep import write_sweep
from tests.support.synthetic import Grid, Synthetic
from tests.support.synthetic import synthetic_runs as surface_runs

QUESTION = ("--initial-loss", "2.75", "--cpt-flops", "3e19", "--params", "1e9")


@pytest.fixture
def predict(isoloss: Isoloss, synthetic_laws: Path) -> Isoloss:
    """Asks the true laws."""
    return partial(isoloss, "predict", synthetic_laws)


def test_the_answer_has_the_promised_shape(predict: Isoloss) -> None:
    ended = predict(*QUESTION, "--round-to", "32", "--json")
    document = ended.document
    assert ended.code == 0
    for name in ("learning_rate", "batch_size", "target_loss", "equivalent_flops"):
        assert document[name]["low"] < document[name]["high"]
    assert document["batch_size"]["value"] % 32 == 0
    assert document["interval_level"] == 0.8
    total = document["total_flops"]["value"]
    assert total == pytest.approx(document["equivalent_flops"]["value"] + 3e19)
    assert document["variants"]["A"]["total_flops"] == pytest.approx(3e19)
    assert {item["name"] for item in document["second_opinions"]} >= {"step-law", "deepseek"}
    assert document["extrapolation"]["compute_factor"] > 1
    assert isinstance(document["warnings"], list)


def test_a_batch_size_that_is_given_is_answered_with_a_learning_rate_and_its_price(
    predict: Isoloss,
) -> None:
    ended = predict(*QUESTION, "--batch-size", "64", "--json")
    document = ended.document
    assert ended.code == 0
    assert document["batch_size"] == {"value": 64, "low": 64, "high": 64}
    assert document["batch_size_given"] is True
    assert document["learning_rate"]["low"] < document["learning_rate"]["high"]
    assert document["batch_size_cost"]["value"] > 0
    printed = predict(*QUESTION, "--batch-size", "64").out
    assert "what this batch size costs" in printed
    assert "64 (given)" in printed
    assert "[64, 64]" not in printed
    assert not any("both as they are" in warning for warning in document["warnings"])


def test_what_json_says_of_published_laws_is_printed_below_their_rows(predict: Isoloss) -> None:
    asked = ("--total-flops", "1e20")
    printed, document = predict(*asked).out, predict(*asked, "--json").document
    of_rows = [each for law in document["second_opinions"] for each in law["warnings"]]
    assert any("is an extrapolation" in each for each in of_rows)
    (without_row,) = [each for each in document["warnings"] if each.startswith("step-law: ")]
    notes = printed.partition("published law")[2].partition("note: ")
    below = " ".join("".join(notes[1:]).split())
    for each in (*of_rows, without_row):
        assert f"note: {each}" in below


def test_a_total_compute_that_is_given_is_answered_as_a_run_from_scratch_and_that_is_said(
    predict: Isoloss,
) -> None:
    asked = ("--total-flops", "1e20", "--params", "1e9", "--json")
    for more in ((), ("--batch-size", "64"), ("--round-to", "1000")):
        words = predict(*asked, *more).document["warnings"]
        assert sum("that of a run from scratch" in each for each in words) == 1
    of_a_checkpoint = predict(*QUESTION, "--json").document["warnings"]
    assert not any("that of a run from scratch" in each for each in of_a_checkpoint)


def test_for_another_sequence_length_every_batch_size_keeps_its_tokens(predict: Isoloss) -> None:
    """The laws are of 2048 tokens per sequence."""
    own = predict(*QUESTION, "--json").document
    other = predict(*QUESTION, "--sequence-length", "8192", "--json").document
    assert other["sequence_length"] == 8192
    assert other["batch_size"]["value"] == round(own["batch_size_raw"] / 4)
    tokens = other["batch_size_tokens"]["value"]
    assert tokens == other["batch_size"]["value"] * other["sequence_length"]
    pairs = [(own["best"], other["best"])]
    pairs += [(point, other["variants"][name]) for name, point in own["variants"].items()]
    for point, there in pairs:
        assert there["batch_size"]["value"] == pytest.approx(point["batch_size"]["value"] / 4)
    assert any("differs from the sweep's, 2048" in warning for warning in other["warnings"])
    printed = predict(*QUESTION, "--sequence-length", "8192").out
    assert "batch size (sequences of 8192)" in printed
    assert "batch size (sequences)" not in printed


def test_a_batch_size_and_a_multiple_are_of_the_sequence_length_that_is_asked_for(
    predict: Isoloss,
) -> None:
    asked = (*QUESTION, "--sequence-length", "8192", "--json")
    given = predict(*asked, "--batch-size", "48").document
    same = predict(*QUESTION, "--batch-size", "192", "--json").document
    assert given["batch_size"] == {"value": 48, "low": 48, "high": 48}
    assert given["learning_rate"] == same["learning_rate"]
    assert given["batch_size_tokens"] == same["batch_size_tokens"]
    assert any("differs from the sweep's, 2048" in warning for warning in given["warnings"])
    rounded = predict(*asked, "--round-to", "64").document
    assert rounded["batch_size"]["value"] % 64 == 0


def test_tokens_and_parameters_are_taken_as_people_write_them(predict: Isoloss) -> None:
    past = ("--pretraining-tokens", "1,000M")
    asked = ("--initial-loss", "2.75", "--cpt-tokens", "5B", "--params", "1B", *past, "--json")
    document = predict(*asked).document
    assert document["cpt_flops"] == pytest.approx(3e19)
    assert document["variants"]["B"]["total_flops"] == pytest.approx(6 * 1e9 * 1e9 + 3e19)


def test_a_perplexity_for_the_initial_loss_is_recognised(predict: Isoloss) -> None:
    """exp(2.75) and exp(3.2): above every loss, where the checkpoint's past would not matter."""
    asked = ("--cpt-tokens", "5e9", "--params", "1e9", "--json")
    for perplexity, loss in (("15.64", "2.75"), ("24.53", "3.2")):
        ended = predict(*asked, "--initial-loss", perplexity)
        assert ended.code == 3
        (refusal,) = ended.document["refused"]
        assert f"if it is a perplexity, it is {loss} nats per token" in refusal["message"]
    higher = predict(*asked, "--initial-loss", "5").document["warnings"]
    (warning,) = [w for w in higher if "above every loss" in w]
    assert "if it is in bits per token, it is 3.466 nats per token" in warning
    assert "perplexity" not in warning


@pytest.mark.parametrize(
    ("initial_loss", "remedies"),
    [
        ("0.4", ("validation text with its tokenizer", "set a lower irreducible loss")),
        ("9", ("validation text with its tokenizer", "plan a larger budget")),
    ],
)
def test_an_initial_loss_that_does_not_belong_to_the_laws_is_refused_with_what_to_change(
    predict: Isoloss, initial_loss: str, remedies: tuple[str, ...]
) -> None:
    asked = ("--initial-loss", initial_loss, "--cpt-flops", "1e17", "--json")
    (refused,) = predict(*asked).document["refused"]
    for remedy in remedies:
        assert remedy in refused["message"]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (("--initial-loss", "0.4", "--cpt-flops", "3e19"), "InitialLossBelowIrreducible"),
        (("--total-flops", "1e27"), "ExtrapolationTooFar"),
    ],
)
def test_where_there_is_no_answer_the_code_is_3_and_the_reason_is_named(
    predict: Isoloss, question: tuple[str, ...], reason: str
) -> None:
    ended = predict(*question, "--json")
    assert ended.code == 3
    refused = ended.document["refused"]
    assert refused[0]["reason"] == reason
    assert refused[0]["message"]
    assert "learning_rate" not in ended.document
    assert f"refused: {reason}" in predict(*question).out


def test_a_refusal_that_a_batch_size_lifts_says_what_to_type(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    """Of laws whose best batch size is below all that were tried."""
    grid = Grid(rates=5, shift=(0.0, math.log(8.0)))
    runs = surface_runs(Synthetic(), grid, np.random.default_rng(0), 0.0005)
    laws = tmp_path / "laws.json"
    laws.write_text(json.dumps(laws_to_json(fit_laws(runs, FitOptions(bootstrap_samples=60)))))
    question = ("predict", laws, "--params", "5e8", "--total-flops", "1e20")
    ended = isoloss(*question)
    assert ended.code == 3
    (typed,) = re.findall(r"The same command with (--batch-size \S+) answers\.", ended.out)
    assert isoloss(*question, *typed.split()).code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "a list, which holds no laws: give the file that isoloss fit writes"),
        ('{"format": "isoloss.dev/laws", "version"', "not JSON"),
        ('{"laws": {"a": 1, "a": 2}}', "laws.json: the key 'a' is there twice"),
    ],
)
def test_files_that_hold_no_laws_are_bad_input(
    isoloss: Isoloss, tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "laws.json"
    path.write_text(text)
    assert says in isoloss("predict", path, "--total-flops", "1e20", "--json").error


def test_laws_behind_a_byte_order_mark_are_read(
    isoloss: Isoloss, synthetic_table: Path, tmp_path: Path
) -> None:
    """As editors on Windows save them."""
    path = tmp_path / "laws.json"
    isoloss("fit", synthetic_table, "--bootstrap-samples", 20, "--out", path)
    path.write_text(path.read_text(), "utf-8-sig")
    assert isoloss("predict", path, "--total-flops", "1e20", "--params", "1e9").code == 0


def test_what_fit_prints_as_json_is_told_from_the_file_that_it_writes(
    isoloss: Isoloss, synthetic_table: Path, tmp_path: Path
) -> None:
    path = tmp_path / "laws.json"
    path.write_text(isoloss("fit", synthetic_table, "--bootstrap-samples", 20, "--json").out)
    ended = isoloss("predict", path, *QUESTION, "--json")
    assert ended.code == 2
    message = ended.document["error"]["message"]
    assert message.startswith(f"{path}: holds no laws")
    assert "isoloss fit writes with --out, not what it prints with --json" in message


# ------------------------------------------------------------------------------ published laws


def test_a_published_law_answers_without_intervals_and_says_so(isoloss: Isoloss) -> None:
    ended = isoloss("predict", "published:cpt-dense", "--total-flops", "2.8e21", "--json")
    document = ended.document
    assert ended.code == 0
    assert document["learning_rate"]["value"] == pytest.approx(6.2e-5, rel=0.01)
    assert math.floor(document["batch_size"]["value"]) == 771
    for quantity in ("learning_rate", "batch_size"):
        assert document[quantity]["low"] is None
        assert document[quantity]["high"] is None
    assert document["interval_level"] is None
    assert any("no covariance" in warning for warning in document["warnings"])


def test_a_published_batch_size_is_rounded_and_converted_when_asked(isoloss: Isoloss) -> None:
    asked = ("predict", "published:cpt-dense", "--total-flops", "2.8e21", "--json")
    assert isoloss(*asked, "--round-to", "64").document["batch_size"]["value"] == 768
    short = isoloss(*asked, "--sequence-length", "4096").document
    assert short["batch_size"]["value"] == pytest.approx(2 * 771.39, rel=1e-4)
    assert any("converted" in warning for warning in short["warnings"])


@pytest.mark.parametrize(("multiple", "far"), [(64, False), (512, True), (1024, True)])
def test_a_published_batch_size_in_tokens_is_that_of_the_rounded_one(
    isoloss: Isoloss, multiple: int, far: bool
) -> None:
    asked = ("predict", "published:step-law", "--total-flops", "1e21", "--params", "1e9")
    found = isoloss(*asked, "--round-to", multiple, "--json").document
    batch = found["batch_size"]["value"]
    assert batch % multiple == 0
    assert found["batch_size_tokens"]["value"] == batch * found["sequence_length"]
    assert any("far from the optimum" in warning for warning in found["warnings"]) == far
    printed = isoloss(*asked, "--round-to", multiple).out
    assert f"{batch * 2048 / 1e6:.3g}M" in printed


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        (("2.6", "--batch-size", "1000000"), False),
        (("2.6", "--pretraining-learning-rate", "3"), False),
        (("1.95",), True),
    ],
    ids=["a batch size", "a learning rate", "compute"],
)
def test_other_units_of_the_initial_loss_are_named_only_if_the_compute_is_too_far(
    predict: Isoloss, given: tuple[str, ...], is_said: bool
) -> None:
    loss, *options = given
    asked = ("--initial-loss", loss, "--params", "1e9", "--cpt-tokens", "1e9", *options, "--json")
    (refusal,) = predict(*asked).document["refused"]
    assert refusal["reason"] == "ExtrapolationTooFar"
    assert ("It would fit in another unit" in refusal["message"]) == is_said


def test_a_published_law_refuses_sequences_longer_than_its_batch(isoloss: Isoloss) -> None:
    asked = ("predict", "published:step-law", "--total-flops", "1e19", "--params", "1e8", "--json")
    assert isoloss(*asked, "--sequence-length", 100_000).code == 0
    ended = isoloss(*asked, "--sequence-length", 1_000_000)
    assert ended.code == 3
    (refusal,) = ended.document["refused"]
    assert refusal["reason"] == "ExtrapolationTooFar"
    assert "less than one sequence of 1000000 tokens" in refusal["message"]


def test_a_published_law_refuses_an_initial_loss(isoloss: Isoloss) -> None:
    ended = isoloss("predict", "published:cpt-dense", *QUESTION, "--json")
    assert ended.code == 3
    assert ended.document["refused"][0]["reason"] == "LawRefused"


@pytest.mark.parametrize(
    "options",
    [
        ("--batch-size", "64"),
        ("--batch-size-tolerance", "0.01"),
        ("--pretraining-tokens", "1e12"),
        ("--pretraining-learning-rate", "3e-4"),
        ("--composition", "Paper"),
        ("--composition-error", "0.1", "0.1"),
        ("--flops-per-token", "7e9"),
        ("--initial-loss-standard-error", "0.01"),
    ],
    ids=lambda options: options[0],
)
def test_an_option_that_a_published_law_does_not_know_is_bad_input_by_its_name(
    isoloss: Isoloss, options: tuple[str, ...]
) -> None:
    asked = ("--total-flops", "1e21", "--params", "1e9", *options, "--json")
    ended = isoloss("predict", "published:step-law", *asked)
    assert ended.code == 2
    message = ended.document["error"]["message"]
    assert message.startswith(f"{options[0]}: published:step-law does not take it")


NUMBER = st.one_of(
    st.floats().map(repr), st.floats(1e-3, 1e30).map(repr), st.text(max_size=4), st.just("3e19")
)


@given(
    laws=st.sampled_from(["own", "published:cpt-dense", "published:step-law", "published:porian"]),
    options=st.dictionaries(
        st.sampled_from(
            [
                *("--initial-loss", "--cpt-flops", "--cpt-tokens", "--total-flops", "--params"),
                *("--pretraining-tokens", "--round-to", "--sequence-length"),
            ]
        ),
        NUMBER,
        max_size=4,
    ),
)
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_is_asked_there_is_one_json_object_and_a_known_exit_code(
    isoloss: Isoloss, synthetic_laws: Path, laws: str, options: dict[str, str]
) -> None:
    source = synthetic_laws if laws == "own" else laws
    given_options = [f"{name}={value}" for name, value in options.items()]
    ended = isoloss("predict", source, *given_options, "--json")
    document = ended.document
    assert ended.code in (0, 2, 3)
    expected = {0: "learning_rate", 2: "error", 3: "refused"}[ended.code]
    assert expected in document


def test_damaged_laws_of_a_sweep_are_named_by_their_file(isoloss: Isoloss, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    ledger = write_sweep(store)
    folder = layout.sweep_folder(ledger.sweep, ledger.uid)
    for content in (b"{", b'{"format": "isoloss.dev/laws", "version": 5, "laws": {}}'):
        store.write(layout.laws_in(folder), content)
        found = isoloss("predict", f"file://{tmp_path}", "--total-flops", "1e19")
        assert f"isoloss: file://{tmp_path}/{folder}/laws.json: " in found.error


def test_a_terminal_that_lacks_a_sign_gets_another_in_its_place(
    synthetic_laws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the locale is not of UTF-8: a factor is written with the sign of multiplication."""
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(synthetic_laws), *map(str, QUESTION)])
    sys.stdout.flush()
    assert ended.value.code == 0
    assert b" ? the largest compute of the sweep" in printed.getvalue()
