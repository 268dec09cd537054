"""Where things lie in the store (DESIGN section 3). Pure: paths relative to the store's URI."""

from __future__ import annotations


def data_folder(prepare_key: str) -> str:
    """Everything of one prepared corpus."""
    return f"data/{prepare_key}"


def data_manifest(prepare_key: str) -> str:
    """contract.DataManifest, written last."""
    return f"{data_folder(prepare_key)}/manifest.json"


POINTS = "points"
"""Folder of all points, shared by every sweep of the store."""


def point_folder(key: str) -> str:
    """Everything of one point."""
    return f"{POINTS}/{key}"


def point_config(key: str) -> str:
    """contract.PointConfig, written first."""
    return f"{point_folder(key)}/config.json"


def point_claim(key: str) -> str:
    """Who works on the point now (contract.Claimant plus a time)."""
    return f"{point_folder(key)}/claim.json"


def point_progress(key: str) -> str:
    """contract.PointProgress, overwritten while the point trains."""
    return f"{point_folder(key)}/progress.json"


def point_trajectory(key: str) -> str:
    """JSON lines, one contract.TrajectoryRow each."""
    return f"{point_folder(key)}/trajectory.jsonl"


def point_result(key: str) -> str:
    """contract.PointResult, written last."""
    return f"{point_folder(key)}/result.json"


def point_checkpoints(key: str) -> str:
    """Training states, newest last by step."""
    return f"{point_folder(key)}/checkpoints"


def evaluation_result(key: str) -> str:
    """contract.EvaluationResult of one checkpoint."""
    return f"evaluations/{key}/result.json"


def sweep_folder(name: str, uid: str) -> str:
    """What the operator keeps of one sweep."""
    return f"sweeps/{name}-{uid}"


def sweep_ledger(name: str, uid: str) -> str:
    """ledger.Ledger: every point's record."""
    return f"{sweep_folder(name, uid)}/ledger.json"


def sweep_laws(name: str, uid: str) -> str:
    """The fitted laws."""
    return f"{sweep_folder(name, uid)}/laws.json"


def sweep_report(name: str, uid: str) -> str:
    """The report page."""
    return f"{sweep_folder(name, uid)}/report.html"
