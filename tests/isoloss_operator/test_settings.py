"""The environment becomes a frozen configuration, or a message that names the variable."""

import json

import pytest

from isoloss_contract.store import BadStoreUri
from isoloss_operator.settings import BadSettings, Settings, normal_uri, read_settings

IMAGE = {"ISOLOSS_TRAINER_IMAGE": "trainer:1"}


def settings_for(**allowed: list[str]) -> Settings:
    places = {name.replace("every", "*"): prefixes for name, prefixes in allowed.items()}
    return read_settings({**IMAGE, "ISOLOSS_ALLOWED_STORAGE": json.dumps(places)})


def test_defaults_need_only_an_image() -> None:
    with pytest.raises(BadSettings, match="ISOLOSS_TRAINER_IMAGE"):
        read_settings({})
    settings = read_settings(IMAGE)
    assert settings.namespaces == ()
    assert settings.trainer_command == ("python", "-m", "isoloss_trainer")
    assert settings.lease_namespace


def test_lists_and_json_are_parsed() -> None:
    settings = read_settings(
        {**IMAGE, "ISOLOSS_NAMESPACES": "b, a,b", "ISOLOSS_TRAINER_COMMAND": '["x", "y"]'}
    )
    assert settings.namespaces == ("a", "b")
    assert settings.trainer_command == ("x", "y")


def test_the_digest_is_of_what_shapes_pods_and_the_same_in_every_process() -> None:
    digest = read_settings(IMAGE).template_digest
    assert read_settings({**IMAGE, "ISOLOSS_LOG_LEVEL": "DEBUG"}).template_digest == digest
    settings_given = {"TRAINER_IMAGE": "trainer:2", "POD_TEMPLATE": '{"spec": {"priority": 1}}'}
    for name, value in settings_given.items():
        assert read_settings({**IMAGE, f"ISOLOSS_{name}": value}).template_digest != digest


def test_null_is_the_default_of_what_is_json() -> None:
    """YAML reads null under a key whose content is commented out."""
    names = ("ALLOWED_STORAGE", "POD_TEMPLATE", "TRAINER_COMMAND")
    settings = read_settings({**IMAGE, **{f"ISOLOSS_{name}": "null" for name in names}})
    assert settings.allowed_storage == settings.pod_template == {}
    assert settings.trainer_command == ("python", "-m", "isoloss_trainer")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ISOLOSS_TRAINER_IMAGE", ""),
        ("ISOLOSS_WORKERS", "many"),
        ("ISOLOSS_WORKERS", "0"),
        ("ISOLOSS_LOG_LEVEL", "LOUD"),
        ("ISOLOSS_ALLOWED_STORAGE", "s3://bucket"),
        ("ISOLOSS_ALLOWED_STORAGE", '{"*": ["bucket"]}'),
        ("ISOLOSS_ALLOWED_STORAGE", '{"*": ["s3://bucket/../x"]}'),
    ],
)
def test_a_bad_value_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(BadSettings, match=variable):
        read_settings({**IMAGE, variable: value})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        # The operator would be restarted in the middle of a pass that is within its limit, again and again.
        (
            {"PASS_SECONDS": "900"},
            "STUCK_SECONDS: .*PASS_SECONDS, which is 900: else the operator",
        ),
        ({"PASS_SECONDS": "50", "STUCK_SECONDS": "40"}, "STUCK_SECONDS: .*which is 50"),
        ({"STUCK_SECONDS": "300"}, "STUCK_SECONDS: .*which is 300"),
        # A lease could have two holders.
        ({"LEASE_SECONDS": "5"}, "RENEW_DEADLINE_SECONDS: .*ISOLOSS_LEASE_SECONDS, which is 5"),
        ({"RENEW_DEADLINE_SECONDS": "15"}, "RENEW_DEADLINE_SECONDS: .*which is 15"),
        ({"RENEW_DEADLINE_SECONDS": "2"}, "RENEW_PERIOD_SECONDS: .*DEADLINE_SECONDS, which is 2"),
        ({"RENEW_PERIOD_SECONDS": "11"}, "RENEW_PERIOD_SECONDS: .*which is 10"),
    ],
)
def test_times_that_do_not_go_together_name_their_variables(
    given: dict[str, str], says: str
) -> None:
    with pytest.raises(BadSettings, match=f"ISOLOSS_{says}"):
        read_settings({**IMAGE, **{f"ISOLOSS_{name}": value for name, value in given.items()}})


@pytest.mark.parametrize("value", ["inf", "1e300", "nan", "-inf"])
@pytest.mark.parametrize("name", ["IDLE_SECONDS", "MINIMUM_INTERVAL_SECONDS", "LEASE_SECONDS"])
def test_a_time_is_one_that_a_thread_can_wait_for(name: str, value: str) -> None:
    """A worker's wait for infinity raises, and there is one worker less."""
    with pytest.raises(BadSettings, match=f"ISOLOSS_{name}"):
        read_settings({**IMAGE, f"ISOLOSS_{name}": value})


def test_a_longer_pass_is_allowed_where_the_other_limit_is_longer_too() -> None:
    longer = {"ISOLOSS_PASS_SECONDS": "1000", "ISOLOSS_STUCK_SECONDS": "1800"}
    assert read_settings({**IMAGE, **longer}).pass_seconds == 1000


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("s3://bucket/team", True),
        ("s3://bucket/team/", True),
        ("s3://bucket/team/sweep", True),
        ("s3://bucket//team/./sweep", True),
        ("s3://bucket/team2", False),
        ("s3://bucket", False),
        ("s3://bucket/other", False),
        ("s3://bucket/team/../other", False),
        ("s3://bucket/team%2Fx", False),
        ("s3://bucket/team/%2e%2e/other", False),
        ("s3://bucket/team?versionId=1", False),
        ("s3://bucket/team/*", False),
        ("s3://user@bucket/team", False),
        ("s3://BUCKET/team", False),
        ("gs://bucket/team", False),
        ("file:///bucket/team", False),
        ("http://bucket/team", False),
        ("file:///srv/sweeps/a", True),
        ("file:///srv/sweeps-b", False),
        ("file://host/srv/sweeps/a", False),
    ],
)
def test_a_prefix_allows_whole_path_segments_only(uri: str, allowed: bool) -> None:
    settings = settings_for(every=["s3://bucket/team", "file:///srv/sweeps"])
    assert settings.allows_storage("any", uri) is allowed


def test_a_namespace_has_its_own_prefixes_and_those_of_all() -> None:
    settings = settings_for(research=["s3://research/"], every=["s3://shared"])
    assert settings.allows_storage("research", "s3://research/x")
    assert settings.allows_storage("research", "s3://shared/x")
    assert not settings.allows_storage("other", "s3://research/x")
    assert "s3://shared" in settings.storage_refusal("other")


def test_without_configuration_no_storage_is_allowed() -> None:
    settings = read_settings(IMAGE)
    assert not settings.allows_storage("default", "s3://bucket/x")
    assert "allows no storage for namespace default" in settings.storage_refusal("default")


@pytest.mark.parametrize("uri", ["s3://b/a?x=1", "s3://b/a#x", "s3://b/[a]", "s3://b/a\\b", "x"])
def test_uris_that_can_be_read_in_two_ways_are_refused(uri: str) -> None:
    with pytest.raises(BadStoreUri):
        normal_uri(uri)


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("s3://corpora/general", True),
        ("s3://corpora/general/*.jsonl", True),
        ("s3://corpora/general/2024-*/part-[0-9].parquet", True),
        ("s3://corpora/gen*/a.jsonl", False),
        ("s3://corpora/*.jsonl", False),
        ("s3://corpora*/general/a", False),
        ("s3://corpora/general/../secret/*.jsonl", False),
        ("s3://corpora/general/*/../../secret/a", False),
        ("s3://other/general/*.jsonl", False),
        ("hf://owner/name", False),
        ("owner/name", False),
        ("https://corpora/general/a.jsonl", False),
    ],
)
def test_a_source_is_allowed_where_the_folder_before_its_first_wildcard_is(
    uri: str, allowed: bool
) -> None:
    settings = settings_for(research=["s3://corpora/general"])
    refusal = settings.refused_sources("research", {"spec.data.domains[0].uri": uri})
    assert (refusal == "") is allowed
    if not allowed:
        assert refusal.startswith("spec.data.domains[0].uri: namespace research may only use")


def test_of_several_sources_the_first_that_is_refused_is_named() -> None:
    settings = settings_for(every=["s3://a"])
    sources = {"spec.data.tokenizer": "s3://a/t", "spec.data.domains[1].uri": "s3://b/x"}
    assert settings.refused_sources("any", sources).startswith("spec.data.domains[1].uri: ")
