"""The watch of Jobs: what it delivers, and that nothing the API server does ends it."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client, config

from devcluster.control_plane import ControlPlane
from isoloss_operator.cluster.client import JOB, Cluster
from isoloss_operator.cluster.job_watch import Deliver, JobWatch
from isoloss_operator.cluster.manifests import OWNER_ANNOTATION
from isoloss_operator.cluster.rbac import NAME
from isoloss_operator.decide.observation import LABEL_OWNER_UID, LABEL_RECORDED
from tests.support.cluster import wait_until
from tests.support.operator_process import User

Json = dict[str, Any]
Seen = list[tuple[str, str]]


def event(kind: str, name: str, version: int) -> str:
    metadata = {
        "name": name,
        "namespace": "research",
        "uid": name,
        "resourceVersion": str(version),
    }
    return json.dumps({"type": kind, "object": {"metadata": metadata}})


def expired() -> str:
    status = {"kind": "Status", "code": 410, "message": "too old resource version"}
    return json.dumps({"type": "ERROR", "object": status})


class ApiServer:
    """Answers the watches in turn, each with a status and lines, then holds the last one open."""

    def __init__(self, *answers: tuple[int, list[str]]) -> None:
        self.versions: list[str] = []
        """Where each watch began; empty: with all there is."""
        self.over = threading.Event()
        self._watches: list[JobWatch] = []
        outer, left = self, list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                outer.versions.append(query.get("resourceVersion", [""])[0])
                status, lines = left.pop(0) if left else (200, [])
                self.send_response(status)
                self.end_headers()
                self.wfile.write("".join(f"{line}\n" for line in lines).encode())
                self.wfile.flush()
                if not left:
                    outer.over.wait(30)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def watch(self, deliver: Deliver, **options: Any) -> None:
        """Begin a watch."""
        host = f"http://127.0.0.1:{self._server.server_port}"
        api_client = client.ApiClient(client.Configuration(host=host))
        watch = JobWatch(api_client, "research", deliver, retry_seconds=(0.05,), **options)
        self._watches.append(watch)
        watch.start()

    def told(self, **options: Any) -> Seen:
        """What a watch that begins now delivers: (type, name)."""
        seen: Seen = []
        self.watch(lambda e, body: seen.append((e["type"], body["metadata"]["name"])), **options)
        return seen

    def close(self) -> None:
        for watch in self._watches:
            watch.stop()
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


Serve = Callable[..., ApiServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[ApiServer] = []

    def start(*answers: tuple[int, list[str]]) -> ApiServer:
        made.append(ApiServer(*answers))
        return made[-1]

    yield start
    for server in made:
        server.close()


def test_a_watch_that_ends_goes_on_where_it_was(serve: Serve) -> None:
    bookmark = event("BOOKMARK", "", 7)
    server = serve((200, [event("ADDED", "a", 5), bookmark]), (200, [event("MODIFIED", "a", 8)]))
    seen = server.told()
    wait_until(lambda: len(seen) == 2, "both events")
    assert seen == [("ADDED", "a"), ("MODIFIED", "a")]
    assert server.versions == ["", "7"]


@pytest.mark.parametrize("words", [(200, [expired()]), (410, ["too old"])])
def test_after_a_gap_every_known_job_counts_as_changed(
    serve: Serve, words: tuple[int, list[str]]
) -> None:
    """One that was deleted meanwhile would not be delivered."""
    first = [event("ADDED", "a", 5), event("ADDED", "gone", 6), event("DELETED", "gone", 7)]
    server = serve((200, first), words, (200, [event("ADDED", "b", 9)]))
    seen = server.told()
    wait_until(lambda: ("ADDED", "b") in seen, "the new watch")
    assert seen[3:] == [("DELETED", "a"), ("ADDED", "b")]
    assert server.versions == ["", "7", ""]


def test_a_watch_that_breaks_among_the_first_jobs_begins_with_all_of_them_again(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """They come by name: the first may be the newest. One may be gone by then."""
    whole = [event("ADDED", "b", 5), event("BOOKMARK", "", 9)]
    server = serve((200, [event("ADDED", "a", 9)]), (200, whole), (200, [event("ADDED", "c", 10)]))
    seen = server.told()
    wait_until(lambda: ("ADDED", "c") in seen, "the third watch")
    assert seen == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "b"), ("ADDED", "c")]
    assert server.versions == ["", "", "9"]
    words = [record.message for record in caplog.records if "begins again in" in record.message]
    assert len(words) == 1  # not at once: a server may have no bookmarks


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
def test_a_change_after_the_first_jobs_says_where_to_go_on_without_a_bookmark(
    serve: Serve, kind: str
) -> None:
    first = [event("ADDED", "a", 5), event(kind, "a", 6), event("ADDED", "b", 7)]
    server = serve((200, first), (200, [event("ADDED", "c", 8)]))
    seen = server.told()
    wait_until(lambda: len(seen) == 4, "the second watch")
    assert server.versions == ["", "7"]


@pytest.mark.parametrize(
    "words",
    [
        (500, ["down"]),
        (403, ["forbidden"]),
        (200, ["no JSON"]),
        (200, ["[]"]),
        (200, ['{"type": "ADDED"}']),
        (200, [json.dumps({"type": "ERROR", "object": {"code": 500, "message": "etcd"}})]),
    ],
)
def test_errors_and_nonsense_are_outlived(serve: Serve, words: tuple[int, list[str]]) -> None:
    first = [event("ADDED", "a", 4), event("BOOKMARK", "", 5)]
    server = serve((200, first), words, words, (200, [event("ADDED", "b", 6)]))
    seen = server.told()
    wait_until(lambda: len(seen) == 2, "the event after the errors")
    assert seen == [("ADDED", "a"), ("ADDED", "b")]
    assert server.versions == ["", "5", "5", "5"]


def test_a_job_that_is_nested_too_deeply_is_delivered_like_any_other(serve: Serve) -> None:
    """The API server takes managedFields of any depth from a tenant."""
    depth = 100_000
    fields = '{"f:x":' * depth + "{}" + "}" * depth
    deep = event("ADDED", "deep", 5).replace('"uid"', f'"managedFields": [{fields}], "uid"')
    seen = serve((200, [deep, event("ADDED", "b", 6)])).told()
    wait_until(lambda: len(seen) == 2, "both events")
    assert seen == [("ADDED", "deep"), ("ADDED", "b")]


def test_a_bug_in_whoever_gets_an_event_does_not_end_the_watch(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def deliver(_: Json, body: Json) -> None:
        seen.append(body["metadata"]["name"])
        if len(seen) == 1:
            raise RuntimeError("a bug")

    serve((200, [event("MODIFIED", "a", 5)]), (200, [event("MODIFIED", "b", 6)])).watch(deliver)
    wait_until(lambda: seen == ["a", "b"], "the event after the bug")
    (words,) = [record for record in caplog.records if "begins again in" in record.message]
    assert words.exc_info is not None


def test_of_a_known_job_nothing_large_is_kept(serve: Serve) -> None:
    """A tenant's Job may carry annotations of 256 KiB, and there may be thousands."""
    owners = {"a": "ScalingSweep/dense", "b": "ScalingSweep/" + "x" * 10_000}
    lines = []
    for name, owner in owners.items():
        added = json.loads(event("ADDED", name, 5))
        annotations = {OWNER_ANNOTATION: owner, "example.com/other": "x" * 10_000}
        added["object"]["metadata"]["annotations"] = annotations
        lines.append(json.dumps(added))
    deleted: dict[str, Json] = {}

    def deliver(event: Json, body: Json) -> None:
        if event["type"] == "DELETED":
            deleted[body["metadata"]["name"]] = body["metadata"]["annotations"]

    serve((200, lines), (410, ["too old"])).watch(deliver)
    wait_until(lambda: len(deleted) == 2, "both to count as changed")
    assert deleted == {"a": {OWNER_ANNOTATION: "ScalingSweep/dense"}, "b": {}}


def test_a_watch_that_is_refused_says_so_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The namespace may be gone for good."""
    refusals = [(403, ["forbidden"])] * 5
    server = serve(*refusals, (200, [event("ADDED", "a", 5)]))
    answers: list[tuple[str, str, int]] = []
    seen = server.told(on_answer=lambda *answer: answers.append(answer))
    wait_until(lambda: seen, "the event after the refusals")
    assert answers == [("research", "jobs", 403)] * 5 + [("research", "jobs", 200)]
    words = [record for record in caplog.records if "begins again in" in record.message]
    assert [record.levelname for record in words].count("WARNING") == 1


def test_a_server_that_hangs_up_at_once_is_not_asked_without_a_pause(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve((200, []), (200, []), (200, [event("ADDED", "a", 5)]))
    seen = server.told()
    wait_until(lambda: seen, "the event after the empty watches")
    words = [record.message for record in caplog.records if "begins again in" in record.message]
    assert len(words) == 2


def test_a_silent_watch_is_begun_again(serve: Serve) -> None:
    server = serve((200, [event("ADDED", "a", 4), event("BOOKMARK", "", 5)]))
    seen = server.told(silent_seconds=0.2)
    wait_until(lambda: len(server.versions) >= 3, "further watches")
    assert seen == [("ADDED", "a")]
    assert set(server.versions[1:]) == {"5"}


@pytest.mark.cluster
def test_of_our_unrecorded_jobs_the_metadata_is_delivered(
    control_plane: ControlPlane, user: User
) -> None:
    """With the operator's own rights in its namespace."""
    kubeconfig = str(control_plane.kubeconfig_for_service_account(user.namespace, NAME))
    cluster = Cluster(config.new_client_from_config(config_file=kubeconfig))
    cluster.create(JOB, user.namespace, job("ours", {LABEL_OWNER_UID: "u"}))
    cluster.create(JOB, user.namespace, job("another", {}))
    bodies: list[tuple[str, Json]] = []
    watch = JobWatch(
        config.new_client_from_config(config_file=kubeconfig),
        user.namespace,
        lambda event, body: bodies.append((event["type"], dict(body))),
    )
    watch.start()
    wait_until(lambda: bodies, "the Job that was there")
    cluster.create(JOB, user.namespace, job("later", {LABEL_OWNER_UID: "u"}))
    wait_until(lambda: "later" in names(bodies), "the new Job")
    change = {"metadata": {"labels": {LABEL_RECORDED: "true"}}}
    cluster.patch(JOB, user.namespace, "ours", change)
    wait_until(lambda: "DELETED" in [kind for kind, _ in bodies], "the Job to leave the watch")
    assert {body["metadata"]["name"] for kind, body in bodies if kind == "DELETED"} == {"ours"}
    assert "another" not in names(bodies)
    assert all("spec" not in body for _, body in bodies)
    assert all(body["metadata"]["resourceVersion"] for _, body in bodies)
    watch.stop()


@pytest.mark.cluster
def test_without_namespaces_the_jobs_of_all_are_delivered(
    control_plane: ControlPlane, user: User
) -> None:
    admin = str(control_plane.admin_kubeconfig)
    seen: Seen = []
    watch = JobWatch(
        config.new_client_from_config(config_file=admin),
        "",
        lambda _, body: seen.append((body["metadata"]["namespace"], body["metadata"]["name"])),
    )
    watch.start()
    cluster = Cluster(config.new_client_from_config(config_file=admin))
    cluster.create(JOB, user.namespace, job("ours", {LABEL_OWNER_UID: "u"}))
    wait_until(lambda: (user.namespace, "ours") in seen, "the Job")
    watch.stop()


def names(bodies: list[tuple[str, Json]]) -> set[str]:
    return {body["metadata"]["name"] for _, body in bodies}


def job(name: str, labels: Json) -> Json:
    """A suspended Job: it never has a pod."""
    container = {"name": "main", "image": "none"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {"suspend": True, "template": template},
    }
