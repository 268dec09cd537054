"""Writes a trained point as a Hugging Face directory, which transformers loads by itself.

The proxies are transformers' own models, so that every point can be written, dense or with experts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from isoloss_contract import layout
from isoloss_contract.records import DataManifest, PointConfig
from isoloss_contract.store import NotFound, Store, StoreError
from isoloss_trainer.checkpoint import Checkpoints
from isoloss_trainer.hub import directory
from isoloss_trainer.learner import tensors_of
from isoloss_trainer.log import Log
from isoloss_trainer.model import build_network
from isoloss_trainer.termination import BadConfiguration, BadData
from isoloss_trainer.tokenization import FILES, MAX_TOKENIZER_BYTES, load_tokenizer

Weights = Literal["raw", "averaged"]
UNSCALED = ("rope_theta", "partial_rotary_factor")
"""Settings of rope_parameters that were on their own before it."""
OF_LONGROPE = ("rope_type", "original_max_position_embeddings")
"""Those that older versions have elsewhere for Phi-3."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def export(
    store_uri: str, key: str, folder: Path, weights: Weights, tokenizer: str | None, log: Log
) -> str:
    """Write the newest checkpoint of the point `key` to `folder`; returns a sentence about it.

    `tokenizer` is the folder of the sweep's tokenizer, whose files are copied. Raises BadConfiguration
    if `folder` holds something or the tokenizer is another, BadData if there is no such point or
    its training state is gone, StoreUnavailable.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BadConfiguration("FolderNotEmpty", f"{folder} is not empty", "folder")
    store = Store(store_uri)
    try:
        point = store.read_record(layout.point_config(key), PointConfig)
    except NotFound as error:
        raise BadData("PointMissing", f"{store_uri}: no point {key}", "key") from error
    manifest = _manifest(store, point)
    if tokenizer is not None:
        _check_tokenizer(tokenizer, manifest)
    step, network = trained_network(store, point, weights, log)
    _describe(network, manifest)
    network.save_pretrained(folder)
    file = folder / "config.json"
    described = json.loads(file.read_text())
    file.write_text(json.dumps({**described, **older_names(described)}, indent=2) + "\n")
    if tokenizer is not None:
        _copy_tokenizer(tokenizer, folder)
    tokens = step * point.batch_size * point.sequence_length
    return f"{weights} weights of {key} after {tokens} tokens are in {folder}"


def trained_network(
    store: Store, point: PointConfig, weights: Weights, log: Log
) -> tuple[int, Any]:
    """The number of steps, and a network with the weights of the newest checkpoint in float32.

    Raises BadData if there is none, StoreUnavailable.
    """
    network = build_network(point.model, seed=0)
    checkpoints = Checkpoints(store, point.key, keep=1, check=lambda: None, log=log)
    found = checkpoints.restore(tensors_of(network, averaged=weights == "averaged"))
    checkpoints.close()
    if found is None:
        message = (
            f"{store.uri}: point {point.key} has no intact checkpoint; training.releaseCheckpoints removes them "
            "once a point is done"
        )
        raise BadData("NoCheckpoint", message, "key")
    return found.state.step, network


def _describe(network: Any, manifest: DataManifest | None) -> None:
    """Set in the configuration what training had no use for."""
    network.config.use_cache = True
    network.generation_config.use_cache = True
    if manifest is not None:
        network.config.eos_token_id = manifest.end_token
        network.generation_config.eos_token_id = manifest.end_token


def older_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers before version 5 calls settings of a `config` that version 5 wrote.

    It would take its own default for a rope_theta that it does not find, 10,000 for 500,000, without a word.
    """
    found: dict[str, Any] = {}
    rotation = config.get("rope_parameters") or {}
    if "full_attention" in rotation:
        local = rotation.get("sliding_attention") or {}
        found |= {"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {}
        rotation = rotation["full_attention"]
    scaling = {name: value for name, value in rotation.items() if name not in UNSCALED}
    found |= {name: rotation[name] for name in UNSCALED if name in rotation}
    if scaling.get("rope_type", "default") != "default":
        found["rope_scaling"] = scaling
    if scaling.get("rope_type") == "longrope" and config.get("model_type") == "phi3":
        # Its class refuses any but these three; the tokens before scaling stand beside.
        own = {name: scaling[name] for name in scaling if name not in OF_LONGROPE}
        found["rope_scaling"] = {"type": "longrope", **own}
    if "num_local_experts" in config:
        found["num_experts"] = config["num_local_experts"]
    return {name: value for name, value in found.items() if name not in config}


def _manifest(store: Store, point: PointConfig) -> DataManifest | None:
    """Manifest of the corpus that the point was trained on, if it is in the same store."""
    for prepared in store.names(layout.DATA):
        try:
            manifest = store.read_record(layout.data_manifest(prepared), DataManifest)
        except StoreError:
            continue  # not prepared to its end, or of a newer trainer
        if manifest.digest == point.data_digest:
            return manifest
    return None


def _check_tokenizer(uri: str, manifest: DataManifest | None) -> None:
    """It must be the one that the point's corpus was made with."""
    found = load_tokenizer(uri).digest
    if manifest is None:
        message = "the store does not hold the point's corpus, so that its tokenizer is unknown"
        raise BadConfiguration("TokenizerDiffers", message, "tokenizer")
    if found != manifest.tokenizer_digest:
        message = f"{uri} is not the tokenizer of the point's corpus"
        raise BadConfiguration("TokenizerDiffers", message, "tokenizer")


def _copy_tokenizer(uri: str, folder: Path) -> None:
    source = directory(uri, FILES)
    for name in TOKENIZER_FILES:
        try:
            content = source.read(name, max_bytes=MAX_TOKENIZER_BYTES)
        except NotFound:
            continue
        (folder / name).write_bytes(content)
