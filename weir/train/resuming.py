# SPDX-License-Identifier: Apache-2.0
"""``weir train --resume``: the settings of the run that goes on, and what may differ from them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from softp4.native.json_text import parse_object
from weir.train.checkpoint import FOLDER, CheckpointError, has_checkpoint, latest
from weir.train.config import OF_THE_COMMAND, ConfigError, TrainConfig, in_words
from weir.train.folder import versions
from weir.train.options import in_line


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
    try:
        saved = parse_object(path.read_bytes())
        before = saved.pop("versions", {})
        config = TrainConfig.model_validate({**saved, "pcap": None, **given, "resume": folder})
    except OSError as error:
        raise ConfigError(f"--resume: cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigError(f"--resume: {path} has settings that cannot be used:\n{in_words(error)}") from None
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"--resume: {path} is not a run's settings file") from None
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
