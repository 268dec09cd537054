"""A trainer that obeys contract.py and takes milliseconds: results of a synthetic loss surface.

Standard library only, so that hundreds of pods start quickly; run as `python -S synthetic_trainer.py
prepare|train|evaluate`. Environment beside the contract's:

SYNTHETIC_SECONDS   how long a point trains (default 0.02), in STEPS steps with a checkpoint after each
SYNTHETIC_FAILURES  JSON list of failures to act out, see `Failure`
SYNTHETIC_LOG       folder or s3:// URI prefix where every start and end of a run leaves a small file
"""

import datetime
import hashlib
import hmac
import http.client
import json
import math
import os
import signal
import sys
import time
import urllib.parse
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]

STEPS = 10
VOCABULARY = 64
SOURCES = "corpus/sources"
"""Object in the store whose content stands for that of the corpus."""
BAD_DATA, INTERRUPTED = 45, 75

IRREDUCIBLE, A, ALPHA, D, BETA = 1.7, 18.0, 0.30, 26.0, 0.28
CURVATURE_LR, CURVATURE_B = 0.10, 0.07
SEED_NOISE = 0.002
"""Nats."""


def optimum(params: float, tokens: float) -> tuple[float, float]:
    """The true best learning rate and batch size (sequences) at a size and a number of tokens."""
    return 0.30 * params**-0.35 * (tokens / 1e6) ** -0.05, 9.0 * (tokens / 1e6) ** 0.35


def synthetic_loss(
    params: float, tokens: float, batch: float, rate: float, seed: int = 0
) -> float:
    """Nats per token: a bowl in (ln LR, ln B) slows the progress in tokens; other seeds differ from seed 0."""
    best_rate, best_batch = optimum(params, tokens)
    x, y = math.log(rate / best_rate), math.log(batch / best_batch)
    useful = tokens / (1 + CURVATURE_LR * x * x + CURVATURE_B * y * y)
    return float(IRREDUCIBLE + A * params**-ALPHA + D * useful**-BETA) + SEED_NOISE * math.sin(
        seed
    )


def tokens_behind(params: float, initial_weights: str | None) -> float:
    """Tokens after which the best run of this size has the loss in a checkpoint's name; 0 without one."""
    if initial_weights is None:
        return 0.0
    reducible = stated_loss(initial_weights) - IRREDUCIBLE - A * params**-ALPHA
    return float((reducible / D) ** (-1 / BETA))


def stated_loss(checkpoint: str) -> float:
    """The loss in the last part of a checkpoint's URI, as in .../loss-2.4. Raises ValueError without one."""
    name = checkpoint.rstrip("/").rpartition("/")[2]
    if not name.startswith("loss-"):
        raise ValueError(f"{checkpoint} is no model")
    return float(name.removeprefix("loss-"))


# ----------------------------------------------------------------------------------------- store


class Store:
    """GET and PUT under a file:// or s3:// URI."""

    def __init__(self, uri: str) -> None:
        self.scheme, _, self.root = uri.rstrip("/").partition("://")

    def put(self, path: str, content: bytes) -> None:
        if self.scheme == "file":
            target = Path(self.root) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
            partial.write_bytes(content)
            partial.rename(target)
            return
        status, answer = self._send("PUT", path, content)
        if status >= 300:
            raise OSError(f"PUT {path}: {status} {answer[:200]!r}")

    def get(self, path: str) -> bytes | None:
        if self.scheme == "file":
            try:
                return (Path(self.root) / path).read_bytes()
            except FileNotFoundError:
                return None
        status, answer = self._send("GET", path, b"")
        if status == 404:
            return None
        if status >= 300:
            raise OSError(f"GET {path}: {status} {answer[:200]!r}")
        return answer

    def _send(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """One request signed with AWS signature version 4."""
        endpoint = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
        region = os.environ.get("AWS_REGION", "us-east-1")
        now = datetime.datetime.now(datetime.UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        target = urllib.parse.quote(f"/{self.root}/{path}")
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": endpoint.netloc, "x-amz-content-sha256": digest, "x-amz-date": stamp}
        names = ";".join(sorted(headers))
        canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = "\n".join((method, target, "", canonical, names, digest))
        scope = f"{day}/{region}/s3/aws4_request"
        hashed = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashed))
        key = b"AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"].encode()
        for part in (*scope.split("/"), text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        credential = f"{os.environ['AWS_ACCESS_KEY_ID']}/{scope}"
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, "
            f"Signature={key.hex()}"
        )
        connection = http.client.HTTPConnection(endpoint.hostname or "", endpoint.port, timeout=20)
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


EVALUATION = {
    "first_tokens": 1_000_000,
    "per_decade": 16,
    "sequences_per_domain": 256,
    "averaging_tokens": 0,
}
OPTIMIZER = {
    "name": "AdamW",
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
    "weight_decay": 0.01,
    "gradient_clip": 1.0,
    "warmup_tokens": 0,
    "schedule": "Constant",
    "second_moment_tokens": 0,
    "weight_decay_tokens": 0,
    "z_loss": 0.0,
}
OTHERS = {
    "seed": 0,
    "precision": "bf16",
    "initial_weights": None,
    "initial_weights_stamp": "",
    "bad_documents": "Skip",
    "sources_stamp": "",
    "checkpoint_stamp": "",
}
"""Defaults of the configurations, which no key has in it."""


def stated(value: Json, defaults: Json) -> Json:
    """What differs from the defaults."""
    return {
        name: each
        for name, each in value.items()
        if name not in defaults or each != defaults[name]
    }


def canonical_key(value: Json) -> str:
    """contract.record_key, without importing it."""
    found = stated(value, OTHERS)
    if "optimizer" in found:
        found["optimizer"] = stated(found["optimizer"], OPTIMIZER)
    if "evaluation" in found:
        found["evaluation"] = stated(found["evaluation"], EVALUATION)
        if not found["evaluation"]:
            del found["evaluation"]
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# ---------------------------------------------------------------------------------------- ending


def end(code: int, name: str, message: str, field: str = "") -> None:
    """Leave a termination message and end with an exit code."""
    words = {"code": name, "message": message, "field": field}
    Path(os.environ["ISOLOSS_TERMINATION_LOG"]).write_text(json.dumps(words))
    sys.exit(code)


def act_out_failures(task: Json) -> None:
    """Fail as SYNTHETIC_FAILURES says.

    Each failure has `exit` (a code, or "kill" for SIGKILL, or "hang" for work without end or ear for
    SIGTERM, or "silent" for success without a result) and any of batch_size, learning_rate, kind, attempts (list), code, message, field to
    match or say, and `after`, the seconds before it happens.
    """
    failure = planned_failure(task, os.environ)
    if failure is None:
        return
    time.sleep(failure.get("after", 0))
    if failure["exit"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if failure["exit"] == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    if failure["exit"] == "silent":
        sys.exit(0)
    words = (failure.get("code", "Synthetic"), failure.get("message", "as synthetic"))
    end(failure["exit"], *words, failure.get("field", ""))


def planned_failure(task: Json, environment: Mapping[str, str]) -> Json | None:
    """The first that is for this task."""
    planned = json.loads(environment.get("SYNTHETIC_FAILURES", "[]"))
    return next((failure for failure in planned if is_meant(failure, task)), None)


def is_meant(failure: Json, task: Json) -> bool:
    """Whether a failure is for this task and attempt."""
    point, attempt = task.get("point", {}), task.get("claimant", {}).get("attempt", 1)
    seen = {"kind": task["kind"], **{k: point.get(k) for k in ("batch_size", "learning_rate")}}
    wanted = {name: failure[name] for name in seen if name in failure}
    fits = all(seen[name] == value for name, value in wanted.items())
    return fits and attempt in failure.get("attempts", [attempt])


def leave_trace(what: str, content: Json) -> None:
    """A file per start and end of a run, for tests that count them."""
    if folder := os.environ.get("SYNTHETIC_LOG"):
        name = f"{what}-{uuid.uuid4().hex[:12]}.json"
        Store(folder if "://" in folder else f"file://{folder}").put(
            name, json.dumps({**content, "at": time.time()}).encode()
        )


# ----------------------------------------------------------------------------------------- tasks


def prepare(task: Json) -> None:
    """The corpus of the sources as they are, and word of it for the sweep that asked."""
    config, uid = task["config"], task.get("sweep_uid", "")
    store = Store(task["store_uri"])
    stamp = sources_stamp(store.get(SOURCES) or b"")
    asked = key = canonical_key(config)
    found = store.get(f"data/{key}/manifest.json")
    if uid and found is not None and stamp_in(found) != stamp:
        key = canonical_key({**config, "sources_stamp": stamp})
        found = store.get(f"data/{key}/manifest.json")
    if found is None:
        write_manifest(store, key, config, stamp, digest_of(asked, stamp))
    if uid:
        reported = {"prepare_key": key, "sources_stamp": stamp}
        store.put(f"data/{asked}/sweeps/{uid}.json", json.dumps(reported).encode())


def stamp_in(manifest: bytes) -> str | None:
    """The stamp of its sources; None of what cannot be read."""
    try:
        return str(json.loads(manifest)["sources_stamp"])
    except (ValueError, KeyError, TypeError):
        return None


def sources_stamp(sources: bytes) -> str:
    """Of what SOURCES has."""
    return hashlib.sha256(sources).hexdigest()[:32]


def digest_of(asked: str, stamp: str) -> str:
    """Of a corpus of these sources."""
    return hashlib.sha256(f"{asked}{stamp}".encode()).hexdigest()


def write_manifest(store: Store, key: str, config: Json, stamp: str, digest: str) -> None:
    """Of a corpus that nobody will read."""
    domains = []
    for domain in config["domains"]:
        shard = {"path": f"{domain['name']}.bin", "tokens": 10**9, "sha256": digest}
        domains.append(
            {
                "name": domain["name"],
                "training": [{**shard, "windows_sha256": digest}],
                "training_documents": 10**6,
                "training_tokens": 10**9,
                "training_bytes": 4 * 10**9,
                "validation": {**shard, "tokens": 10**6},
                "validation_documents": 1000,
                "validation_tokens": 10**6,
                "validation_bytes": 4 * 10**6,
                "validation_lengths": {**shard, "tokens": 10**6},
            }
        )
    manifest = {
        "prepare_key": key,
        "digest": digest,
        "tokenizer_digest": hashlib.sha256(b"tokenizer").hexdigest(),
        "vocabulary_size": VOCABULARY,
        "end_token": 0,
        "sequence_length": config["sequence_length"],
        "sources_stamp": stamp,
        "domains": domains,
    }
    store.put(f"data/{key}/manifest.json", json.dumps(manifest).encode())


def counts(model: Json) -> Json:
    """contract.ParameterCounts of a llama configuration."""
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    width = model.get("head_dim") or hidden // model["num_attention_heads"]
    attention = 2 * hidden * width * (model["num_attention_heads"] + model["num_key_value_heads"])
    body = layers * (attention + 3 * hidden * model["intermediate_size"])
    head = model["vocab_size"] * hidden
    tied = model.get("tie_word_embeddings", False)
    return {
        "body_active": body,
        "body_total": body,
        "head": head,
        "embedding": 0 if tied else head,
        "other": hidden * (2 * layers + 1),
    }


def train(task: Json) -> None:
    """Walk through the trajectory in STEPS steps, resuming where an earlier attempt stopped or ended."""
    point, store = task["point"], Store(task["store_uri"])
    key = canonical_key(point)
    folder = f"points/{key}"
    wanted = tokens_of_whole_steps(task)
    result = store.get(f"{folder}/result.json")
    if result is not None and json.loads(result)["wanted_tokens"] >= wanted:
        return
    start = json.loads(store.get(f"{folder}/checkpoints/latest.json") or b'{"tokens": 0}')[
        "tokens"
    ]
    about = {"key": key, "from": start, **task["claimant"]}
    leave_trace("start", about)
    pause = float(os.environ.get("SYNTHETIC_SECONDS", "0.02")) / STEPS
    for step in range(STEPS):
        tokens = wanted * step // STEPS
        if tokens < start:
            continue
        if interrupted:
            save_checkpoint(store, folder, tokens)
            leave_trace("interrupted", {**about, "tokens": tokens})
            end(INTERRUPTED, "Interrupted", "asked to stop")
        progress = {
            "key": key,
            "claimant": task["claimant"],
            "tokens": tokens,
            "wanted_tokens": wanted,
            "loss": 3.0,
            "tokens_per_second": 1e6,
            "updated_at": "2026-01-01T00:00:00Z",
        }
        if pause > 0.01:
            store.put(f"{folder}/progress.json", json.dumps(progress).encode())
        time.sleep(pause)
    if not task.get("release_checkpoints_when_done"):
        save_checkpoint(store, folder, max(wanted, start))
    write_result(store, folder, key, task, wanted)
    leave_trace("end", {**about, "tokens": max(wanted, start)})


def save_checkpoint(store: Store, folder: str, tokens: int) -> None:
    """A later attempt continues from these tokens."""
    store.put(f"{folder}/checkpoints/latest.json", json.dumps({"tokens": tokens}).encode())


def finish(task: Json, *, diverged: bool = False) -> tuple[int, int] | None:
    """Write a train task's result at once, without training; None where it is there already.

    Else the tokens from which a trainer would have gone on, and those of the result.
    """
    point, store = task["point"], Store(task["store_uri"])
    key = canonical_key(point)
    wanted = tokens_of_whole_steps(task)
    behind = _reached(store.get(f"points/{key}/result.json"))
    if behind >= wanted:
        return None
    write_result(store, f"points/{key}", key, task, wanted, diverged=diverged)
    return behind, wanted


def _reached(result: bytes | None) -> int:
    """Tokens of a stored result; 0 where there is none that can be read."""
    try:
        return int(json.loads(result or b"{}")["wanted_tokens"])
    except (ValueError, KeyError, TypeError):
        return 0


def tokens_of_whole_steps(task: Json) -> int:
    """A train task's tokens, rounded up to a whole step."""
    step_tokens = task["point"]["batch_size"] * task["point"]["sequence_length"]
    return int(-(-task["tokens"] // step_tokens) * step_tokens)


def write_result(
    store: Store, folder: str, key: str, task: Json, wanted: int, *, diverged: bool = False
) -> None:
    """The trajectory, then the result that names it."""
    point = task["point"]
    parameters = counts(point["model"])
    rows = trajectory_rows(point, wanted)
    trajectory = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    store.put(f"{folder}/config.json", json.dumps(point).encode())
    digest = hashlib.sha256(trajectory).hexdigest()
    store.put(f"{folder}/trajectories/{digest}.jsonl", trajectory)
    store.put(f"{folder}/trajectory.jsonl", trajectory)
    result = {
        "key": key,
        "claimant": task["claimant"],
        "outcome": "Diverged" if diverged else "Succeeded",
        "diverged_at_tokens": rows[-1]["tokens"] if diverged else None,
        "tokens": rows[-1]["tokens"],
        "wanted_tokens": wanted,
        "steps": rows[-1]["step"],
        "parameters": parameters,
        "bytes_per_token": 4.0,
        "loss": rows[-1]["loss"],
        "averaged_loss": rows[-1]["averaged_loss"],
        "trajectory_sha256": digest,
        "evaluations": len(rows),
        "accelerator_seconds": 1.0,
        "accelerators": 1,
        "micro_batch": 1,
        "attempts": task["claimant"]["attempt"],
        "versions": {"synthetic": "1"},
    }
    store.put(f"{folder}/result.json", json.dumps(result).encode())


def trajectory_rows(point: Json, wanted: int) -> list[Json]:
    """The evaluations of a run of `wanted` tokens, whole steps, with the last at its end."""
    parameters = counts(point["model"])
    params = parameters["body_active"] + parameters["head"]
    behind = tokens_behind(params, point.get("initial_weights"))
    step_tokens = point["batch_size"] * point["sequence_length"]
    steps = wanted // step_tokens

    def loss_at(tokens: int) -> float:
        place = (point["batch_size"], point["learning_rate"], point["seed"])
        return synthetic_loss(params, tokens + behind, *place)

    rows: list[Json] = []
    for step in sorted({steps, *evaluation_steps(point, steps)}):
        tokens = step * step_tokens
        loss = loss_at(tokens)
        errors = {"loss_standard_error": 1e-3, "averaged_loss_standard_error": 1e-3}
        rows.append(
            {
                "step": step,
                "tokens": tokens,
                "loss": loss + 0.01,
                "averaged_loss": loss,
                **errors,
            }
        )
    return rows


def evaluation_steps(point: Json, steps: int) -> list[int]:
    """contract.evaluation_steps."""
    evaluation, step_tokens = point["evaluation"], point["batch_size"] * point["sequence_length"]
    found: list[int] = []
    index = 0
    while True:
        at = round(evaluation["first_tokens"] * 10 ** (index / evaluation["per_decade"]))
        if at > steps * step_tokens:
            return found
        found.append(-(-at // step_tokens))
        index += 1


def evaluate(task: Json) -> None:
    """The initial loss of a checkpoint: it is written in the last part of its URI, as in .../loss-2.4."""
    config, store = task["config"], Store(task["store_uri"])
    key = canonical_key(config)
    try:
        loss = stated_loss(config["checkpoint"])
    except ValueError as error:
        end(BAD_DATA, "NotACheckpoint", str(error), "spec.checkpoint.uri")
    result = {
        "key": key,
        "loss": loss,
        "loss_standard_error": 0.002,
        "domains": {domain: {"loss": loss} for domain in config["mixture"]},
        "nats_per_byte": loss / 4.0,
        "evaluated_tokens": 10**6,
        "parameters": checkpoint_counts(config["checkpoint"]),
        "model_type": "llama",
        "tokenizer_digest": hashlib.sha256(b"tokenizer").hexdigest(),
        "same_tokenizer": True,
        "accelerator_seconds": 1.0,
    }
    store.put(f"evaluations/{key}/result.json", json.dumps(result).encode())


def checkpoint_counts(checkpoint: str) -> Json:
    """contract.ParameterCounts by the config.json of a checkpoint; ten million where it has none."""
    try:
        config = Store(checkpoint).get("config.json")
    except OSError:
        config = None
    if config is not None:
        return counts(json.loads(config))
    body = 9 * 10**6
    return {"body_active": body, "body_total": body, "head": 10**6, "embedding": 0}


interrupted = False


def _interrupt(*_: object) -> None:
    global interrupted
    interrupted = True


def main() -> None:
    """Run the task of the environment."""
    signal.signal(signal.SIGTERM, _interrupt)
    task = json.loads(os.environ["ISOLOSS_TASK"])
    act_out_failures(task)
    {"prepare": prepare, "train": train, "evaluate": evaluate}[task["kind"]](task)


if __name__ == "__main__":
    main()
