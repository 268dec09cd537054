"""Reads a sweep or a prediction from a cluster, through kubectl.

kubectl knows every way to log in to a cluster, and a user of a cluster has it; a client library would be
a dependency of the library that logs in to some.
"""

import json
import re
import subprocess
from typing import Any

from isoloss.errors import BadInput
from isoloss.status import View

CALL_SECONDS = 30
SWEEP, PREDICTION = "scalingsweep.isoloss.dev", "hyperparamprediction.isoloss.dev"
_GROUP = ".isoloss.dev"
_KINDS = {
    **dict.fromkeys(("scalingsweep", "scalingsweeps", "ssweep"), SWEEP),
    **dict.fromkeys(("hyperparamprediction", "hyperparampredictions", "hpred"), PREDICTION),
}
"""By what kubectl takes for them, without the group, which `kubectl get -o name` prints."""

_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d")
"""How lines of the log of kubectl's own libraries begin."""
_UNREACHABLE = re.compile(
    "connection to the server|unable to connect|no configuration|does not exist$", re.IGNORECASE
)
"""What kubectl says where it has no cluster, or reaches none."""


def resource_name(argument: str) -> tuple[str, str]:
    """Kind, SWEEP or PREDICTION, and name of the resource that KIND/NAME names. Raises BadInput for anything else."""
    kind, separator, name = argument.partition("/")
    kind = kind.removesuffix(_GROUP)
    if not separator or kind not in _KINDS or not name or "/" in name or name.startswith("-"):
        raise BadInput(
            f"{argument}: give the URI of a sweep in the store (s3://, gs:// or file://), "
            "scalingsweep/NAME or hyperparamprediction/NAME"
        )
    return _KINDS[kind], name


def _get(kind: str, name: str, namespace: str, *, may_be_gone: bool = False) -> dict[str, Any]:
    """One object; without a namespace that of the kubeconfig's context. Raises BadInput with kubectl's own message if there is none, unless it `may_be_gone`, or no answer.

    kubectl takes cluster and login from KUBECONFIG.
    """
    place = ("--namespace", namespace) if namespace else ()
    command = [
        *("kubectl", "get", kind, name),
        *(*place, "-o", "json", f"--request-timeout={CALL_SECONDS}s"),
        *(["--ignore-not-found"] if may_be_gone else []),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=2 * CALL_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise BadInput(
            "kubectl is not installed, and only it reads a cluster: install it, or give a sweep's URI in the store"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"{' '.join(command)}: no answer") from error
    if done.returncode:
        lines = done.stderr.splitlines()
        message = " ".join(line for line in lines if not _LOGGED.match(line)).strip()[:400]
        if _UNREACHABLE.search(message):
            raise BadInput(
                f"no cluster ({message}): name one by KUBECONFIG or kubectl config use-context, "
                "or give a sweep's URI in the store"
            )
        raise BadInput(f"{' '.join(command[:4])}: {message}")
    if may_be_gone and not done.stdout.strip():
        return {}
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise BadInput(f"{' '.join(command[:4])}: the answer is not JSON") from error
    return found if isinstance(found, dict) else {}


def read_view(what: str, namespace: str) -> View:
    """The sweep that KIND/NAME names, or the prediction and its sweep, which its answer may outlive. Raises BadInput."""
    kind, name = resource_name(what)
    found = _get(kind, name, namespace)
    if kind == SWEEP:
        return View(found)
    sweep = str(found.get("spec", {}).get("sweepRef", {}).get("name", ""))
    return View(_get(SWEEP, sweep, namespace, may_be_gone=True) if sweep else {}, found)
