"""Creates, deletes and expires the Jobs of a plan, many in parallel."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from isoloss_operator.cluster import client
from isoloss_operator.cluster.manifests import Owner, job_manifest
from isoloss_operator.cluster.observe import Object, is_owned_by
from isoloss_operator.cluster.template_fields import BadPodTemplate
from isoloss_operator.decide import observation
from isoloss_operator.decide.plans import JobDeletion, JobExpiry, JobRequest
from isoloss_operator.settings import Settings

Item = TypeVar("Item")
FORBIDDEN = 403
TIME_TO_LIVE: Final = "ttlSecondsAfterFinished"
OURS: Final[Mapping[str, tuple[int | None, str]]] = {
    TIME_TO_LIVE: (None, "which may be deleted before its outcome is recorded"),
    "backoffLimit": (0, "whose pods would fail and start again unseen"),
}
"""Fields of a new Job's spec that an admission policy may set and that can be changed back, with what they would do."""
IDENTIFYING = (
    observation.LABEL_OWNER_UID,
    observation.LABEL_KIND,
    observation.LABEL_KEY,
    observation.LABEL_ATTEMPT,
    observation.LABEL_STORE,
)
"""Labels by which a Job is found again. They are part of its name, so that a namesake has the same."""


class CreateRefused(Exception):
    """The API server refuses this Job, or we do before asking it."""

    expected = True

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        """`may_pass`: the refusal may end by itself, as that of a quota does."""
        super().__init__(message)
        self.may_pass = may_pass


class NotCreated(client.Unavailable):
    """The API server answered that it could not create a Job, as while a webhook for Jobs is down."""


class JobWriter:
    """Writes Jobs of all resources through one pool of threads. Thread-safe.

    No namespace has all of them: an admission webhook of one may take half a minute for each of its Jobs.
    """

    def __init__(
        self,
        cluster: client.Cluster,
        settings: Settings,
        *,
        writers: int,
        on_write: Callable[[str, str], None] = lambda _action, _task: None,
    ) -> None:
        """`on_write` gets the action and LABEL_KIND of every Job created or deleted."""
        self._cluster = cluster
        self._settings = settings
        self._on_write = on_write
        self._pool = ThreadPoolExecutor(max_workers=writers, thread_name_prefix="jobs")
        self._most_of_namespace = max(1, writers - 1)
        self._turns: dict[str, threading.Semaphore] = {}
        """By namespace. The pool is first come, first served: as no plan is in its queue whole, namespaces take turns."""

    def create(self, owner: Owner, requests: Sequence[JobRequest]) -> None:
        """Create Jobs. One that exists already is fine if it is `owner`'s and can be found again.

        Raises CreateRefused, NotCreated or ClusterError at the first failure and skips the rest.
        """
        # Most refusals (template, quota, permissions) hit every Job of a plan: try one first.
        if requests:
            self._create_one(owner, requests[0])
            self._each(owner, requests[1:], lambda request: self._create_one(owner, request))

    def delete(self, owner: Owner, deletions: Iterable[JobDeletion]) -> None:
        """Delete Jobs, unless they were recreated. Raises ClusterError."""

        def delete_one(deletion: JobDeletion) -> None:
            self._cluster.delete(client.JOB, owner.namespace, deletion.name, deletion.uid)
            self._on_write("delete", "")

        self._each(owner, list(deletions), delete_one)

    def expire(self, owner: Owner, expiries: Iterable[JobExpiry]) -> None:
        """Mark finished Jobs as recorded and set their ttlSecondsAfterFinished. Raises ClusterError."""

        def expire_one(expiry: JobExpiry) -> None:
            change = {
                "metadata": {"labels": {observation.LABEL_RECORDED: "true"}},
                "spec": {TIME_TO_LIVE: expiry.seconds},
            }
            try:
                self._cluster.patch(client.JOB, owner.namespace, expiry.name, change)
            except client.NotFound:
                return

        self._each(owner, list(expiries), expire_one)

    def close(self) -> None:
        """Start no further calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _create_one(self, owner: Owner, request: JobRequest) -> None:
        try:
            body = job_manifest(request, owner, self._settings)
            self._keep(self._cluster.create(client.JOB, owner.namespace, body))
        except client.Conflict as error:
            if taken := self._name_taken(owner, request):
                raise CreateRefused(taken) from error
        except BadPodTemplate as error:
            raise CreateRefused(str(error)) from error
        except client.Refused as error:
            # 403: quota, admission policy or missing rights. The rest is about the Job itself.
            raise CreateRefused(str(error), may_pass=error.status == FORBIDDEN) from error
        except client.Unavailable as error:
            if not error.status:
                raise
            raise NotCreated(str(error), error.status) from error
        else:
            self._on_write("create", request.kind)

    def _keep(self, job: Object) -> None:
        """Take back what an admission policy made of OURS. Raises CreateRefused if that cannot be done; the Job is deleted
        then."""
        others = [name for name, (ours, _) in OURS.items() if job["spec"].get(name, ours) != ours]
        if not others:
            return
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        change = {"spec": {field: OURS[field][0] for field in others}}
        kept = self._cluster.patch(client.JOB, namespace, name, change)["spec"]
        if stubborn := [field for field in others if kept.get(field) != OURS[field][0]]:
            self._cluster.delete(client.JOB, namespace, name, job["metadata"]["uid"])
            raise CreateRefused(
                f"an admission policy sets spec.{stubborn[0]} of Job {name}, {OURS[stubborn[0]][1]}: exempt Jobs with the "
                f"label {observation.LABEL_OWNER_UID}"
            )

    def _name_taken(self, owner: Owner, request: JobRequest) -> str:
        """Why the Job of that name cannot be the requested one; empty: it is."""
        fields = f"metadata.name={request.name}"
        existing = self._cluster.list(client.JOB, owner.namespace, fields=fields)
        for job in existing:
            if not is_owned_by(job, owner.uid) and not self._taken_back(owner, job):
                return f"a Job named {request.name} exists and does not belong to {owner.name}: delete it"
            labels = job["metadata"].get("labels") or {}
            if changed := [e for e in IDENTIFYING if labels.get(e) != request.labels.get(e)]:
                # Jobs are listed by these labels: it would be neither seen nor created, for ever.
                return (
                    f"a Job named {request.name} exists and its labels {', '.join(changed)} were changed: "
                    "restore them, or delete it"
                )
            if observation.LABEL_RECORDED in labels:
                # By a ledger that was lost: the next pass sees it and records it again.
                change = {"metadata": {"labels": {observation.LABEL_RECORDED: None}}}
                self._cluster.patch(client.JOB, owner.namespace, request.name, change)
        return ""

    def _taken_back(self, owner: Owner, job: Object) -> bool:
        """Give a Job whose owner reference was taken from it that reference again: it is at work, or has its result. One
        of another owner is left alone."""
        metadata = job["metadata"]
        references = list(metadata.get("ownerReferences") or ())
        is_ours = (metadata.get("labels") or {}).get(observation.LABEL_OWNER_UID) == owner.uid
        if not is_ours or any(each.get("controller") for each in references):
            return False
        change = {"metadata": {"ownerReferences": [*references, owner.reference()]}}
        self._cluster.patch(client.JOB, owner.namespace, metadata["name"], change)
        return True

    def _each(self, owner: Owner, items: Sequence[Item], write: Callable[[Item], None]) -> None:
        """Write all in parallel. Skips the rest after a failure and raises the first."""
        failed = threading.Event()
        turns = self._turns.setdefault(
            owner.namespace, threading.Semaphore(self._most_of_namespace)
        )

        def write_one(item: Item) -> None:
            if failed.is_set():
                return
            try:
                write(item)
            except (CreateRefused, client.ClusterError):
                failed.set()
                raise

        futures = []
        for item in items:
            turns.acquire()
            future = self._pool.submit(copy_context().run, write_one, item)
            future.add_done_callback(lambda _: turns.release())
            futures.append(future)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
