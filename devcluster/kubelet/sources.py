"""Environment and volumes of a pod, resolved from the API server as a kubelet resolves them."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.kubelet.api import NOT_FOUND, Api, ApiError
from devcluster.kubelet.rewriting import Mount, expand, rewrite_path

Json = dict[str, Any]

ADDRESS = "127.0.0.1"


class NotYet(Exception):
    """Something the pod needs is missing; the pod waits and tries again.

    `reason` is the one of the container's waiting state.
    """

    def __init__(self, reason: str, message: str) -> None:
        """Keep the reason with its message."""
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Sources:
    """Reads Secrets and ConfigMaps of the pod's namespace, without a cache."""

    api: Api
    pod: Json

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return str(self.pod["metadata"]["namespace"])

    async def environment(self, container: Json) -> dict[str, str]:
        """The container's own variables, `$(NAME)` expanded, paths not yet rewritten.

        Raises NotYet (CreateContainerConfigError) for a Secret, ConfigMap or key that is missing.
        """
        variables: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            prefix = source.get("prefix", "")
            values = await self._whole(source)
            variables |= {prefix + key: _text(value) for key, value in values.items()}
        for entry in container.get("env", ()):
            if "valueFrom" in entry:
                value = await self._value(entry["valueFrom"])
            else:
                value = expand(entry.get("value", ""), variables)
            if value is not None:
                variables[entry["name"]] = value
        return variables

    async def make_volume(self, volume: Json, folder: Path) -> Path:
        """Make a volume and return its file or folder.

        Raises NotYet (ContainerCreating, as a kubelet reports it) while its source is missing.
        """
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        folder.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            return folder
        for source in volume.get("projected", {}).get("sources", [volume]):
            for path, content in (await self._files(source)).items():
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        return folder

    async def _files(self, source: Json) -> dict[str, bytes]:
        if "downwardAPI" in source:
            items = source["downwardAPI"].get("items", ())
            return {item["path"]: self._field(item["fieldRef"]).encode() for item in items}
        if "serviceAccountToken" in source:
            return {}  # pods get no API credentials here
        kind = "secret" if "secret" in source else "configMap"
        if kind not in source:
            message = f"the process node does not support volumes of this kind: {sorted(source)}"
            raise NotYet("ContainerCreating", message)
        reference = source[kind]
        name = reference.get("secretName") or reference.get("name")
        try:
            values = await self._read(kind, name)
        except NotYet as error:
            if reference.get("optional"):
                return {}
            raise NotYet("ContainerCreating", f"MountVolume.SetUp failed: {error}") from error
        if "items" not in reference:
            return values
        missing = [item["key"] for item in reference["items"] if item["key"] not in values]
        if missing and not reference.get("optional"):
            raise NotYet("ContainerCreating", f"references non-existent {kind} key: {missing[0]}")
        return {i["path"]: values[i["key"]] for i in reference["items"] if i["key"] in values}

    async def _whole(self, source: Json) -> dict[str, bytes]:
        kind, reference = next(
            (name, source[key])
            for name, key in (("secret", "secretRef"), ("configMap", "configMapRef"))
            if key in source
        )
        try:
            return await self._read(kind, reference["name"])
        except NotYet:
            if reference.get("optional"):
                return {}
            raise

    async def _value(self, source: Json) -> str | None:
        if "fieldRef" in source:
            return self._field(source["fieldRef"])
        kind = "secret" if "secretKeyRef" in source else "configMap"
        reference = source[f"{kind}KeyRef"]
        try:
            values = await self._read(kind, reference["name"])
            if reference["key"] not in values:
                name = f"{self.namespace}/{reference['name']}"
                message = f"couldn't find key {reference['key']} in {kind} {name}"
                raise NotYet("CreateContainerConfigError", message)
        except NotYet:
            if reference.get("optional"):
                return None
            raise
        return _text(values[reference["key"]])

    async def _read(self, kind: str, name: str) -> dict[str, bytes]:
        plural = f"{kind.lower()}s"
        try:
            path = f"/api/v1/namespaces/{self.namespace}/{plural}/{name}"
            found = await self.api.call("GET", path)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            message = f'{kind.lower()} "{name}" not found'
            raise NotYet("CreateContainerConfigError", message) from error
        data = found.get("data") or {}
        if kind == "secret":
            return {key: base64.b64decode(value) for key, value in data.items()}
        binary = found.get("binaryData") or {}
        texts = {key: value.encode() for key, value in data.items()}
        return texts | {key: base64.b64decode(value) for key, value in binary.items()}

    def _field(self, reference: Json) -> str:
        path = reference["fieldPath"]
        metadata = self.pod["metadata"]
        for name in ("labels", "annotations"):
            if path.startswith(f"metadata.{name}['"):
                key = path.split("'")[1]
                return str(metadata.get(name, {}).get(key, ""))
        fields: dict[str, Callable[[], str]] = {
            "metadata.name": lambda: metadata["name"],
            "metadata.namespace": lambda: metadata["namespace"],
            "metadata.uid": lambda: metadata["uid"],
            "spec.nodeName": lambda: self.pod["spec"]["nodeName"],
            "spec.serviceAccountName": lambda: self.pod["spec"]["serviceAccountName"],
            "status.podIP": lambda: ADDRESS,
            "status.podIPs": lambda: ADDRESS,
            "status.hostIP": lambda: ADDRESS,
            "status.hostIPs": lambda: ADDRESS,
        }
        return fields[path]()


def mounts_of(container: Json, volumes: dict[str, Path]) -> tuple[Mount, ...]:
    """The container's mounts; a sub-path that does not exist becomes a folder."""
    mounts = []
    for mount in container.get("volumeMounts", ()):
        sub_path = mount.get("subPath", "")
        real = volumes[mount["name"]] / sub_path
        if sub_path and not real.exists():
            real.mkdir(parents=True)
        mounts.append(Mount(mount["mountPath"], real))
    return tuple(mounts)


def process_environment(
    variables: dict[str, str], base: dict[str, str], mounts: tuple[Mount, ...]
) -> dict[str, str]:
    """The environment of the process: the node's variables, then the container's."""
    # Programs use /tmp without having its path in an argument, so it cannot be rewritten there.
    temporary = rewrite_path("/tmp", mounts)
    redirected = {} if temporary == "/tmp" else {"TMPDIR": temporary}
    own = {name: rewrite_path(value, mounts) for name, value in variables.items()}
    return base | redirected | own


def _host_path(source: Json) -> Path:
    path = Path(source["path"])
    kind = source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if kind and not path.exists():
        raise NotYet("ContainerCreating", f"hostPath {path} does not exist")
    return path


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
