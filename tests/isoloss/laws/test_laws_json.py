"""laws.json: what is written is read back whole, and nothing else is accepted."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import (
    LAWS_VERSION,
    BadLaws,
    FitOptions,
    PredictionQuery,
    fit_laws,
    laws_from_json,
    laws_to_json,
    predict,
)
from tests.support.synthetic import Grid, Synthetic, synthetic_runs


@pytest.fixture(scope="module")
def laws():
    runs = synthetic_runs(Synthetic(), Grid(), np.random.default_rng(0), 0.001)
    return fit_laws(runs, FitOptions(bootstrap_samples=300))


@pytest.fixture(scope="module")
def text(laws):
    return json.dumps(laws_to_json(laws), allow_nan=False)


def test_the_round_trip_keeps_everything(laws, text):
    again = laws_from_json(json.loads(text))
    assert json.dumps(laws_to_json(again), allow_nan=False) == text
    query = PredictionQuery(initial_loss=3.0, cpt_flops=1e20, params=1e9)
    assert predict(again, query) == predict(laws, query)


def test_refused_laws_survive_too():
    laws = fit_laws([])
    assert laws_from_json(json.loads(json.dumps(laws_to_json(laws)))) == laws


def test_the_document_is_small(text):
    assert len(text) < 1_000_000


def test_the_document_of_many_runs_stays_below_two_megabytes():
    grid = Grid(rates=20, batches=20, step=0.25, evaluations=12)
    runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.001)
    laws = fit_laws(runs, FitOptions(bootstrap_samples=50))
    assert len(json.dumps(laws_to_json(laws))) < 2_000_000


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(version=1),
        lambda d: d.update(format="other"),
        lambda d: d.update(extra=1),
        lambda d: d.pop("laws"),
        lambda d: d["laws"].pop("status"),
        lambda d: d["laws"].pop("rate_at_batch"),
        lambda d: d["laws"]["rate_at_batch"].update(curve=None),
        lambda d: d["laws"].update(status="perfect"),
        lambda d: d["laws"].update(surprise=1),
        lambda d: d["laws"]["loss_compute"].update(gamma="0.1"),
        lambda d: d["laws"]["draws"]["loss_compute"].update(data="x"),
        lambda d: d["laws"]["data"].update(sizes="many"),
        lambda d: d.pop("sha256"),
    ],
)
def test_a_damaged_document_is_refused(text, damage):
    document = copy.deepcopy(json.loads(text))
    damage(document)
    with pytest.raises(BadLaws):
        laws_from_json(document)


@pytest.mark.parametrize(
    "edit",
    [
        lambda laws: laws["loss_compute"].update(gamma=0.2),
        lambda laws: laws["surface"]["optimum"]["learning_rate"].update(of_params=-0.4),
        lambda laws: laws["data"].update(highest_loss=9.0),
        lambda laws: laws["contours"].pop(),
        lambda laws: laws.pop("run_noise"),
    ],
)
def test_laws_that_were_changed_by_hand_are_refused(text, edit):
    document = json.loads(text)
    edit(document["laws"])
    with pytest.raises(BadLaws, match="sha256: is not that of these laws: the file was changed"):
        laws_from_json(document)


def test_laws_that_another_program_wrote_anew_are_the_same(text):
    def number(found):
        return int(float(found)) if float(found).is_integer() else float(found)

    def reversed_pairs(pairs):
        return dict(reversed(pairs))

    again = json.loads(text, parse_float=number, object_pairs_hook=reversed_pairs)
    assert laws_to_json(laws_from_json(again)) == json.loads(text)


@pytest.mark.parametrize("value", [None, [], "laws", 3, {}])
def test_what_is_no_document_is_refused(value):
    with pytest.raises(BadLaws):
        laws_from_json(value)


def test_fitted_laws_without_the_data_that_answers_are_measured_against_are_refused(text):
    document = json.loads(text)
    document["laws"]["data"] = {}
    with pytest.raises(BadLaws, match=r"laws\.data\.sizes: empty, although laws are fitted"):
        laws_from_json(document)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (-1, "is of an older isoloss, and this one reads {read}: fit the runs again"),
        (
            1,
            "is of a newer isoloss, and this one reads {read}: upgrade isoloss, or fit the runs again",
        ),
    ],
)
def test_laws_of_another_version_name_both_and_what_to_do(text, by, words):
    document = json.loads(text)
    document["version"] = LAWS_VERSION + by
    expected = f"version {LAWS_VERSION + by} {words.format(read=LAWS_VERSION)}"
    with pytest.raises(BadLaws, match=expected):
        laws_from_json(document)


@pytest.mark.parametrize(
    ("law", "name"),
    [
        ("surface", "error"),
        ("rate_at_batch", "error"),
        ("rate_at_batch", "curvature"),
    ],
)
def test_fitted_laws_without_their_errors_are_refused(text, law, name):
    document = json.loads(text)
    document["laws"][law][name] = None
    with pytest.raises(BadLaws, match=rf"laws\.{law}\.{name}: missing"):
        laws_from_json(document)


def square(size, first=1.0):
    return {"shape": [size, size], "data": [first, *[0.0] * (size * size - 1)]}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("loss_compute.gamma", -0.1),
        ("loss_compute.gamma", "NaN"),
        ("loss_compute.irreducible_loss", -1.0),
        ("loss_compute.log_alpha", "Infinity"),
        ("learning_rate.slope", 1e300),
        ("learning_rate.covariance", square(2, -1.0)),
        ("learning_rate.covariance", square(3)),
        ("surface.error.moments", square(2)),
        ("surface.error.moments", square(10, "NaN")),
        ("surface.error.scatter", {"shape": [2, 2], "data": [1.0, 2.0, 2.0, 1.0]}),
        ("surface.curvature", square(2, -1.0)),
        ("surface.residual_rms", -0.1),
        ("surface.flops_per_token_per_param", 0.0),
        ("surface.optimum.learning_rate.of_params", "NaN"),
        ("surface.error.end", {"shape": [1], "data": [0.0]}),
        ("surface.error.exponents", {"shape": [2], "data": [-1.0, 0.0]}),
        ("surface.error.token_curvatures", {"shape": [1], "data": [0.1]}),
        ("rate_at_batch.error.noise", square(2)),
        ("data.sizes", [-1e8, 1e9]),
        ("data.largest_flops", 1e300),
        ("draws.loss_compute.gamma", {"shape": [1], "data": [0.1]}),
        ("sequence_length", 0),
    ],
)
def test_numbers_that_no_fit_gives_are_refused_by_their_field(text, path, value):
    """Answers of such laws would be nonsense, or end in a traceback."""
    document = json.loads(text)
    *parents, name = path.split(".")
    changed = document["laws"]
    for parent in parents:
        changed = changed[parent]
    changed[name] = value
    at = path if len(parents) < 2 or "draws" not in parents else f"draws.{parents[1]}"
    with pytest.raises(BadLaws, match=rf"^laws\.{at}"):
        laws_from_json(document)


def test_a_contour_with_another_number_of_runs_than_values_is_named(text):
    document = json.loads(text)
    document["laws"]["contours"][2]["bounds"] = []
    with pytest.raises(BadLaws, match=r"^laws\.contours\.2\.bounds: must have one value for each"):
        laws_from_json(document)


@pytest.mark.parametrize(
    "law", ["learning_rate", "batch_size", "loss_compute", "surface", "rate_at_batch"]
)
def test_a_law_that_is_neither_fitted_nor_refused_is_named(text, law):
    document = json.loads(text)
    coefficients = {"surface": "optimum", "rate_at_batch": "curve", "loss_compute": "gamma"}
    document["laws"][law][coefficients.get(law, "slope")] = None
    with pytest.raises(BadLaws, match=rf"laws\.{law}\.refusal: missing, although this law is not"):
        laws_from_json(document)


def test_what_a_fit_writes_of_runs_that_leave_an_exponent_open_is_read_again():
    """Its error was larger than any number that is read: ±1,330."""
    whole = {
        r.name: r
        for r in synthetic_runs(Synthetic(), Grid(evaluations=20), np.random.default_rng(0), 0.0)
    }
    flat = replace(whole["n1e+08-lr0-b1"], losses=np.full(20, 3.0))
    short = replace(whole["n1e+08-lr1-b2"], tokens=flat.tokens[:8], losses=np.full(8, 3.0))
    names = ("n1e+08-lr0-b2", "n1e+08-lr2-b2", "n3e+08-lr0-b0", "n3e+08-lr1-b0", "n3e+08-lr2-b0")
    found = fit_laws(
        [flat, short, *(whole[name] for name in names)], FitOptions(bootstrap_samples=12)
    )
    assert found.rate_at_batch.refusal.reason == "TrendIndistinguishableFromNoise"
    document = json.loads(json.dumps(laws_to_json(found)))
    assert laws_to_json(laws_from_json(document)) == document
