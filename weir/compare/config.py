# SPDX-License-Identifier: Apache-2.0
"""The settings of a comparison, checked before anything starts: the trainings it is made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from weir.methods import find_method, load_plugin, methods, peers
from weir.train.config import ConfigError, TrainConfig, make_config

DEFAULT_METHODS: Final = "dense,omnireduce,dfs,exdyna"
ALL: Final = "all"
PEERS: Final = "peers"
_OF_SPARSIFIERS: Final = ("encoding", "exclude", "lane_bits", "lane_error", "loss_budget", "loss_policy")


@dataclass(frozen=True)
class Comparison:
    """Trainings that differ in method and seed alone.

    trainings: (method, seed) -> how it is trained, as ``weir train`` would be told. out, name: of the folder.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    trainings: Mapping[tuple[str, int], TrainConfig] = field(repr=False)
    out: Path
    name: str

    def __iter__(self) -> Iterator[tuple[str, int, TrainConfig]]:
        """Yield the trainings in their order: all methods with one seed, then with the next."""
        for seed in self.seeds:
            for method in self.methods:
                yield method, seed, self.trainings[method, seed]

    @property
    def any(self) -> TrainConfig:
        """Return one of the trainings, for what they have in common."""
        return next(iter(self.trainings.values()))

    def as_json(self) -> dict[str, Any]:
        """Return the settings for config.json and compare.json."""
        first = self.seeds[0]
        return {
            "methods": {
                m: self.trainings[m, first].model_dump(mode="json", exclude={"seed"}) for m in self.methods
            },
            "seeds": list(self.seeds),
        }


def make_comparison(
    wanted: str, *, seeds: int, out: Path = Path("runs"), name: str | None = None, **given: Any
) -> Comparison:
    """Return the comparison of ``wanted``, names with commas between; "all" and "peers" stand for several.

    seeds: that many trainings of each method, with seeds 1, 2, .... given: settings of ``make_config``; those
    that a method has no use for are left out for it. Raises ConfigError.
    """
    try:
        for path in given.get("plugin") or ():
            load_plugin(path)
    except ValueError as error:
        raise ConfigError(f"--plugin: {error}") from None
    chosen = _names(wanted)
    if seeds < 1:
        raise ConfigError(f"--seeds: must be at least 1, not {seeds}")
    trainings = {
        (method, seed): make_config(
            **_fitting(method, given), method=method, seed=seed, reference=False, out=out
        )
        for seed in range(1, seeds + 1)
        for method in chosen
    }
    model = next(iter(trainings.values())).model
    return Comparison(chosen, tuple(range(1, seeds + 1)), trainings, out, name or f"compare-{model}")


def _names(wanted: str) -> tuple[str, ...]:
    """Return the methods' names, as they were given."""
    groups = {ALL: methods(), PEERS: peers()}
    names = [
        each
        for name in wanted.split(",")
        if name.strip()
        for each in groups.get(name.strip(), (name.strip(),))
    ]
    if not names:
        raise ConfigError("--methods: name at least one; weir methods lists all")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--methods: {', '.join(twice)} is named twice")
    try:
        for name in names:
            find_method(name)
    except ValueError as error:
        raise ConfigError(f"--methods: {error}") from None
    return tuple(names)


def _fitting(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a method has a use for."""
    found = find_method(method)
    if found.kind == "sparsifier":
        return dict(given)
    return {key: value for key, value in given.items() if key not in _OF_SPARSIFIERS or key in found.uses}
