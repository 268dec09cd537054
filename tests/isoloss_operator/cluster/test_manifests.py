"""A JobRequest becomes one exact Job; templates merge in order; nothing unsafe gets through."""

import contextlib
import difflib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isoloss_contract import records
from isoloss_operator.cluster.client import SWEEP
from isoloss_operator.cluster.manifests import (
    MAX_TASK_BYTES,
    PODS_ANNOTATION,
    Owner,
    job_manifest,
    task_text,
)
from isoloss_operator.cluster.pod_security import CONTAINER_LISTS, HOST_FIELDS, PROBES
from isoloss_operator.cluster.pod_templates import MERGE_KEYS
from isoloss_operator.cluster.template_fields import BadPodTemplate
from isoloss_operator.decide.observation import (
    LABEL_ATTEMPT,
    LABEL_KEY,
    LABEL_KIND,
    LABEL_OWNER_UID,
)
from isoloss_operator.decide.plans import JobRequest
from isoloss_operator.settings import Settings
from tests.support.models import example_model

GOLDEN = Path(__file__).parent / "golden"
OWNER = Owner(SWEEP, "research", "dense", "0b1e0c1e-0000-4000-8000-000000000001")
SETTINGS = Settings(trainer_image="isoloss/trainer:1")
DIGEST = "0123456789abcdef" * 2
PREPARE = records.PrepareTask(
    config=records.PrepareConfig(
        tokenizer="s3://t/t",
        sequence_length=128,
        domains=(records.DomainSource(name="a", uri="s3://c/*", text_field="text"),),
        validation_documents_per_thousand=5,
    ),
    store_uri="s3://s/s",
)


def train_task(**model: Any) -> records.TrainTask:
    point = records.PointConfig(
        data_digest=DIGEST,
        mixture={"general": 0.75, "math": 0.25},
        model={"model_type": "llama", **model},
        optimizer=records.OptimizerConfig(),
        learning_rate=2e-4,
        batch_size=64,
        sequence_length=8192,
    )
    return records.TrainTask(
        point=point,
        tokens=20_000_000_000,
        store_uri="s3://lm-sweeps/dense",
        data_uri=f"s3://lm-sweeps/dense/data/{DIGEST}",
        claimant=records.Claimant(sweep_uid=OWNER.uid, attempt=2),
    )


def request(**changes: Any) -> JobRequest:
    values: dict[str, Any] = {
        "name": "dense-100m-b64-lr2e-4-01234567-a2",
        "kind": "train",
        "attempt": 2,
        "task": train_task(),
        "labels": {
            LABEL_OWNER_UID: OWNER.uid,
            LABEL_KIND: "train",
            LABEL_KEY: DIGEST,
            LABEL_ATTEMPT: "2",
        },
        "secret_names": ("sweep-s3",),
    }
    return JobRequest(**{**values, **changes})


def made(**changes: Any) -> dict[str, Any]:
    """The Job of a request with `changes`."""
    return job_manifest(request(**changes), OWNER, SETTINGS)


def pod_spec(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


def container(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod_spec(job)["containers"][0]
    return found


def trainer_template(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **container}]}}


def test_the_whole_job_is_the_golden_one() -> None:
    """The task's own text is left out: it is the contract's, and read back in the next test."""
    job = made()
    task = next(each for each in container(job)["env"] if each["name"] == "ISOLOSS_TASK")
    task["value"] = "(the task)"
    assert job == json.loads((GOLDEN / "train_job.json").read_text())


def test_no_name_is_compared_in_a_job_without_misspelt_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comparing those that are right as well took four times as long as making the Job."""
    monkeypatch.delattr(difflib, "get_close_matches")
    made()


def test_a_setting_that_a_sweep_does_not_make_is_no_field_of_the_task() -> None:
    """A trainer image of before it refused every task, whether it was set or not. What a result follows from is whole."""
    usual = json.loads(task_text(request()))
    assert usual.keys() == {"kind", "point", "tokens", "store_uri", "data_uri", "claimant"}
    assert usual["point"] == train_task().point.model_dump(mode="json")
    spot = train_task().model_copy(update={"preemptions_per_day": 6})
    assert json.loads(task_text(request(task=spot))) == {**usual, "preemptions_per_day": 6}


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("prepare", PREPARE),
        (
            "evaluate",
            records.EvaluateTask(
                config=records.EvaluateConfig(
                    data_digest=DIGEST,
                    mixture={"a": 1.0},
                    checkpoint="s3://m/m",
                    sequence_length=128,
                    sequences_per_domain=8,
                ),
                store_uri="s3://s/s",
                data_uri="s3://s/s/data/x",
            ),
        ),
    ],
)
def test_the_command_names_the_kind_and_the_task_arrives_whole(kind: Any, task: Any) -> None:
    job = made(kind=kind, task=task)
    assert container(job)["command"] == ["python", "-m", "isoloss_trainer", kind]
    text = next(v["value"] for v in container(job)["env"] if v["name"] == "ISOLOSS_TASK")
    assert type(task).model_validate_json(text) == task


def test_exit_codes_and_disruptions_are_ruled_as_the_design_says() -> None:
    rules = made()["spec"]["podFailurePolicy"]["rules"]
    by_code = {
        code: rule["action"]
        for rule in rules
        for code in rule.get("onExitCodes", {}).get("values", [])
    }
    assert by_code == {75: "Ignore", **dict.fromkeys((42, 43, 44, 45, 46, 47), "FailJob")}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    assert {"action": "Ignore", "onPodConditions": [disrupted]} in rules


@pytest.mark.parametrize(
    ("task", "pods"),
    [
        (PREPARE.model_copy(update={"pods": 12}), 12),
        (train_task().model_copy(update={"nodes": 2}), 2),
    ],
    ids=["a preparation", "a point"],
)
def test_a_task_for_several_pods_is_an_indexed_job(task: Any, pods: int) -> None:
    """The pods that train together know their addresses."""
    kind = "train" if isinstance(task, records.TrainTask) else "prepare"
    alone = made(kind=kind, task=task.model_copy(update={"pods": 1, "nodes": 1}))
    together = made(kind=kind, task=task)
    spec = together["spec"]
    assert "completionMode" not in alone["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == (
        "Indexed",
        pods,
        pods,
    )
    assert ADDRESS not in container(alone)["env"]
    if kind == "prepare":
        assert spec["backoffLimit"] == 0
    else:
        assert ADDRESS in container(together)["env"]
        assert together["metadata"]["annotations"][PODS_ANNOTATION] == str(pods)
        assert PODS_ANNOTATION not in alone["metadata"]["annotations"]


ADDRESS = {
    "name": "ISOLOSS_POD_ADDRESS",
    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
}


def test_a_queue_labels_and_suspends_the_job() -> None:
    job = made(local_queue="research", priority_class="low")
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "low"
    assert "kueue.x-k8s.io/queue-name" not in job["spec"]["template"]["metadata"]["labels"]


def test_later_templates_win_and_lists_merge_by_name() -> None:
    sweep = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "nodeSelector": {"pool": "a100"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "volumes": [{"name": "cache", "emptyDir": {}}],
            **trainer_template(
                image="own:1",
                env=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
                resources={"limits": {"nvidia.com/gpu": "1"}},
                volumeMounts=[{"name": "cache", "mountPath": "/cache"}],
            )["spec"],
        },
    }
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    proxy = trainer_template(env=[{"name": "B", "value": "2"}], resources=limits)
    proxy["spec"]["tolerations"] = []
    job = made(pod_templates=(sweep, proxy))
    assert pod_spec(job)["nodeSelector"] == {"pool": "a100"}
    assert pod_spec(job)["tolerations"] == []
    shared = "shared-memory"  # of eight GPUs
    assert {v["name"] for v in pod_spec(job)["volumes"]} == {"tmp", "scratch", "cache", shared}
    trainer = container(job)
    assert trainer["image"] == "own:1"
    assert trainer["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    values = {v["name"]: v["value"] for v in trainer["env"]}
    assert (values["A"], values["B"]) == ("1", "2")
    assert {m["mountPath"] for m in trainer["volumeMounts"]} == {
        "/tmp", "/scratch", "/cache", "/dev/shm",
    }  # fmt: skip
    assert job["spec"]["template"]["metadata"]["labels"]["team"] == "a"


def on_gpus(count: str, **more: Any) -> dict[str, Any]:
    template = trainer_template(resources={"limits": {"nvidia.com/gpu": count}}, **more)
    return made(pod_templates=(template,))


@pytest.mark.parametrize(
    ("name", "seconds"), [("dense-100m", 120), ("dense-500m", 120), ("moe-500m", 273)]
)
def test_the_grace_period_is_long_enough_for_a_checkpoint(name: str, seconds: int) -> None:
    """Of 16 bytes a parameter, at 200 MB a second, beside half a minute for a micro-batch."""
    task = train_task(**example_model(name))
    job = made(task=task)
    assert pod_spec(job)["terminationGracePeriodSeconds"] == seconds
    assert {"name": records.GRACE_VARIABLE, "value": str(seconds)} in container(job)["env"]
    own = {"spec": {"terminationGracePeriodSeconds": 30}}
    job = made(task=task, pod_templates=(own,))
    assert pod_spec(job)["terminationGracePeriodSeconds"] == 30
    assert {"name": records.GRACE_VARIABLE, "value": "30"} in container(job)["env"]
    with pytest.raises(BadPodTemplate, match="Seconds: 'soon' is not a number of seconds"):
        made(pod_templates=({"spec": {"terminationGracePeriodSeconds": "soon"}},))


def test_pods_with_several_gpus_get_shared_memory_of_their_own() -> None:
    """A container has 64 MiB of it, in which NCCL cannot start on eight GPUs."""
    job = on_gpus("8")
    volume = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    assert volume in pod_spec(job)["volumes"]
    mount = {"name": "shared-memory", "mountPath": "/dev/shm"}
    assert mount in container(job)["volumeMounts"]
    assert volume not in pod_spec(on_gpus("1"))["volumes"]


def test_shared_memory_that_a_template_mounts_stays() -> None:
    own = {"name": "tmp", "mountPath": "/dev/shm"}
    job = on_gpus("8", volumeMounts=[own])
    assert "shared-memory" not in {volume["name"] for volume in pod_spec(job)["volumes"]}
    assert own in container(job)["volumeMounts"]


def test_templates_can_not_change_what_operator_and_trainer_rely_on() -> None:
    template = trainer_template(env=[{"name": "ISOLOSS_TASK", "value": "forged"}])
    template["metadata"] = {"labels": {LABEL_OWNER_UID: "forged"}}
    template["spec"]["restartPolicy"] = "OnFailure"
    job = made(pod_templates=(template,))
    assert pod_spec(job)["restartPolicy"] == "Never"
    assert job["spec"]["template"]["metadata"]["labels"][LABEL_OWNER_UID] == OWNER.uid
    task = next(v for v in container(job)["env"] if v["name"] == "ISOLOSS_TASK")
    assert task["value"] != "forged"


def test_secrets_come_before_the_sources_of_a_template_and_the_tasks_own_comes_last() -> None:
    """Of two sources with a variable the later one wins."""
    own = {"configMapRef": {"name": "settings"}}
    job = made(
        secret_names=("sweep-s3", "models-s3"), pod_templates=(trainer_template(envFrom=[own]),)
    )
    secrets = [{"secretRef": {"name": name}} for name in ("sweep-s3", "models-s3")]
    assert container(job)["envFrom"] == [*secrets, own]
    assert "envFrom" not in container(made(secret_names=()))


def test_merging_leaves_the_templates_as_they_were() -> None:
    template = trainer_template(env=[])
    before = json.dumps(template)
    made(pod_templates=(template,))
    assert json.dumps(template) == before


def test_a_container_that_was_meant_for_the_trainers_is_told_its_name() -> None:
    """A first guess at a podTemplate names it main, and is refused for the security context that it lacks."""
    template = {"spec": {"containers": [{"name": "main", "resources": {}}]}}
    with pytest.raises(
        BadPodTemplate, match="must be named trainer: main would run as a second container"
    ):
        made(pod_templates=(template,))
    template["spec"]["containers"].append({"name": "trainer"})
    with pytest.raises(BadPodTemplate) as refused:
        made(pod_templates=(template,))
    assert "must be named" not in str(refused.value)


RULES = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [75]}}]


def containers(where: str, **container: Any) -> dict[str, Any]:
    return {"spec": {where: [container]}}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"spec": []}, r"podTemplate\.spec: must be an object"),
        ({"spec": {"containers": {}}}, r"podTemplate\.spec\.containers: must be a list"),
        ({"spec": {"containers": [{}]}}, r"containers\[0\]: needs name"),
        ({"spec": {"containers": ["trainer"]}}, r"containers\[0\]: needs name"),
        ({"spec": {"securityContext": "none"}}, r"securityContext: must be an object"),
        ({"spec": {"securityContext": {"sysctls": ["x"]}}}, r"sysctls\[0\]: must be an object"),
        ({"spec": {"securityContext": {"runAsUser": [0]}}}, r"runAsUser: must be a single value"),
        ({"spec": {"volumes": ["x"]}}, r"volumes\[0\]: needs name"),
        (trainer_template(ports=[1]), r"ports\[0\]: must be an object"),
        (trainer_template(envFrom=5), r"envFrom: must be a list"),
        (
            trainer_template(securityContext={"capabilities": {"drop": 5}}),
            r"containers\[trainer\]\.securityContext\.capabilities\.drop: must be a list",
        ),
        ({"metadata": {"labels": "x"}}, r"metadata\.labels: must be an object"),
        # Restarts by a container's own rules, in Kubernetes 1.35 and newer: in place, whatever the exit code says.
        (trainer_template(restartPolicy="Always"), r"containers\[trainer\]"),
        (trainer_template(restartPolicy="OnFailure"), r"\.restartPolicy: "),
        (trainer_template(restartPolicyRules=RULES), "restartPolicyRules: "),
        (containers("containers", name="proxy", restartPolicy="Never"), r"containers\[proxy\]"),
        (containers("initContainers", name="a", restartPolicyRules=RULES), r"initContainers\[a\]"),
        (
            containers("initContainers", name="b", restartPolicy="OnFailure"),
            r"initContainers\[b\]",
        ),
    ],
)
def test_templates_that_are_of_the_wrong_shape_or_restart_containers_name_the_field(
    template: Any, message: str
) -> None:
    with pytest.raises(BadPodTemplate, match=message):
        made(pod_templates=(template,))


def test_a_sidecar_may_restart() -> None:
    settings = Settings(trainer_image="x", enforce_restricted_pods=False)
    sidecar = {"initContainers": [{"name": "proxy", "image": "p", "restartPolicy": "Always"}]}
    assert job_manifest(request(pod_templates=({"spec": sidecar},)), OWNER, settings)


def test_a_label_may_have_the_name_of_a_list() -> None:
    template = {"metadata": {"labels": {"env": "prod"}}, "spec": {"nodeSelector": {"env": "gpu"}}}
    twice = (template, template)
    job = made(pod_templates=twice)
    assert job["spec"]["template"]["metadata"]["labels"]["env"] == "prod"
    assert pod_spec(job)["nodeSelector"] == {"env": "gpu"}


NAMES = {
    *(*MERGE_KEYS, *MERGE_KEYS.values(), *CONTAINER_LISTS, *PROBES, *HOST_FIELDS),
    *("securityContext", "capabilities", "drop", "add", "ports", "hostPort", "sysctls", "type"),
    *("seccompProfile", "appArmorProfile", "seLinuxOptions", "windowsOptions", "lifecycle"),
    *("httpGet", "host", "labels", "annotations", "nodeSelector", "runAsUser", "envFrom"),
}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "x", "ALL", "trainer"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(sorted(NAMES)), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.lists(st.fixed_dictionaries({"spec": JSON, "metadata": JSON}), max_size=2))
@example([trainer_template(lifecycle={"env": 5}), trainer_template(lifecycle={"env": []})])
@example([{"spec": None, "metadata": None}, {"spec": True, "metadata": None}])
def test_whatever_a_template_holds_it_is_refused_by_field_or_makes_a_job(templates: Any) -> None:
    with contextlib.suppress(BadPodTemplate):
        made(pod_templates=tuple(templates))


def test_a_task_that_does_not_fit_into_an_environment_is_refused() -> None:
    task = train_task(padding="x" * MAX_TASK_BYTES)
    with pytest.raises(BadPodTemplate, match="bytes"):
        made(task=task)


def test_a_deadline_is_the_jobs_own() -> None:
    job = made(deadline_seconds=7200)
    assert job["spec"]["activeDeadlineSeconds"] == 7200
    assert "activeDeadlineSeconds" not in made()["spec"]


def test_pod_templates_are_merged_from_the_cluster_to_the_size() -> None:
    def template(name: str) -> dict[str, Any]:
        return {"spec": {"nodeSelector": {name: "1", "last": name}}}

    settings = SETTINGS.model_copy(update={"pod_template": template("cluster")})
    wanted = request(pod_templates=(template("sweep"), template("size")))
    selector = job_manifest(wanted, OWNER, settings)["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"cluster": "1", "sweep": "1", "size": "1", "last": "size"}


def test_an_accelerator_that_a_later_template_sets_to_0_is_not_asked_for() -> None:
    eight, none = (
        trainer_template(resources={"limits": {"nvidia.com/gpu": gpus}}) for gpus in (8, 0)
    )
    job = made(pod_templates=(eight, none))
    assert container(job)["resources"] == {"limits": {"nvidia.com/gpu": 0}}
