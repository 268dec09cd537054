"""A Hugging Face hub on this machine: as much of its HTTP interface as its own client asks for, to
read models and data sets from folders."""

import hashlib
import json
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.http_server import Answer, serving

COMMIT = "c0ffee" + "0" * 34
REVISIONS = ("main", COMMIT)


class _Hub:
    """What it answers to requests about the models and data sets below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, request: BaseHTTPRequestHandler) -> Answer:
        """paths-info is asked with a POST: the entries at the paths of its body."""
        body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
        parts = unquote(urlsplit(request.path).path).strip("/").split("/")
        if parts[0] == "api":
            kind, name, rest = parts[1], "/".join(parts[2:4]), parts[4:]
            paths = json.loads(body)["paths"] if body.startswith(b"{") else []
            return _described(self.root / kind / name, name, rest, paths)
        kind = "datasets" if parts[0] == "datasets" else "models"
        owner, name, _resolve, revision, *file = parts[kind == "datasets" :]
        folder = self.root / kind / owner / name
        return _content(folder, revision, "/".join(file), request.headers.get("Range"))


def _described(folder: Path, name: str, rest: list[str], paths: list[str]) -> Answer:
    action, revision, *below = [*rest, "main", "main"][: max(2, len(rest))]
    if not folder.is_dir():
        return _refused("RepoNotFound")
    if revision not in REVISIONS:
        return _refused("RevisionNotFound")
    if action == "paths-info":
        return _json([_entry(folder, path) for path in paths if (folder / path).exists()])
    if action == "tree":
        start = folder / "/".join(below)
        found = sorted(path.relative_to(folder) for path in start.rglob("*"))
        return _json([_entry(folder, str(path)) for path in found])
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    siblings = [{"rfilename": str(path)} for path in sorted(files)]
    facts = {"id": name, "sha": COMMIT, "private": False, "disabled": False, "gated": False}
    return _json({**facts, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings})


def _content(folder: Path, revision: str, name: str, wanted: str | None) -> Answer:
    path = folder / name
    if revision not in REVISIONS or not path.is_file():
        return _refused("RevisionNotFound" if revision not in REVISIONS else "EntryNotFound")
    content, status = path.read_bytes(), 200
    headers = {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
    if wanted:
        start, _, end = wanted.removeprefix("bytes=").partition("-")
        first, size, status = int(start), len(content), 206
        content = content[first : int(end) + 1 if end else None]
        headers["Content-Range"] = f"bytes {first}-{first + len(content) - 1}/{size}"
    return status, headers, content


def _json(answer: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()


def _refused(code: str) -> Answer:
    return 404, {"X-Error-Code": code, "X-Error-Message": code}, b""


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


def serve_hub(root: Path) -> AbstractContextManager[str]:
    """Serve root/models/OWNER/NAME and root/datasets/OWNER/NAME; gives the endpoint."""
    return serving(_Hub(root))
