"""A result file as a trainer writes it, with the fields that it must have and no others."""

from typing import Any

LEAST_RESULT: dict[str, Any] = {
    "contract_version": 1,
    "key": "a" * 32,
    "outcome": "Succeeded",
    "tokens": 8,
    "wanted_tokens": 8,
    "steps": 1,
    "parameters": {"body_active": 1, "body_total": 1, "head": 1, "embedding": 0},
    "bytes_per_token": 4.0,
    "trajectory_sha256": "b" * 64,
    "evaluations": 1,
    "accelerator_seconds": 1.0,
    "accelerators": 1,
    "micro_batch": 1,
    "attempts": 1,
}
