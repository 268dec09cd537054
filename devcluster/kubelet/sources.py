"""Environment and volumes of a pod, resolved from the API server as a kubelet resolves them."""

import base64
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
            kind = "secret" if "secretRef" in source else "configMap"
            values = await self._read(kind, source[f"{kind}Ref"])
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
        items = source[kind].get("items", ())
        try:
            values = await self._read(kind, source[kind], *(item["key"] for item in items))
        except NotYet as error:
            raise NotYet("ContainerCreating", f"MountVolume.SetUp failed: {error}") from error
        named = {item["path"]: values[item["key"]] for item in items if item["key"] in values}
        return named if items else values

    async def _value(self, source: Json) -> str | None:
        if "fieldRef" in source:
            return self._field(source["fieldRef"])
        kind = "secret" if "secretKeyRef" in source else "configMap"
        reference = source[f"{kind}KeyRef"]
        values = await self._read(kind, reference, reference["key"])
        return _text(values[reference["key"]]) if reference["key"] in values else None

    async def _read(self, kind: str, reference: Json, *keys: str) -> dict[str, bytes]:
        """Content of a Secret or ConfigMap by key. Raises NotYet if it or a key is missing, unless it is optional."""
        name, plural = reference.get("secretName") or reference["name"], f"{kind.lower()}s"
        problem = ""
        try:
            path = f"/api/v1/namespaces/{self.namespace}/{plural}/{name}"
            found = await self.api.call("GET", path)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            found, problem = {}, f'{kind.lower()} "{name}" not found'
        data = found.get("data") or {}
        binary = data if kind == "secret" else found.get("binaryData") or {}
        values = {key: str(value).encode() for key, value in data.items()}
        values |= {key: base64.b64decode(value) for key, value in binary.items()}
        if missing := [key for key in keys if key not in values]:
            problem = problem or f"{kind.lower()} {self.namespace}/{name} has no key {missing[0]}"
        if problem and not reference.get("optional"):
            raise NotYet("CreateContainerConfigError", problem)
        return values

    def _field(self, reference: Json) -> str:
        path = reference["fieldPath"]
        for name in ("labels", "annotations"):
            if path.startswith(f"metadata.{name}['"):
                key = path.split("'")[1]
                return str(self.pod["metadata"].get(name, {}).get(key, ""))
        section, _, name = path.partition(".")
        # All that a container can be told of its pod's status are addresses.
        return ADDRESS if section == "status" else str(self.pod[section][name])


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
