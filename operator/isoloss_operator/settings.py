"""The operator's configuration: environment variables, read once."""

import json
import os
import re
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from socket import has_dualstack_ipv6
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from isoloss_contract.records import content_key, in_words
from isoloss_contract.store import BadStoreUri, check_uri

PREFIX = "ISOLOSS_"
POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
EVERY_NAMESPACE = "*"
TERMINATION_GRACE_SECONDS = 120
LONGEST_SECONDS = 1e9
"""No thread can be told to wait for very much longer, nor without end by a number."""


class BadSettings(ValueError):
    """An invalid environment variable; the message names it."""


class Settings(BaseModel):
    """Each field is read from the environment variable `ISOLOSS_<FIELD>`. Durations in seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    namespaces: tuple[str, ...] = ()
    """Comma-separated namespaces to watch; empty: all."""
    allowed_storage: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """JSON: URI prefixes that resources may use, by namespace; "*" applies to all namespaces. They hold for
    stores, corpora, tokenizers and checkpoints."""
    trainer_image: str = Field(min_length=1)
    """Image of the trainer pods."""
    trainer_command: tuple[str, ...] = ("python", "-m", "isoloss_trainer")
    """JSON list; the subcommand (prepare, train, evaluate) is appended."""
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """JSON: partial PodTemplateSpec merged into every pod before the templates of the resources."""
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    """imagePullPolicy of the trainer pods; empty: the cluster's default."""
    enforce_restricted_pods: bool = True
    """Refuse pod templates that violate the restricted Pod Security Standard."""
    termination_grace_seconds: Annotated[int, Field(ge=1)] = TERMINATION_GRACE_SECONDS
    """Time between SIGTERM and SIGKILL, in which a pod writes its checkpoint."""

    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /healthz, /readyz and /metrics; 0: any free port."""
    http_address: str = Field(default_factory=lambda: "::" if has_dualstack_ipv6() else "0.0.0.0")
    """Address of that port; by default all of the machine's, of IPv4 and of IPv6."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    workers: Annotated[int, Field(ge=1, le=64)] = 4
    """Maximum number of resources reconciled at a time; those of one namespace leave one worker to the others."""
    job_writers: Annotated[int, Field(ge=1, le=64)] = 16
    """Maximum number of Jobs created or deleted at a time; those of one namespace leave one writer to the others."""
    api_qps: Annotated[float, Field(ge=0, le=10_000)] = 300.0
    """Maximum number of requests to the API server per second; 0: no limit but the server's own."""
    api_burst: Annotated[int, Field(ge=1, le=10_000)] = 600
    """Requests that may be sent at once after a quiet time."""
    store_readers: Annotated[int, Field(ge=1, le=128)] = 16
    """Maximum number of objects read from the store at a time for one resource."""
    fits: Annotated[int, Field(ge=1, le=16)] = 1
    """Maximum number of fits at a time, each in a process of its own."""
    fit_timeout_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """Time limit of a fit."""
    fit_memory_mib: Annotated[int, Field(ge=256, le=1_048_576)] = 512
    """Memory limit of a fit's process; with the operator's own 300 MiB it must fit into the pod's."""
    pass_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Time limit of one pass: it is then given up and tried again."""
    minimum_interval_seconds: Annotated[float, Field(ge=0)] = 0.25
    """Minimum time between two passes over one resource, however many events arrive."""
    status_interval_seconds: Annotated[float, Field(ge=0)] = 1.0
    """Minimum time between two writes of a status in which only numbers changed."""
    progress_interval_seconds: Annotated[float, Field(ge=0)] = 30.0
    """The same when only the progress of what is training changed."""
    kueue: bool = False
    """Read Kueue's Workloads, to say why a suspended Job is not admitted. Needs the right to list them."""
    pod_lost_seconds: Annotated[float, Field(ge=0)] = 60.0
    """A pod that has not ended this long after its grace period is lost with its node."""
    pod_starting_seconds: Annotated[float, Field(ge=0)] = 60.0
    """A Job whose trainer container has not started by then is said not to start, with what the API server says of it."""
    resync_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time between passes over a resource without events."""
    idle_seconds: Annotated[float, Field(gt=0)] = 600.0
    """The same once a sweep has its laws or a prediction its answer, and nothing is under way."""

    lease_name: str = "isoloss-operator"
    lease_namespace: str = ""
    """Empty: the pod's own namespace."""
    lease_seconds: Annotated[float, Field(gt=0)] = 15.0
    """A leader that does not renew is replaced after this time."""
    renew_deadline_seconds: Annotated[float, Field(gt=0, validate_default=True)] = 10.0
    """A leader that could not renew for this time stops. Less than `lease_seconds`."""
    renew_period_seconds: Annotated[float, Field(gt=0, validate_default=True)] = 2.0
    """Less than `renew_deadline_seconds`."""

    watch_seconds: Annotated[float, Field(ge=1)] = 300.0
    """The API server ends a watch after this time, and it is begun again."""
    watch_stale_seconds: Annotated[float, Field(gt=0)] = 180.0
    """Unhealthy if a watch has not delivered for this time what a live read returned."""
    stuck_seconds: Annotated[float, Field(gt=0, validate_default=True)] = 900.0
    """Unhealthy if one pass, or the wait for a worker, takes longer. More than `pass_seconds`."""
    per_sweep_metrics: bool = True
    """Publish gauges with the namespace and name of each sweep and prediction."""
    identity: str = Field(default_factory=lambda: f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}")
    """holderIdentity of this process in the Lease."""

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(sorted({part.strip() for part in value.split(",")} - {""}))
        return value

    @field_validator("allowed_storage", "pod_template", "trainer_command", mode="before")
    @classmethod
    def _parse_json(cls, value: Any, info: ValidationInfo) -> Any:
        """null, which is what YAML reads under a key without content, is the default."""
        parsed = json.loads(value) if isinstance(value, str) else value
        if parsed is None and info.field_name:
            return cls.model_fields[info.field_name].get_default(call_default_factory=True)
        return parsed

    @field_validator("allowed_storage")
    @classmethod
    def _prefixes_are_uris(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for prefix in (prefix for prefixes in value.values() for prefix in prefixes):
            try:
                normal_uri(prefix)
            except BadStoreUri as error:
                raise ValueError(str(error)) from error
        return value

    @field_validator("*")
    @classmethod
    def _is_finite(cls, value: Any) -> Any:
        if isinstance(value, float) and not value <= LONGEST_SECONDS:
            raise ValueError(f"must be at most {LONGEST_SECONDS:.0f}")
        return value

    @field_validator("renew_deadline_seconds", "renew_period_seconds")
    @classmethod
    def _fits_into_the_lease(cls, value: float, info: ValidationInfo) -> float:
        is_deadline = info.field_name == "renew_deadline_seconds"
        above = "lease_seconds" if is_deadline else "renew_deadline_seconds"
        limit = info.data.get(above, LONGEST_SECONDS)
        if value >= limit:
            raise ValueError(f"must be less than {PREFIX}{above.upper()}, which is {limit:g}")
        return value

    @field_validator("stuck_seconds")
    @classmethod
    def _outlasts_a_pass(cls, value: float, info: ValidationInfo) -> float:
        allowed = info.data.get("pass_seconds", 0.0)
        if allowed >= value:
            raise ValueError(
                f"must be more than {PREFIX}PASS_SECONDS, which is {allowed:g}: else the operator is "
                f"restarted after {value:g} s, in the middle of a pass"
            )
        return value

    @property
    def template_digest(self) -> str:
        """Digest of what this configuration makes of every trainer pod."""
        in_pods = (self.trainer_image, self.trainer_command, self.image_pull_policy)
        return content_key([*in_pods, self.pod_template])[:16]

    def storage_prefixes(self, namespace: str) -> tuple[str, ...]:
        """The URI prefixes that resources of `namespace` may use."""
        own = self.allowed_storage.get(namespace, ())
        return (*own, *self.allowed_storage.get(EVERY_NAMESPACE, ()))

    def every_storage_prefix(self) -> tuple[str, ...]:
        """The URI prefixes of all namespaces."""
        return tuple(
            normal_uri(prefix) for each in self.allowed_storage.values() for prefix in each
        )

    def storage_refusal(self, namespace: str) -> str:
        """The message for a resource that uses storage which its namespace may not."""
        allowed = self.storage_prefixes(namespace)
        if not allowed:
            return f"the operator's configuration allows no storage for namespace {namespace}"
        return f"namespace {namespace} may only use storage under {', '.join(allowed)}"

    def refused_sources(self, namespace: str, sources: Mapping[str, str]) -> str:
        """The message that names the first field whose URI `namespace` may not read; empty: none.

        `sources` are URIs by field. A glob pattern is allowed if the folder before its first
        wildcard is.
        """
        for field, uri in sources.items():
            folder = uri
            if wildcard := re.search(r"[*?\[\]]", uri):
                folder = uri[: wildcard.start()].rpartition("/")[0]
            if ".." in uri.split("/") or not self.allows_storage(namespace, folder):
                return f"{field}: {self.storage_refusal(namespace)}"
        return ""

    def allows_storage(self, namespace: str, uri: str) -> bool:
        """Whether `uri` is at or under a prefix allowed for `namespace`, by whole path segments."""
        try:
            wanted = normal_uri(uri)
        except BadStoreUri:
            return False
        allowed = (normal_uri(prefix) for prefix in self.storage_prefixes(namespace))
        return any(wanted == prefix or wanted.startswith(f"{prefix}/") for prefix in allowed)


def normal_uri(uri: str) -> str:
    """The normal form of a URI, so that prefixes can be compared by whole path segments.

    Raises BadStoreUri if the URI is ambiguous: '..', escapes, globs, a query.
    """
    parts = urlsplit(check_uri(uri))
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise BadStoreUri(f"{uri}: must not have a query, a fragment or user information")
    if parts.scheme == "file" and parts.netloc:
        raise BadStoreUri(f"{uri}: file URIs have three slashes: file:///folder")
    unclear = sorted(set(uri) & set("%*?[]\\\0\n"))
    if unclear:
        raise BadStoreUri(f"{uri}: must not contain {' '.join(map(repr, unclear))}")
    segments = [part for part in parts.path.split("/") if part not in ("", ".")]
    return "/".join([f"{parts.scheme}://{parts.netloc}", *segments])


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment. Raises BadSettings for the first invalid variable."""
    values = {
        name: environment[PREFIX + name.upper()]
        for name in Settings.model_fields
        if PREFIX + name.upper() in environment
    }
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        variable = PREFIX + str(first["loc"][0]).upper()
        raise BadSettings(f"{variable}: {in_words(first)}") from error
    if settings.lease_namespace:
        return settings
    return settings.model_copy(update={"lease_namespace": _own_namespace()})


def _own_namespace() -> str:
    try:
        return POD_NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"
