# SPDX-License-Identifier: Apache-2.0
"""A run's settings as text, and what its network kept back: lines and rows for displays and summaries."""

from typing import Final

from weir.methods import find_method
from weir.report.words import percent, workers
from weir.train.config import TrainConfig
from weir.train.record import RunRecord

NOT_KNOWN: Final = "–"
_WITH_HISTORY: Final = {"adam": "Adam", "adamw": "AdamW", "momentum": "SGD"}
_SETTINGS: Final = {
    "density": "density",
    "threshold": "threshold",
    "block": "block",
    "powersgd_rank": "rank",
    "local_steps": "steps of its own",
    "update_bits": "bits",
    "update_share": "share",
    "update_most_pending": "steps that may wait",
    "update_sample_share": "sampled",
    "outer_steps": "steps of its own",
    "outer_method": "sending",
    "outer_density": "density",
    "outer_bits": "bits",
    "outer_rate": "outer rate",
    "outer_momentum": "outer momentum",
    "outer_decay": "decay",
    "outer_overlap": "steps beside a sum",
    "group_size": "groups of",
}


def epochs(config: TrainConfig) -> str:
    """Return how long is trained: 1 epoch, 3 epochs of at most 20 steps each."""
    count = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    if config.max_steps is None:
        return count
    steps = "1 step" if config.max_steps == 1 else f"{config.max_steps} steps"
    return f"{count} of at most {steps}{'' if config.epochs == 1 else ' each'}"


def training_line(config: TrainConfig) -> str:
    """Describe the training, and how its gradients are sent, in one line."""
    who = workers(config.workers)
    if config.mode == "ps":
        who += f" and {config.servers} server{'' if config.servers == 1 else 's'}"
    return f"{config.model} on {config.data}, {who}, {method_words(config)}"


def method_words(config: TrainConfig) -> str:
    """Return the method with those of its settings that it reads: "topk, density 0.01, encoding
    shared-mask:1".
    """
    method = find_method(config.method)
    parts = [method.name]
    settings = {words: getattr(config, name) for name, words in _SETTINGS.items() if name in method.uses}
    parts += [f"{words} {_plain(value)}" for words, value in settings.items() if value is not None]
    if "density" in method.uses and config.warmup_steps:
        parts.append(f"{config.warmup_steps} steps of warm-up")
    if config.optimizer is not None:
        parts.append(f"by {config.optimizer}")
    if config.rule is not None:
        parts.append(f"encoding {config.rule}")
    if config.lane_bits is not None:
        parts.append(f"lane bits {config.lane_bits}")
    if config.exclude:
        parts.append(f"whole: {' '.join(config.exclude)}")
    return ", ".join(parts)


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def caution(config: TrainConfig) -> str:
    """Return what speaks against a method for the optimizer; empty where nothing does."""
    from weir.host_agent.torch.advice import held_back

    optimizer, divides = _WITH_HISTORY.get(config.trained_by), config.trained_by != "momentum"
    if optimizer is None or find_method(config.method).kind != "sparsifier":
        return ""
    if config.method != "dense":
        name = f"--method {config.method}"
    elif config.push_filter != "0" and divides:
        name = f"--set push_filter={config.push_filter}"
    else:
        return ""
    servers = config.mode == "ps"
    return held_back(name, optimizer, divides=divides, servers=servers, compress="--method compress")


def network_line(config: TrainConfig) -> str:
    """Describe the network between the workers in one line; empty when it is one switch with perfect
    links.
    """
    if not config.network_matters:
        return ""
    if config.loss_policy:
        budget = f"budgets of {config.loss_policy.name}"
    else:
        budget = f"loss budget {percent(config.loss_budget)}" if config.loss_budget else "lossless"
    return f"{links_line(config)}, {budget}"


def links_line(config: TrainConfig) -> str:
    """Describe switches, links, and what disturbs them, in one line."""
    parts = ["one switch" if config.network.shape.single else config.topology]
    if config.hosts == "namespaces":
        parts.append("hosts in network namespaces")
    if config.links:
        parts.append(f"links of {config.links}")
    if config.loss:
        parts.append(f"{percent(config.loss)} lost on each")
    if config.background != "none":
        of_class = f" in DSCP {config.background_dscp}" if config.background_dscp else ""
        parts.append(f"{config.background} of {config.background_load * 100:g} %{of_class}")
    return ", ".join(parts)


def network_rows(config: TrainConfig, record: RunRecord) -> list[tuple[str, str]]:
    """Return label and value of each row; none when the network is one switch with perfect links.

    The reference run has other links: all its values are dashes.
    """
    if not config.network_matters:
        return []
    ours = record.run == "weir"
    counts, done = record.counts if ours else None, record.delivery
    rows = [("timeouts, all workers", f"{done.counters.timeouts:,}" if ours else NOT_KNOWN)]
    if config.queues_in_switches:
        rows.append(("packets trimmed by switches", f"{counts.trims:,}" if counts else NOT_KNOWN))
        rows.append(("packets marked by switches", f"{counts.marks:,}" if counts else NOT_KNOWN))
    if config.loss:
        rows.append(("packets lost on purpose", f"{counts.lost:,}" if counts else NOT_KNOWN))
    if config.background != "none":
        rows.append(("background packets", f"{counts.background:,}" if counts else NOT_KNOWN))
    if config.lossy:
        rows.append(("releases, all workers", f"{done.counters.releases:,}" if ours else NOT_KNOWN))
        rows.append(("missing of the gradient", _missing(record) if ours else NOT_KNOWN))
    if not config.network.shape.single:
        rows.append(("summed by spines", _spines(record) if ours else NOT_KNOWN))
    return rows


def mechanisms(config: TrainConfig, record: RunRecord) -> dict[str, int]:
    """Return by name how much was done by each mechanism that was switched on for a run over Weir."""
    counts, done = record.counts, record.delivery
    if record.run != "weir" or counts is None:
        return {}
    found = {}
    if config.loss:
        found["packets lost on purpose"] = counts.lost
    if config.background != "none":
        found["background packets"] = counts.background
    if config.lossy:
        found["trims, releases"] = (
            counts.trims + done.counters.releases or done.missing
        )  # flows release nothing
    spines = [count for name, count in counts.spines.items() if name not in counts.dead]
    if any(spines):
        found["bytes at the least used spine"] = min(spines)
    return found


def idle_mechanisms(config: TrainConfig, record: RunRecord) -> list[str]:
    """Return as text what was switched on for a run over Weir, and never acted, by the switches' counters
    and the workers'.
    """
    done = mechanisms(config, record) if record.status == "complete" else {}
    return [_IDLE[name] for name, count in done.items() if not count]


_IDLE: Final = {
    "packets lost on purpose": "--set loss: no switch has lost a packet on purpose",
    "background packets": "--set background: no switch has forwarded such a packet",
    "trims, releases": "the loss budget: nothing was trimmed or given up",
    "bytes at the least used spine": "--topology: one of the spines has summed nothing",
}


def _missing(record: RunRecord) -> str:
    """Return the missing share beside the largest allowed: "0.31 % of at most 7.00 %"."""
    done = record.delivery
    if not done.lanes:
        return NOT_KNOWN
    return f"{done.missing_share * 100:.2f} % of at most {done.budget / done.lanes * 100:.2f} %"


def _spines(record: RunRecord) -> str:
    """Return each spine's share of the bytes; a dead one is named so."""
    if record.counts is None or not any(record.counts.spines.values()):
        return NOT_KNOWN
    shares = record.counts.shares
    return ", ".join(
        f"{name} {percent(shares[name])}{' (dead)' if name in record.counts.dead else ''}" for name in shares
    )
