"""What `make demo` and `make demo-down` do, step by step."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from demo import places
from demo.answer import last_screen, verdict_line
from demo.inputs import provide_checkpoint, provide_corpus
from demo.kubectl import Kubectl
from demo.operator_process import OperatorProcess
from demo.report import ARGUMENTS, fetch_report
from demo.watching import DemoFailed, read_view, watch
from devcluster.build import DEFAULT, build, client_tools, kubectl_path
from devcluster.cluster import DevCluster
from devcluster.files import exclusive
from isoloss.status import View
from isoloss_contract.store import Store, StoreError
from isoloss_operator.cluster.rbac import account

CRD_SECONDS = 30

LOG = places.STATE / "demo.log"
"""All that the demo prints, and what it prints on request alone."""

console = Console(highlight=False, soft_wrap=True)


class Demo:
    """The demo of one checkout; all its state is under places.STATE."""

    def __init__(self, *, verbose: bool = False) -> None:
        """Nothing is started yet. `verbose` prints commands, addresses and the resources in full, too."""
        places.STATE.mkdir(exist_ok=True)
        self.output = Output(LOG, verbose)
        self.cluster = DevCluster(places.STATE / "cluster")
        self.operator = OperatorProcess(places.STATE / "operator")
        self.report = places.STATE / "report.html"

    @property
    def kubectl(self) -> Kubectl:
        """As the cluster's administrator, which the demo's user is."""
        return Kubectl(kubectl_path(), self.cluster.control_plane.admin_kubeconfig)

    def up(self) -> None:
        """Run everything up to the validated prediction. Raises RuntimeError (DemoFailed) or OSError."""
        started = time.monotonic()
        with _alone():
            self.output.start_anew()
            store = self._start_store()
            # Nothing needs both before the sweep: each takes ten seconds and more.
            with _beside(lambda: provide_corpus(store, self._scratch(), self.output.say)):
                self._start_cluster()
                self._install()
            self._apply_sweep()
            self.output.step("A checkpoint of a size that the sweep does not train")
            provide_checkpoint(store, self._scratch(), self.output.say)
            self._apply_prediction()
            self._apply_validation()
            self._wait()
            self._tell_details()
            view = read_view(self.kubectl)
            self._fetch_report(view)
        self.output.step(f"The answer, after {_minutes(time.monotonic() - started)}")
        for line in last_screen(
            view,
            report=self.report.relative_to(places.REPOSITORY),
            log=LOG.relative_to(places.REPOSITORY),
            kubectl=self._kubectl_line(),
        ):
            self.output.line(line)

    def down(self) -> None:
        """Stop everything; .demo is kept for the next run."""
        self.operator.stop()
        self.cluster.stop()
        console.print("Stopped. `make demo` resumes from .demo; delete that folder to start over.")

    # ------------------------------------------------------------------------------- the steps

    def _start_store(self) -> Store:
        self.output.step("S3 server, for a corpus and a tokenizer")
        build((*DEFAULT, *client_tools()), self.output.say)
        storage = self.cluster.object_storage
        storage.start()
        os.environ.update(storage.environment())
        storage.create_bucket(places.BUCKET)
        self.output.detail(f"S3 {storage.url}")
        return Store(places.STORE)

    def _start_cluster(self) -> None:
        self.output.step("Kubernetes control plane and a node that runs pods as processes")
        self.cluster.start(self.output.say)
        self.cluster.node().start()
        self.output.detail(f"API server {self.cluster.control_plane.url}")

    def _install(self) -> None:
        self.output.step("CRDs, namespaces, the operator with its own service account")
        kubectl = self.kubectl
        for path in sorted((places.REPOSITORY / "crds").glob("*.yaml")):
            kubectl.apply_file(path)
        kubectl.run(
            "wait", "crd", "--all", "--for=condition=Established", f"--timeout={CRD_SECONDS}s"
        )
        kubectl.apply(*_namespaces())
        kubectl.apply(*account(places.OPERATOR_NAMESPACE, watched=[places.NAMESPACE]))
        storage = self.cluster.object_storage.environment()
        kubectl.apply(_secret(storage))
        kubeconfig = self.cluster.control_plane.kubeconfig_for_service_account(
            places.OPERATOR_NAMESPACE, places.OPERATOR_ACCOUNT
        )
        self.operator.start(kubeconfig, storage)
        who = f"system:serviceaccount:{places.OPERATOR_NAMESPACE}:{places.OPERATOR_ACCOUNT}"
        self.output.detail(f"operator runs as {who}, metrics at {self.operator.url}/metrics")

    def _apply_sweep(self) -> None:
        self.output.step("The sweep")
        self._apply(places.SWEEP_FILE)

    def _apply_prediction(self) -> None:
        self.output.step("The prediction")
        self._apply(places.PREDICTION_FILE)

    def _apply_validation(self) -> None:
        self.output.step("The sweep that checks the answer")
        self._apply(places.VALIDATION_FILE)

    def _apply(self, path: Path) -> None:
        self.output.say(f"kubectl apply --server-side -f {path.relative_to(places.REPOSITORY)}")
        self.kubectl.apply_file(path)

    def _wait(self) -> None:
        self.output.step("Training, fitting, predicting, validating")
        self.operator.wait_for_passes("ScalingSweep", "HyperparamPrediction")
        watch(self.kubectl, self._check_alive)

    def _check_alive(self) -> None:
        dead = [name for name, pid in self.cluster.status().items() if pid is None]
        if dead:
            raise DemoFailed(f"{', '.join(dead)} ended unexpectedly")
        if not self.operator.is_running():
            raise DemoFailed(f"the operator ended unexpectedly:\n{self.operator.log_tail()}")

    # ----------------------------------------------------------------------------- what is shown

    def _tell_details(self) -> None:
        """The resources in full, and what checks the answer."""
        namespace = ("--namespace", places.NAMESPACE)
        for words in (
            ("get", "scalingsweeps", *namespace, "--output=wide"),
            ("describe", "scalingsweep", places.SWEEP, *namespace),
            ("describe", "scalingsweep", places.VALIDATION, *namespace),
            ("get", "hyperparampredictions", *namespace, "--output=wide"),
            ("describe", "hyperparamprediction", places.PREDICTION, *namespace),
        ):
            self.output.detail(
                f"\n$ kubectl {' '.join(words)}\n{self.kubectl.run(*words).rstrip()}"
            )
        view = read_view(self.kubectl)
        self.output.detail(f"\n{verdict_line(view)}")

    def _fetch_report(self, view: View) -> None:
        page = self.report.relative_to(places.REPOSITORY)
        self.output.detail(f"\n$ isoloss {' '.join(ARGUMENTS)} --out={page}")
        fetch_report(self.kubectl, view, self.report)

    def explain_failure(self) -> None:
        """Print the resources' conditions and where the logs are."""
        if self.cluster.control_plane.is_running():
            self._print_conditions()
        for what, path in (
            ("operator", self.operator.log),
            ("pods", self.cluster.directory / "nodes"),
            ("control plane", self.cluster.control_plane.directory / "logs"),
        ):
            console.print(f"  log of the {what}: {path}")

    def _print_conditions(self) -> None:
        try:
            view = read_view(self.kubectl)
        except (OSError, RuntimeError) as error:
            console.print(f"  the API server does not answer: {error}", markup=False)
            return
        for found in (view.sweep, view.prediction or {}):
            for condition in found.get("status", {}).get("conditions", ()):
                words = f"{condition['type']}={condition['status']} {condition['reason']}"
                console.print(f"  {found['kind']} {words}: {condition['message']}", markup=False)

    def _kubectl_line(self) -> str:
        """A command to go on with, empty on a machine without kubectl."""
        if shutil.which("kubectl") is None:
            return ""
        kubeconfig = self.cluster.control_plane.admin_kubeconfig.relative_to(places.REPOSITORY)
        return f"KUBECONFIG={kubeconfig} kubectl get isoloss -n {places.NAMESPACE}"

    def _scratch(self) -> Path:
        """An empty folder for files to upload."""
        folder = places.STATE / "scratch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Raises DemoFailed if another `make demo` of this checkout is running."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive(places.STATE / "up.lock", wait=False))
        except BlockingIOError:
            raise DemoFailed("another `make demo` of this checkout is running") from None
        yield


@contextlib.contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    """Do `work` in a thread during the block. Raises what it raised, unless the block raises first."""
    with ThreadPoolExecutor(1, "beside") as pool:
        working = pool.submit(work)
        yield
        working.result()


def _namespaces() -> list[dict[str, Any]]:
    """The user's namespace admits only restricted pods, as on a hardened cluster."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name, labels in ((places.OPERATOR_NAMESPACE, {}), (places.NAMESPACE, restricted))
    ]


def _secret(environment: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": places.SECRET, "namespace": places.NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": environment}


class Output:
    """Prints steps and lines, and keeps all of it, with the details, in a log."""

    def __init__(self, log: Path, verbose: bool) -> None:
        """Nothing is written yet."""
        self._verbose = verbose
        self._log = log

    def start_anew(self) -> None:
        """Empty the log of the last run."""
        self._log.write_text("")

    def step(self, title: str) -> None:
        """Print the title of a step."""
        console.print(f"[bold green]==>[/] [bold]{title}[/]")
        self._keep(f"==> {title}")

    def say(self, line: str) -> None:
        """Print a line within a step."""
        self.line(f"    {line}")

    def line(self, line: str) -> None:
        """Print a line as it is."""
        console.print(line, markup=False)
        self._keep(line)

    def detail(self, text: str) -> None:
        """Keep a text in the log, and print it if all is to be printed."""
        if self._verbose:
            console.print(text, markup=False)
        self._keep(text)

    def _keep(self, text: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{text}\n")


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def run(what: Callable[[Demo], None], demo: Demo) -> int:
    """Run a command; returns the exit status and explains a failure."""
    try:
        what(demo)
    except KeyboardInterrupt:
        console.print(
            "\nInterrupted. The sweep continues: `make demo` shows it again, "
            "`make demo-down` stops it."
        )
        return 130
    except (RuntimeError, OSError, StoreError) as error:
        console.print("\n[bold red]The demo failed:[/]")
        console.print(str(error), markup=False)
        demo.explain_failure()
        return 1
    return 0
