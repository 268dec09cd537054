"""A Hugging Face hub on this machine: as much of its HTTP interface as its own client asks for, to
read models and data sets from folders."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
REVISIONS = ("main", COMMIT)


class _Hub(BaseHTTPRequestHandler):
    root: Path
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        """paths-info: the entries at the paths of the body."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._answer(json.loads(body)["paths"] if body.startswith(b"{") else [])

    def _answer(self, paths: list[str] | None = None) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[0] == "api":
            kind, name, rest = parts[1], "/".join(parts[2:4]), parts[4:]
            self._describe(self.root / kind / name, name, rest, paths)
            return
        kind = "datasets" if parts[0] == "datasets" else "models"
        owner, name, _resolve, revision, *file = parts[kind == "datasets" :]
        self._file(self.root / kind / owner / name, revision, "/".join(file))

    def _describe(self, folder: Path, name: str, rest: list[str], paths: list[str] | None) -> None:
        action, revision, *below = [*rest, "main", "main"][: max(2, len(rest))]
        if not folder.is_dir():
            self._refuse("RepoNotFound")
        elif revision not in REVISIONS:
            self._refuse("RevisionNotFound")
        elif action == "paths-info":
            self._json([_entry(folder, path) for path in paths or [] if (folder / path).exists()])
        elif action == "tree":
            start = folder / "/".join(below)
            found = sorted(path.relative_to(folder) for path in start.rglob("*"))
            self._json([_entry(folder, str(path)) for path in found])
        else:
            files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
            siblings = [{"rfilename": str(path)} for path in sorted(files)]
            facts = {
                "id": name,
                "sha": COMMIT,
                "private": False,
                "disabled": False,
                "gated": False,
            }
            self._json({**facts, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings})

    def _file(self, folder: Path, revision: str, name: str) -> None:
        path = folder / name
        if revision not in REVISIONS or not path.is_file():
            self._refuse("RevisionNotFound" if revision not in REVISIONS else "EntryNotFound")
            return
        content = path.read_bytes()
        first, status = 0, 200
        if wanted := self.headers.get("Range"):
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            first, status = int(start), 206
            content = content[first : int(end) + 1 if end else None]
        tag = {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if status == 206:
            last, size = first + len(content) - 1, path.stat().st_size
            tag["Content-Range"] = f"bytes {first}-{last}/{size}"
        self._send(status, content, tag)

    def _json(self, answer: Any) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _refuse(self, code: str) -> None:
        self._send(404, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


def _entry(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": _hex(name.encode()), "size": 0}
    size = path.stat().st_size
    return {"type": "file", "path": name, "oid": _digest(path), "size": size}


def _digest(path: Path) -> str:
    return _hex(path.read_bytes())


def _hex(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def serve_hub(root: Path) -> Iterator[str]:
    """Serve root/models/OWNER/NAME and root/datasets/OWNER/NAME; gives the endpoint."""
    handler = type("Hub", (_Hub,), {"root": root})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
