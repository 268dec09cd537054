#!/bin/sh
# Expected: an S3 object that was deleted in a bucket that keeps versions can be made again with If-None-Match: *, and not replaced
#   with If-Match of its old ETag: S3's documentation says that a delete marker counts as no object, and moto does so.
# Seen: versitygw refuses the first (412) as long as the marker is there, though GET and listing find nothing, and takes the
#   second. Who tries again after 412 tries for ever.
# With: versitygw 1.8.0 (that of the development cluster), moto 5.2.5 with boto3, on 2026-12-01.
# Fails if that is so no more.
set -eu
cd "$(dirname "$0")/.."
uv=$(scripts/find-uv.sh)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$uv" venv --quiet --python 3.11 "$folder/moto"
"$uv" pip install --quiet --python "$folder/moto/bin/python" "moto[s3,server]==5.2.5"
gateway=$(PYTHONPATH="$PWD" "${DEVCLUSTER_PYTHON:-.venv/bin/python}" -c 'from devcluster.build import tool_path; print(tool_path("versitygw"))' | tail -1)
"$folder/moto/bin/python" - "$gateway" "$folder" <<'PROGRAM'
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

gateway, folder = sys.argv[1], Path(sys.argv[2])
for name in ("buckets", "versions", "attributes"):
    (folder / name).mkdir()
COMMANDS = {
    "versitygw": (gateway, "--port", "127.0.0.1:{}", "--quiet", "--region", "us-east-1", "posix", "--sidecar", folder / "attributes",
                  "--versioning-dir", folder / "versions", folder / "buckets"),
    "moto": (folder / "moto/bin/moto_server", "-H", "127.0.0.1", "-p", "{}"),
}
KEYS = {"aws_access_key_id": "root", "aws_secret_access_key": "0123456789abcdef"}


def code(call, **given):
    try:
        call(Bucket="lab-versions", Key="x", **given)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "done"


def seen(name):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "ROOT_ACCESS_KEY_ID": "root", "ROOT_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"]}
    command = [str(word).format(port) for word in COMMANDS[name]]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", **KEYS)
        for _ in range(60):
            try:
                s3.create_bucket(Bucket="lab-versions")
                break
            except BotoCoreError:
                time.sleep(0.5)
        s3.put_bucket_versioning(Bucket="lab-versions", VersioningConfiguration={"Status": "Enabled"})
        tag = s3.put_object(Bucket="lab-versions", Key="x", Body=b"1", IfNoneMatch="*")["ETag"]
        s3.delete_object(Bucket="lab-versions", Key="x")
        found = code(s3.get_object), code(s3.put_object, Body=b"2", IfNoneMatch="*")
        s3.delete_object(Bucket="lab-versions", Key="x")
        return *found, code(s3.put_object, Body=b"3", IfMatch=tag)
    finally:
        server.terminate()
        server.wait()


answers = {name: seen(name) for name in COMMANDS}
for name, (read, made, replaced) in answers.items():
    print(f"{name}: GET {read}, PUT If-None-Match {made}, PUT If-Match {replaced}")
expected = {"versitygw": ("NoSuchKey", "PreconditionFailed", "done"), "moto": ("NoSuchKey", "done", "NoSuchKey")}
sys.exit(answers != expected)
PROGRAM
