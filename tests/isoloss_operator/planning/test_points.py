"""Planned points, their keys and Job names, and specs that do not go with themselves or the corpus."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoloss_contract.ledger import AddedPoint
from isoloss_contract.records import WARMUP_MULTIPLE
from isoloss_operator.decide.jobs import job_name
from isoloss_operator.planning.points import (
    decimal_label,
    plan_points,
    template_digest,
)
from isoloss_operator.planning.specs import InvalidSpec, parse_sweep_spec, sources
from tests.support.builders import domain, manifest, points, sweep_spec
from tests.support.models import example_model


def spec_errors(spec: dict[str, Any], **changes: Any) -> dict[str, str]:
    """What is wrong with a spec, or with it and its corpus, by field."""
    try:
        plan_points(parse_sweep_spec(spec), manifest(**changes))
    except InvalidSpec as error:
        return {found.field: found.message for found in error.errors}
    return {}


def with_model(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    proxy = {"name": "own", "model": {"config": config, **options}, "tokens": 1_000_000}
    return sweep_spec(proxies=[proxy])


OWN = dict(points()[0].proxy.model)


def test_points_come_in_order_with_readable_names() -> None:
    """Proxies, then batch sizes, then learning rates."""
    assert [p.name for p in points()] == [
        "tiny-b8-lr1e-3",
        "tiny-b8-lr2e-3",
        "tiny-b16-lr1e-3",
        "tiny-b16-lr2e-3",
        "small-b8-lr1e-3",
        "small-b8-lr2e-3",
        "small-b16-lr1e-3",
        "small-b16-lr2e-3",
    ]


def test_a_proxys_own_grid_replaces_the_sweeps() -> None:
    """Only for that size."""
    proxies = sweep_spec()["proxies"]
    own = {"batchSizes": [4, 8, 32], "learningRates": ["5e-4", "1e-3"]}
    spec = sweep_spec(proxies=[proxies[0], {**proxies[1], "grid": own}])
    assert [p.proxy.name for p in points(spec)] == ["tiny"] * 4 + ["small"] * 6


def test_growing_the_grid_or_the_tokens_keeps_the_keys_of_what_was_there() -> None:
    """So that only new points run, and longer runs continue."""
    before = {p.name: p.key for p in points()}
    proxies = [{**p, "tokens": p["tokens"] * 3} for p in sweep_spec()["proxies"]]
    grid = {"batchSizes": [4, 8, 16], "learningRates": ["1e-3", "0.002", "4e-3"]}
    changed = {p.name: p.key for p in points(sweep_spec(proxies=proxies, grid=grid))}
    assert before.items() <= changed.items()


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"weightDecay": "0.1"}},
        {"training": {"seed": 1}},
        {"training": {"precision": "Float32"}},
        {"evaluation": {"firstTokens": 10_000, "perDecade": 8}},
    ],
)
def test_whatever_changes_a_result_changes_every_key(changes: dict[str, Any]) -> None:
    """No two different runs share a folder."""
    before, after = points(), points(sweep_spec(**changes))
    assert not {p.key for p in before} & {p.key for p in after}


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism": 9},
        {"suspend": True},
        {"podTemplate": {"spec": {"priority": 1}}},
        {"failurePolicy": {"retriesPerPoint": 0}},
        {"failurePolicy": {"stallSeconds": 600, "attemptDeadlineSeconds": 7200}},
        {"jobs": {"ttlSecondsAfterFinished": {"succeeded": 0}}},
        {"queue": {"localQueueName": "research"}},
        {"training": {"preemptionsPerDay": 6, "checkpointSeconds": 900}},
        {"fit": {"irreducibleLoss": "1.69"}},
    ],
)
def test_whatever_does_not_change_a_result_changes_no_key(changes: dict[str, Any]) -> None:
    """Or everything would be trained again."""
    assert [p.key for p in points()] == [p.key for p in points(sweep_spec(**changes))]


def test_points_are_counted_before_the_corpus_is_prepared() -> None:
    """Without keys; asking for a config is a mistake."""
    planned = plan_points(parse_sweep_spec(sweep_spec()))
    assert len(planned) == 8
    assert {p.key for p in planned} == {""}
    assert planned[0].flops > 0
    with pytest.raises(ValueError, match="not prepared yet"):
        _ = planned[0].config


def test_a_spec_names_what_it_reads_by_the_field_to_blame() -> None:
    fields = {"spec.data.tokenizer", "spec.data.domains[0].uri", "spec.data.domains[1].uri"}
    assert sources(parse_sweep_spec(sweep_spec())).keys() == fields


def test_the_mixture_sums_to_one_and_tokens_end_with_a_whole_step() -> None:
    """82 : 18, and 1,000,000 tokens in steps of 1024."""
    point = points()[0]
    assert point.config.mixture == {"general": 0.82, "math": 0.18}
    assert point.tokens == 1_000_448


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        (
            with_model({**OWN, "hiden_size": 3}),
            "spec.proxies[0].model.config.hiden_size",
            "hidden_size?",
        ),
        (
            with_model({k: v for k, v in OWN.items() if k != "max_position_embeddings"}),
            "spec.proxies[0].model.config.max_position_embeddings",
            "must be set",
        ),
        (
            with_model({**OWN, "max_position_embeddings": 64}),
            "spec.data.sequenceLength",
            "128 is more than the 64 positions of proxy own",
        ),
        (
            with_model({**OWN, "vocab_size": 512}),
            "spec.proxies[0].model.config.vocab_size",
            "a vocabulary of 512 is smaller than the tokenizer's 1024",
        ),
    ],
)
def test_bad_specs_name_the_field_and_the_cure(
    spec: dict[str, Any], field: str, says: str
) -> None:
    """Each error says what to do; nothing crashes."""
    found = spec_errors(spec)
    assert says in found[field]


GRID = {"batchSizes": [8, 16, 32], "learningRates": ["1e-3", "2e-3", "4e-3"]}
APART = {"batchSizes": [8, 16, 32], "learningRates": ["1.1e-3", "2.1e-3", "4.1e-3"]}


def named(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Sizes a, b and so on, each trained longer than the one before; the second on a grid with no point of the others."""
    proxies = [
        {"name": name, "model": model, "tokens": 10**6 * (1 + index)}
        for index, (name, model) in enumerate(zip("abc", models, strict=False))
    ]
    proxies[1]["grid"] = APART
    return sweep_spec(**{"proxies": proxies, "grid": GRID, "design": "Checked", **changes})


TINY, SMALL = {"config": example_model("dense-tiny")}, {"config": example_model("dense-small")}
SEARCH = {"strategy": "Sequential"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (named(TINY, TINY), "a and b are the same model, and one size gives no laws"),
        (named(TINY, TINY), "change one of spec.proxies[0].model, spec.proxies[1].model"),
        (named(TINY, TINY, search=SEARCH), "one size gives no laws"),
        (named(TINY, TINY, search=SEARCH, design="Unchecked"), "may add the same run to both"),
        (named(TINY, TINY, SMALL, search=SEARCH), "b and a are the same model, and a search"),
        (
            named(TINY, SMALL, TINY),
            "their points of batch size 8 and learning rate 0.001 are the same run",
        ),
    ],
    ids=["one size", "fields", "search", "unchecked search", "two of three", "one grid"],
)
def test_two_names_of_one_model_are_refused_before_the_corpus_is_prepared(
    spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidSpec, match=re.escape(says)):
        parse_sweep_spec(spec)


@pytest.mark.parametrize(
    "spec",
    [
        named(TINY, TINY, SMALL),
        named(TINY, TINY, design="Unchecked"),
    ],
    ids=["other sizes as well", "unchecked"],
)
def test_two_names_of_one_model_may_have_grids_apart_beside_another_size(
    spec: dict[str, Any],
) -> None:
    assert plan_points(parse_sweep_spec(spec))


def test_sizes_too_alike_to_show_what_a_size_does_are_refused_before_they_are_trained() -> None:
    alike = named(
        {"config": OWN}, {"config": {**OWN, "intermediate_size": OWN["intermediate_size"] + 2}}
    )
    with pytest.raises(
        InvalidSpec, match=r"spec.proxies: the sizes are too alike .* train another"
    ):
        parse_sweep_spec(alike)
    alike["design"] = "Unchecked"
    assert plan_points(parse_sweep_spec(alike), manifest())


def test_a_domain_without_held_out_text_is_refused() -> None:
    """A loss over no sequences would be no number."""
    domains = (domain("general"), domain("math", validation_tokens=100))
    found = spec_errors(sweep_spec(), domains=domains)
    assert "raise validation.documentsPerThousand" in found["spec.data.domains[1]"]


def warmups(**changes: Any) -> dict[str, int]:
    """Warm-up of each size of the toy sweep, as its points' configurations have it."""
    return {p.proxy.name: p.config.optimizer.warmup_tokens for p in points(sweep_spec(**changes))}


def test_without_a_warm_up_each_size_gets_its_parameters_in_tokens() -> None:
    """Where its first evaluation is late enough."""
    found = warmups(evaluation={"firstTokens": 900_000})
    parameters = {p.proxy.name: p.proxy.parameters.active for p in points()}
    assert found["tiny"] == parameters["tiny"]
    assert found == {name: min(count, 449_999) for name, count in parameters.items()}


def test_the_default_warm_up_leaves_every_evaluation_fitted() -> None:
    """Evaluations count beyond twice the warm-up, and the first may be exactly at firstTokens."""
    assert warmups() == {"tiny": 4_999, "small": 4_999}
    assert WARMUP_MULTIPLE * 4_999 < 10_000


def test_no_warm_up_and_a_given_one_stay_what_they_are() -> None:
    """0 is a number like any other."""
    assert set(warmups(optimizer={"warmupTokens": 0}).values()) == {0}
    assert set(warmups(optimizer={"warmupTokens": 700}).values()) == {700}
    given = points(sweep_spec(optimizer={"warmupTokens": 4_999}))
    assert [p.key for p in given] == [p.key for p in points()]


def test_the_template_digest_covers_template_and_secret() -> None:
    """What a user mends when pods fail: an annotation alone starts the count of failures anew, as the runbook says."""
    annotated = {"metadata": {"annotations": {"corrected": "1"}}}
    templates = (None, {"spec": {"priority": 1}}, annotated)
    specs = [parse_sweep_spec(sweep_spec(podTemplate=each)) for each in templates]
    secret = parse_sweep_spec(sweep_spec(storage={"uri": "s3://bucket/sweeps"}))
    digests = {template_digest(each) for each in (*specs, secret)}
    assert len(digests | {template_digest(specs[0], {"spec": {}})}) == 5


@pytest.mark.parametrize(
    ("value", "label"),
    [(2e-4, "2e-4"), (0.00025, "25e-5"), (0.001, "1e-3"), (1.0, "1e0"), (10.0, "1e1")],
)
def test_numbers_become_dns_labels(value: float, label: str) -> None:
    """No point, no sign before the digits."""
    assert decimal_label(value) == label


@given(
    owner=st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True),
    what=st.from_regex(r"[a-z0-9][-a-z0-9]{0,90}", fullmatch=True),
    attempt=st.integers(1, 100_000),
)
def test_job_names_are_labels_whatever_the_names_they_are_made_of(
    owner: str, what: str, attempt: int
) -> None:
    """At most 63 characters of a DNS label, ending in hash and attempt."""
    name = job_name(owner, what, [owner, what], attempt)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert name.endswith(f"-a{attempt}") or attempt == 1


def test_job_names_tell_sweeps_stores_and_points_apart() -> None:
    """Two sweeps whose names are cut to the same letters still differ."""
    long = "a" * 80
    identities = (["uid1", "s3://a", "k1"], ["uid2", "s3://a", "k1"], ["uid1", "s3://b", "k1"])
    assert len({job_name(long, "tiny-b8-lr1e-3", identity, 1) for identity in identities}) == 3


def added(**changes: Any) -> AddedPoint:
    values = {"proxy": "tiny", "batch_size": 32, "learning_rate": 1e-3, "reason": "GridExtended"}
    return AddedPoint(**{**values, **changes})


def test_points_that_the_ledger_added_follow_those_of_the_spec() -> None:
    """With the tokens and the model of their proxy."""
    spec = parse_sweep_spec(sweep_spec())
    *grid, extension = plan_points(spec, manifest(), (added(),))
    assert tuple(grid) == plan_points(spec, manifest())
    assert extension.name == "tiny-b32-lr1e-3"
    assert extension.config.batch_size == 32
    assert extension.proxy == grid[0].proxy


def test_further_seeds_train_every_point_again_and_keep_the_keys_of_what_was_there() -> None:
    alone = plan_points(parse_sweep_spec(sweep_spec()), manifest())
    spec = parse_sweep_spec(sweep_spec(training={"additionalSeeds": [3, 4]}))
    every = plan_points(spec, manifest())
    assert spec.points == len(every) == 3 * len(alone)
    assert every[::3] == alone
    assert [point.name for point in every[:3]] == [
        alone[0].name,
        f"{alone[0].name}-s3",
        f"{alone[0].name}-s4",
    ]
    assert [point.config.seed for point in every[:3]] == [0, 3, 4]
    assert len({point.key for point in every}) == len(every)


def test_an_addition_that_the_grid_has_by_now_or_whose_proxy_is_gone_is_left_out() -> None:
    spec = parse_sweep_spec(sweep_spec())
    additions = (added(batch_size=8), added(proxy="gone"))
    assert plan_points(spec, manifest(), additions) == plan_points(spec, manifest())
