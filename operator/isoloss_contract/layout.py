"""The layout of the store: paths relative to its URI."""

DATA = "data"
"""Folder of all prepared corpora, each in a folder of its prepare key."""


def data_folder(prepare_key: str) -> str:
    """Folder of one prepared corpus."""
    return f"{DATA}/{prepare_key}"


def data_manifest(prepare_key: str) -> str:
    """records.DataManifest, written last: its presence means that the corpus is complete."""
    return f"{data_folder(prepare_key)}/manifest.json"


def corpus_of(prepare_key: str, sweep_uid: str) -> str:
    """records.SweepCorpus of one sweep, in the folder of the preparation that its spec asks for."""
    return f"{data_folder(prepare_key)}/sweeps/{sweep_uid}.json"


POINTS = "points"
"""Folder of all points, shared by every sweep in the store."""


def point_folder(key: str) -> str:
    """Folder of one point."""
    return f"{POINTS}/{key}"


def point_config(key: str) -> str:
    """records.PointConfig, written first."""
    return f"{point_folder(key)}/config.json"


def point_claim(key: str) -> str:
    """Who holds the point now: records.Claimant and a time."""
    return f"{point_folder(key)}/claim.json"


def point_rendezvous(key: str) -> str:
    """Where the first of several pods waits for the others: gone once they have met."""
    return f"{point_folder(key)}/rendezvous.json"


def point_progress(key: str) -> str:
    """records.PointProgress, overwritten while the point trains."""
    return f"{point_folder(key)}/progress.json"


def point_trajectory(key: str) -> str:
    """JSON lines, one records.TrajectoryRow each, up to the newest run's last evaluation: it changes."""
    return f"{point_folder(key)}/trajectory.jsonl"


def finished_trajectory(key: str, sha256: str) -> str:
    """The trajectory that a result names: it never changes, whatever longer runs follow."""
    return f"{point_folder(key)}/trajectories/{sha256}.jsonl"


def point_result(key: str) -> str:
    """records.PointResult, written last: its presence means that the point is finished."""
    return f"{point_folder(key)}/result.json"


def point_checkpoints(key: str) -> str:
    """Folder of training states; the one with the highest step is the newest."""
    return f"{point_folder(key)}/checkpoints"


def evaluation_result(key: str) -> str:
    """records.EvaluationResult of one checkpoint."""
    return f"evaluations/{key}/result.json"


SWEEPS = "sweeps"
"""Folder of all sweeps, each in a folder NAME-UID."""
PREDICTIONS = "predictions"
"""Folder of all predictions, each in a folder NAME-UID."""


def sweep_folder(name: str, uid: str) -> str:
    """Folder of one sweep, written by the operator."""
    return f"{SWEEPS}/{name}-{uid}"


def prediction_folder(name: str, uid: str) -> str:
    """Folder of one prediction, written by the operator, in the store of its sweep."""
    return f"{PREDICTIONS}/{name}-{uid}"


def ledger_in(folder: str) -> str:
    """The ledger of the sweep or prediction in `folder`: see ledger_files.py."""
    return f"{folder}/ledger.jsonl.gz"


def laws_in(folder: str) -> str:
    """The fitted laws of the sweep in `folder`."""
    return f"{folder}/laws.json"


def fit_in(folder: str) -> str:
    """What the newest fit of the sweep in `folder` was given and how it ended, written after its laws."""
    return f"{folder}/fit.json"


def report_in(folder: str) -> str:
    """The page of the sweep or prediction in `folder`."""
    return f"{folder}/report.html"


def page_status_in(folder: str) -> str:
    """The status of the sweep in `folder` that its page shows, written before the page."""
    return f"{folder}/report.json"
