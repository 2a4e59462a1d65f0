# SPDX-License-Identifier: Apache-2.0
"""``weir train --resume`` and ``--config``: the settings of an earlier run, and those that may differ."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from weir.train.checkpoint import FOLDER, CheckpointError, has_checkpoint, latest
from weir.train.config import OF_THE_COMMAND, ConfigError, TrainConfig, in_words
from weir.train.folder import versions
from weir.train.options import OF_A_RUN, SHARED, check_name, in_line


def resumed(folder: Path, given: Mapping[str, Any]) -> tuple[TrainConfig, str]:
    """Return the settings with which a run goes on, and a remark about it.

    Args:
        folder: of the run.
        given: the settings given on the command line.

    Raises:
        ConfigError: there is no such run, none that can go on, or a setting is given that it has already.
    """
    if unwanted := sorted(given.keys() - OF_THE_COMMAND):
        raise ConfigError(f"--resume: {folder} has its own settings: leave out {in_line(unwanted)}")
    path = folder / "config.json"
    saved = _read(path, "--resume")
    before = saved.pop("versions", {})
    try:
        config = TrainConfig.model_validate({**saved, "pcap": None, **given, "resume": folder})
    except ValidationError as error:
        raise ConfigError(f"--resume: {path} has settings that cannot be used:\n{in_words(error)}") from None
    try:
        found = latest(folder / FOLDER / "weir")
        found.check(config.workers)
        if config.reference and has_checkpoint(reference := folder / FOLDER / "gloo"):
            latest(reference).check(config.workers)
    except CheckpointError as error:
        raise ConfigError(f"--resume: {error}") from None
    now = versions()
    other = [
        f"{name} {before.get(name)} before, {now[name]} now" for name in now if before.get(name) != now[name]
    ]
    exact = f": not bit for bit, as versions differ ({'; '.join(other)})" if other else ""
    return config, f"going on after step {found.step} of {folder}{exact}"


def configured(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file, with those of the command line in their place.

    A run that had been resumed or captured is trained from the start, without a capture.

    Args:
        path: A file of settings, YAML or JSON: a user's, or a run's config.json.
        given: Settings on the command line.

    Returns:
        Values by name of the setting.

    Raises:
        ConfigError: The file cannot be read, or something in it is no setting.
    """
    saved = _read(path, "--config")
    written = "versions" in saved
    saved = {
        key.replace("-", "_"): value for key, value in saved.items() if key not in ("versions", "resume")
    }
    for name in saved:
        check_name(name, SHARED.keys() | OF_A_RUN.keys(), f"--config {path}")
    if written:
        saved["pcap"] = None
    if given.keys() & {"model", "method"}:
        saved.pop("name", None)
    return {**saved, **given}


def _read(path: Path, option: str) -> dict[str, Any]:
    """Read a file of settings."""
    from weir.controller.topology import parse_by_name

    try:
        saved = parse_by_name(path.read_bytes(), path)
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    if (
        not isinstance(saved, dict)
        or not all(isinstance(key, str) for key in saved)
        or not isinstance(saved.get("hosts", ""), str)
        or not isinstance(saved.get("versions", {}), dict)
    ):
        raise ConfigError(f"{option}: {path} is not a file of settings: it must be a mapping of their names")
    return saved
