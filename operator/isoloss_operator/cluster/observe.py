"""Reduces Jobs and pods as the API server returns them to what decisions need. Pure."""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, get_args

from isoloss_contract.records import ExitCode
from isoloss_operator.cluster.accelerators import CONTAINER, accelerators_of
from isoloss_operator.cluster.manifests import INDEXED, PODS_ANNOTATION, QUEUE_LABEL
from isoloss_operator.decide import observation

Object = Mapping[str, Any]
FAR = datetime.max.replace(tzinfo=UTC)
JOB_CONTROLLER = "kubernetes.io/job-controller"
JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"
ENDED = ("Succeeded", "Failed")
OOM_KILLED = "OOMKilled"
COUNT = re.compile(r"[1-9][0-9]{0,8}")
"""More attempts, or pods, than any task has. A label may have 63 digits, and whoever may edit Jobs can write it."""
ORPHAN = "orphan"
OF_KUBERNETES = frozenset({"foregroundDeletion", ORPHAN})
"""Finalizers by which the API server itself keeps an object until what it owns is gone."""
UNSCHEDULABLE = ("Unschedulable", "SchedulingGated")
"""Reasons of a pod that no scheduler binds: no node has room, or somebody's gate keeps it."""
NODE_LOST = "NodeLost"
"""Reason of a Job whose pod will never be heard of again. Kubernetes gives it none."""


def is_owned_by(thing: Object, uid: str) -> bool:
    """Whether `thing` is controlled by the resource with that uid. Names may be reused."""
    references = thing["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == uid and each.get("controller") for each in references)


def is_of_namesake(thing: Object, kind: str, name: str, uid: str) -> bool:
    """Whether `thing` is controlled by a resource of this kind and name with another uid, which is gone therefore."""
    references = thing["metadata"].get("ownerReferences") or ()
    owners = [each for each in references if each.get("controller") and each.get("uid") != uid]
    return any((each.get("kind"), each.get("name")) == (kind, name) for each in owners)


@dataclass(frozen=True)
class PodFacts:
    """A pod, reduced to what its Job's observation needs."""

    job_uid: str
    key: str
    """LABEL_KEY."""
    name: str
    created: str
    has_ended: bool
    is_lost: bool
    """It should have ended long ago, but its node does not say so."""
    is_outlived: bool
    """Its trainer container ended a while ago, another one goes on, and nobody stops the pod."""
    start: datetime | None
    end: datetime | None
    """End of the trainer container; None: not yet or unknown."""
    observed: observation.ObservedPod


def observe_job(job: Object) -> observation.ObservedJob | None:
    """A Job without its pods; None for one without our labels, or with labels that we cannot have given it."""
    metadata, spec, status = job["metadata"], job["spec"], job.get("status") or {}
    labels = metadata.get("labels") or {}
    kind = labels.get(observation.LABEL_KIND, "")
    attempt = labels.get(observation.LABEL_ATTEMPT, "")
    if kind not in get_args(observation.JobKind) or not COUNT.fullmatch(attempt):
        return None
    generation = labels.get(observation.LABEL_GENERATION, "")
    ended = condition(status, "Complete") or condition(status, "Failed")
    together = _together(kind, job)
    return observation.ObservedJob(
        name=metadata["name"],
        uid=metadata["uid"],
        kind=kind,
        key=labels.get(observation.LABEL_KEY, ""),
        attempt=int(attempt),
        store=labels.get(observation.LABEL_STORE, ""),
        created=_time(metadata["creationTimestamp"]),
        started=_time(status["startTime"]) if status.get("startTime") else None,
        suspended=bool(spec.get("suspend")),
        complete=ended.get("type") == "Complete",
        failed=ended.get("type") == "Failed",
        reason=ended.get("reason") or "",
        message=ended.get("message") or "",
        deleting="deletionTimestamp" in metadata,
        unfinished_pods=_counted(status, ended),
        generation=int(generation) if generation.isdecimal() else 0,
        template=labels.get(observation.LABEL_TEMPLATE, ""),
        accelerators=accelerators_of(spec.get("template")),
        ended=_time(ended["lastTransitionTime"]) if ended.get("lastTransitionTime") else None,
        workload=_unqueued(job),
        held_up=_keeps_from_going(metadata)
        or _lacks_pods(metadata["name"], spec, together)
        or _lacks_controller(job),
        indexed=spec.get("completionMode") == INDEXED,
        pods=int(spec.get("parallelism") or 1),
        pods_together=together,
        managed_externally=_is_managed_externally(spec),
    )


def _is_managed_externally(spec: Object) -> bool:
    return spec.get("managedBy") not in (None, JOB_CONTROLLER)


def _lacks_controller(job: Object) -> str:
    """Of a Job in no queue that only another controller would start, and has not."""
    metadata, spec = job["metadata"], job["spec"]
    is_queued = QUEUE_LABEL in (metadata.get("labels") or {})
    if not _is_managed_externally(spec) or is_queued or (job.get("status") or {}).get("startTime"):
        return ""
    return (
        f"spec.managedBy of Job {metadata['name']} was set to {spec['managedBy']}, which has not started it, and the sweep "
        "names no queue: stop the policy that sets it, and delete the Job"
    )


def _unqueued(job: Object) -> observation.ObservedWorkload | None:
    """What stands for the Workload of a suspended Job in no queue: who suspended it is not known."""
    metadata, spec = job["metadata"], job["spec"]
    if not spec.get("suspend") or QUEUE_LABEL in (metadata.get("labels") or {}):
        return None
    return observation.ObservedWorkload(
        name="",
        message=f"spec.suspend of Job {metadata['name']} was set to true, and the sweep names no queue: set it back, or give "
        "the sweep spec.queue if Kueue manages every Job here",
    )


def is_held(metadata: Object) -> bool:
    """Whether a deleted object stays for others' finalizers, so that Kubernetes does not delete yet what it owns, and is not
    to leave that alone either."""
    return bool(_foreign_finalizers(metadata)) and ORPHAN not in metadata["finalizers"]


def _foreign_finalizers(metadata: Object) -> list[str]:
    return [each for each in metadata.get("finalizers") or () if each not in OF_KUBERNETES]


def _keeps_from_going(metadata: Object) -> str:
    """Which finalizers keep a Job that is deleted; empty: none."""
    others = _foreign_finalizers(metadata)
    if "deletionTimestamp" not in metadata or not others:
        return ""
    message = f"Job {metadata['name']} was deleted, but finalizers keep it"
    return f"{message} ({', '.join(others)}): remove them if their owner does not"


def _together(kind: str, job: Object) -> int:
    """How many pods a point takes that train together; 0: each pod can do without the others."""
    spec = job["spec"]
    if kind != "train" or spec.get("completionMode") != INDEXED:
        return 0
    asked = (job["metadata"].get("annotations") or {}).get(PODS_ANNOTATION, "")
    # Jobs of older operators do not say it.
    return int(asked) if COUNT.fullmatch(asked) else max(2, int(spec.get("completions") or 0))


def _lacks_pods(name: str, spec: Object, together: int) -> str:
    pods = spec.get("parallelism")
    if pods == 0:
        return f"spec.parallelism of Job {name} was set to 0, so no pod starts: set it back, or delete the Job"
    if pods is None or pods >= together:
        return ""
    return (
        f"spec.parallelism of Job {name} was set to {pods}, but its {together} pods train together and wait for one another: "
        "stop the policy that annotates Jobs with kueue.x-k8s.io/job-min-parallelism, and delete the Job"
    )


def observe_pod(pod: Object, *, is_lost: bool = False, is_outlived: bool = False) -> PodFacts:
    """A pod of ours."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    start, end = _work(pod)
    return PodFacts(
        job_uid=labels.get(JOB_UID_LABEL, ""),
        key=labels.get(observation.LABEL_KEY, ""),
        name=metadata["name"],
        created=metadata["creationTimestamp"],
        has_ended=has_ended(pod),
        is_lost=is_lost,
        is_outlived=is_outlived,
        start=start,
        end=end,
        observed=_observe_pod(pod),
    )


def with_pods(
    jobs: Iterable[observation.ObservedJob], pods: Iterable[PodFacts]
) -> tuple[observation.ObservedJob, ...]:
    """The Jobs with what their pods say."""
    by_job: dict[str, list[PodFacts]] = {}
    for pod in pods:
        by_job.setdefault(pod.job_uid, []).append(pod)
    return tuple(_with_pods(job, by_job.get(job.uid, [])) for job in jobs)


def orphaned_pods(known: Container[str], pods: Iterable[PodFacts]) -> tuple[PodFacts, ...]:
    """The unfinished pods whose Job is not among the `known` uids."""
    return tuple(
        pod for pod in pods if pod.job_uid not in known and not pod.has_ended and not pod.is_lost
    )


def _with_pods(job: observation.ObservedJob, pods: list[PodFacts]) -> observation.ObservedJob:
    if not pods:
        return job
    alive = sum(not pod.has_ended and not pod.is_lost for pod in pods)
    lost = [pod for pod in pods if pod.is_lost]
    # Of a pod whose node is gone, the API server ends the phase and leaves its container "running".
    at_work = [pod.start for pod in pods if pod.start and not pod.end and not pod.has_ended]
    seen = replace(
        job,
        unfinished_pods=max(alive, job.unfinished_pods - len(lost)),
        pod=_telling(job, pods).observed,
        worked_seconds=sum(
            (pod.end - pod.start).total_seconds() for pod in pods if pod.start and pod.end
        ),
        working_since=max(at_work, default=None),
        pods_at_work=len(at_work),
    )
    if job.is_finished:
        return seen
    # Of an Indexed Job the first pod waits for the lost one, for which there is no replacement.
    if lost and (not alive or job.indexed):
        return _lost(seen, lost[0])
    telling = _telling(job, pods)
    if not telling.is_outlived:
        return seen
    # Kubernetes will not end it while another container than the trainer runs, such as a mesh's proxy: the exit of the
    # trainer ends the attempt.
    succeeded = telling.observed.exit_code == ExitCode.SUCCEEDED
    return replace(
        seen, outlived=True, complete=succeeded, failed=not succeeded, ended=telling.end
    )


def _lost(job: observation.ObservedJob, pod: PodFacts) -> observation.ObservedJob:
    """A Job that Kubernetes will not end: it waits for a pod of which nobody will hear again."""
    place = f" on node {pod.observed.node}" if pod.observed.node else ""
    message = (
        f"pod {pod.name}{place} did not end within its grace period: the node does not answer, "
        "or cannot stop the process"
    )
    return replace(job, failed=True, lost=True, reason=NODE_LOST, message=message)


def _work(pod: Object) -> tuple[datetime | None, datetime | None]:
    """Start and end of a pod's trainer container; None: not yet or unknown."""
    state = _container_status(pod.get("status") or {}).get("state") or {}
    ended = state.get("terminated") or {}
    start = ended.get("startedAt") or (state.get("running") or {}).get("startedAt")
    end = ended.get("finishedAt")
    return _time(start) if start else None, _time(end) if end else None


def _counted(status: Object, ended: Object) -> int:
    """Unfinished pods by the ended Job's own count: pods are listed later than Jobs and may be missing."""
    if not ended:
        return 0
    return int(status.get("active") or 0) + int(status.get("terminating") or 0)


def condition(status: Object, kind: str, value: str = "True") -> Object:
    """The condition of a kind if its status is `value`, else an empty one."""
    wanted = (kind, value)
    listed = status.get("conditions") or ()
    return next((c for c in listed if (c.get("type"), c.get("status")) == wanted), {})


def is_abandoned(pod: Object) -> bool:
    """Whether the trainer container of a pod has ended, another one has not, and nothing is about to end it."""
    state = _container_status(pod.get("status") or {}).get("state") or {}
    going = "deletionTimestamp" in pod["metadata"] or bool(_disruption(pod.get("status") or {}))
    return "terminated" in state and not has_ended(pod) and not going


def has_ended(pod: Object) -> bool:
    """Whether no container of the pod will run again."""
    return (pod.get("status") or {}).get("phase") in ENDED


def _telling(job: observation.ObservedJob, pods: list[PodFacts]) -> PodFacts:
    """The pod that tells how the Job stands: the newest, of an Indexed Job the first one that failed,
    which takes the others with it, or else the newest that has not started, at work, or done."""
    if not job.indexed:
        return _newest(pods)
    fine = (None, ExitCode.SUCCEEDED, ExitCode.INTERRUPTED)
    failed = [pod for pod in pods if pod.observed.exit_code not in fine]
    # A pod that is preempted is replaced, as one that was interrupted.
    failed = [pod for pod in failed if job.is_finished or not pod.observed.disruption]
    if failed:
        return min(failed, key=lambda pod: (not _is_cause(pod), pod.end or FAR, pod.name))
    alive = [pod for pod in pods if not pod.has_ended]
    waiting = [pod for pod in alive if pod.start is None]
    return _newest((waiting if job.kind == "train" else []) or alive or pods)


def _is_cause(pod: PodFacts) -> bool:
    """Whether it says why it failed. Others that train with it crash when it leaves them, in the same second."""
    found = pod.observed
    return bool(found.disruption) or found.reason == OOM_KILLED or found.exit_code in set(ExitCode)


def _newest(pods: list[PodFacts]) -> PodFacts:
    """The newest; of two created within one second the one that still runs."""
    return max(pods, key=lambda pod: (pod.created, not pod.has_ended, pod.name))


def _observe_pod(pod: Object) -> observation.ObservedPod:
    status = pod.get("status") or {}
    container = _container_status(status)
    state = container.get("state") or {}
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    init, failed = ("", ended) if ended else _failed_init_container(status)
    if not waiting:
        waiting = _waiting_init_container(status)
    return observation.ObservedPod(
        phase=status.get("phase") or "Pending",
        exit_code=failed.get("exitCode"),
        init_container=init,
        reason=status.get("reason") or failed.get("reason") or "",
        message=status.get("message") or "",
        termination_message=failed.get("message") or "",
        waiting_reason=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        unschedulable=_unschedulable(status),
        disruption=_disruption(status),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        deleting="deletionTimestamp" in pod["metadata"],
    )


def _container_status(status: Object) -> Object:
    for container in status.get("containerStatuses") or ():
        if container["name"] == CONTAINER:
            return dict(container)
    return {}


def _waiting_init_container(status: Object) -> Object:
    """What an init container waits for: the trainer container only says PodInitializing."""
    for container in status.get("initContainerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") != "PodInitializing":
            return dict(waiting)
    return {}


def _failed_init_container(status: Object) -> tuple[str, Object]:
    """The one that ended a pod before its trainer began, and how; an empty name if there is none."""
    for container in status.get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode") and status.get("phase") == "Failed":
            return container["name"], ended
    return "", {}


def _unschedulable(status: Object) -> str:
    found = condition(status, "PodScheduled", "False")
    if found.get("reason") not in UNSCHEDULABLE:
        return ""
    return str(found.get("message") or found["reason"])


def _disruption(status: Object) -> str:
    found = condition(status, "DisruptionTarget")
    return str(found.get("reason") or "DisruptionTarget") if found else ""


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
