# SPDX-License-Identifier: Apache-2.0
"""SONiC's configuration for the classes: its models accept it, and its ports are no longer lossless."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.controller.sonic_schema import COLOURS, problems
from weir.cli import app
from weir.controller.commodity import PACKET, bands
from weir.controller.qos import DEFAULT_CLASSES, TRIM_AT, WEIR_CLASSES, Qos
from weir.controller.sonic import sonic
from weir.wire.definition import BEST_EFFORT_DSCP, RELIABLE_DSCP, dscp

Config = dict[str, dict[str, Any]]
Fault = Callable[[Config], None]

PORTS = ("Ethernet0", "Ethernet4")
OTHER = "Ethernet8"
EIGHT = [str(number) for number in range(8)]
UNCHECKED = frozenset({"PORT", "MAP_PFC_PRIORITY_TO_QUEUE", "DEVICE_METADATA", "PFC_WD"})


def stock() -> Config:
    """Return a configuration as SONiC's templates make it: queues and groups 3 and 4 are lossless."""
    every = [*PORTS, OTHER]
    same = dict(zip(EIGHT, EIGHT, strict=True))
    queue = {n: {"scheduler": "scheduler.0"} for n in "01256"}
    queue |= {n: {"scheduler": "scheduler.1", "wred_profile": "AZURE_LOSSLESS"} for n in "34"}
    buffers = {"0-2": "egress_lossy", "3-4": "egress_lossless", "5-6": "egress_lossy", "8-9": "egress_lossy"}
    groups = {"0": "ingress_lossy", "3-4": "ingress_lossless"}
    return {
        "DEVICE_METADATA": {"localhost": {"hwsku": "Force10-S6000", "type": "LeafRouter"}},
        "PORT": {
            port: {"lanes": str(4 * n + 1), "speed": "40000"} for n, port in enumerate(every)
        },
        "DSCP_TO_TC_MAP": {"AZURE": {"8": "0", "3": "3", "4": "4", "48": "6"}},
        "TC_TO_QUEUE_MAP": {"AZURE": same},
        "TC_TO_PRIORITY_GROUP_MAP": {"AZURE": {**dict.fromkeys(EIGHT, "0"), "3": "3", "4": "4"}},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"AZURE": same},
        "SCHEDULER": {
            "scheduler.0": {"type": "DWRR", "weight": "14"},
            "scheduler.1": {"type": "DWRR", "weight": "15"},
        },
        "WRED_PROFILE": {
            "AZURE_LOSSLESS": {
                "ecn": "ecn_all",
                "wred_green_enable": "true",
                "green_min_threshold": "1048576",
                "green_max_threshold": "2097152",
                "green_drop_probability": "5",
            }
        },
        "BUFFER_POOL": {
            "ingress_lossless_pool": {"type": "ingress", "mode": "dynamic", "size": "12766208"},
            "egress_lossy_pool": {"type": "egress", "mode": "dynamic", "size": "7326924"},
            "egress_lossless_pool": {"type": "egress", "mode": "static", "size": "12766208"},
        },
        "BUFFER_PROFILE": {
            "ingress_lossy": {"pool": "ingress_lossless_pool", "size": "0", "dynamic_th": "3"},
            "ingress_lossless": {
                "pool": "ingress_lossless_pool", "size": "56368", "xon": "18432", "xoff": "55120",
                "dynamic_th": "-3",
            },
            "egress_lossy": {"pool": "egress_lossy_pool", "size": "1518", "dynamic_th": "3"},
            "egress_lossless": {"pool": "egress_lossless_pool", "size": "1518", "static_th": "12766208"},
        },
        "BUFFER_QUEUE": {
            f"{port}|{n}": {"profile": name} for port in every for n, name in buffers.items()
        },
        "BUFFER_PG": {f"{port}|{n}": {"profile": name} for port in every for n, name in groups.items()},
        "QUEUE": {f"{port}|{n}": row for port in every for n, row in queue.items()},
        "PORT_QOS_MAP": {
            port: {
                "dscp_to_tc_map": "AZURE",
                "tc_to_queue_map": "AZURE",
                "tc_to_pg_map": "AZURE",
                "pfc_to_queue_map": "AZURE",
                "pfc_enable": "3,4",
                "pfcwd_sw_enable": "3,4",
            }
            for port in every
        },
        "PFC_WD": {port: {"action": "drop", "detection_time": "200"} for port in every},
    }  # fmt: skip


@pytest.fixture
def made() -> Config:
    return sonic(Qos(), PORTS, stock())


def of(config: Config, table: str, port: str) -> dict[str, Any]:
    """Return a port's rows of a table by the rest of their keys."""
    return {key.split("|")[1]: row for key, row in config[table].items() if key.split("|")[0] == port}


def queue_of(config: Config, code: int) -> str:
    traffic = config["DSCP_TO_TC_MAP"]["WEIR"][str(code)]
    number: str = config["TC_TO_QUEUE_MAP"]["WEIR"][traffic]
    return number


def test_the_models_accept_it(made: Config) -> None:
    assert problems(stock(), UNCHECKED) == []
    assert problems(made, UNCHECKED) == []


def test_nothing_on_its_ports_is_lossless_or_has_two_rows(made: Config) -> None:
    for port in PORTS:
        row = made["PORT_QOS_MAP"][port]
        assert row["pfc_enable"] == row["pfcwd_sw_enable"] == ""
        assert "pfc_to_queue_map" not in row and port not in made["PFC_WD"]
        assert set(made["TC_TO_PRIORITY_GROUP_MAP"][row["tc_to_pg_map"]].values()) == {"0"}
        assert of(made, "BUFFER_PG", port) == {"0": {"profile": "ingress_lossy"}}
        assert list(of(made, "QUEUE", port)) == EIGHT
        buffers = of(made, "BUFFER_QUEUE", port)
        assert list(buffers) == [*EIGHT, "8", "9"], "those for multicast stay"
        pools = {made["BUFFER_PROFILE"][row["profile"]]["pool"] for row in buffers.values()}
        assert pools == {"egress_lossy_pool"}


def test_other_ports_stay_as_they_are(made: Config) -> None:
    before = stock()
    for table in ("QUEUE", "BUFFER_QUEUE", "BUFFER_PG", "PORT_QOS_MAP", "PFC_WD"):
        assert of_or_row(made, table, OTHER) == of_or_row(before, table, OTHER)
    for table, rows in before.items():
        for key, row in rows.items():
            if key.split("|")[0] not in PORTS or table == "PORT":
                assert made[table][key] == row


def of_or_row(config: Config, table: str, port: str) -> Any:
    return config[table][port] if port in config[table] else of(config, table, port)


def test_marks_begin_at_mark_at_and_drops_at_each_precedences_threshold(made: Config) -> None:
    queues, buffers = of(made, "QUEUE", PORTS[0]), of(made, "BUFFER_QUEUE", PORTS[0])
    for layer in range(4):
        for magnitude, trim_at in enumerate(TRIM_AT[:2]):
            number = queue_of(made, dscp(layer, magnitude))
            assert "wred_profile" not in queues[number]
            profile = made["BUFFER_PROFILE"][buffers[number]["profile"]]
            assert profile["static_th"] == str(trim_at * PACKET) and "dynamic_th" not in profile
        protected = queue_of(made, dscp(layer, 2))
        wred = made["WRED_PROFILE"][queues[protected]["wred_profile"]]
        assert wred["ecn"] == "ecn_all"
        for colour in COLOURS:
            assert wred[f"wred_{colour}_enable"] == "true"
            assert wred[f"{colour}_min_threshold"] == str(12 * PACKET)
            assert wred[f"{colour}_max_threshold"] == str(48 * PACKET)
            assert wred[f"{colour}_drop_probability"] == "100"
        room = made["BUFFER_PROFILE"][buffers[protected]["profile"]]["static_th"]
        assert int(room) > 48 * PACKET, "what may not be lost has room beyond the threshold of drops"
    for code in (RELIABLE_DSCP, BEST_EFFORT_DSCP):  # shared with others, whose packets are not ECN-capable
        assert "wred_profile" not in queues[queue_of(made, code)]
    rest = queue_of(made, BEST_EFFORT_DSCP)
    assert buffers[rest]["profile"] == "egress_lossy", "others have what they had"


def test_other_traffic_has_a_fifth_of_what_the_reliable_class_leaves(made: Config) -> None:
    weights = {}
    for number, row in of(made, "QUEUE", PORTS[0]).items():
        schedule = made["SCHEDULER"][row["scheduler"]]
        if number == queue_of(made, RELIABLE_DSCP):
            assert schedule == {"type": "STRICT"}
        else:
            assert schedule["type"] == "DWRR"
            weights[number] = int(schedule["weight"])
    rest = weights.pop(queue_of(made, BEST_EFFORT_DSCP))
    assert rest / (rest + sum(weights.values())) == pytest.approx(0.2, abs=0.01)
    in_order = [weights[queue_of(made, dscp(layer, m))] for layer in (0, 2) for m in (2, 1, 0)]
    assert in_order == [32, 16, 8, 4, 2, 1]


def test_every_code_point_has_a_queue_and_network_control_the_first(made: Config) -> None:
    assert made["DSCP_TO_TC_MAP"]["WEIR"].keys() == {str(code) for code in range(64)}
    assert queue_of(made, 48) == queue_of(made, RELIABLE_DSCP) == "7"
    unlisted = set(range(64)) - DEFAULT_CLASSES.keys() - {48}
    assert {queue_of(made, code) for code in unlisted} == {queue_of(made, BEST_EFFORT_DSCP)} == {"0"}


def without(table: str, key: str) -> Fault:
    return lambda config: config[table].pop(key) and None


def changed(table: str, key: str, field: str, value: str) -> Fault:
    return lambda config: config[table][key].update({field: value})


FAULTS: dict[str, tuple[Fault, str]] = {
    "a wrong table": (lambda c: c.update(QUEUES=c.pop("QUEUE")), "QUEUES: no such table"),
    "a wrong field": (
        changed("WRED_PROFILE", "WEIR_6", "green_ect_min_threshold", "1"),
        "no field green_ect",
    ),
    "no such scheduler": (without("SCHEDULER", "WEIR_7"), "names no row of SCHEDULER"),
    "no such profile of marks": (without("WRED_PROFILE", "WEIR_3"), "names no row of WRED_PROFILE"),
    "no such profile of buffers": (without("BUFFER_PROFILE", "WEIR_5"), "names no row of BUFFER_PROFILE"),
    "no such pool": (without("BUFFER_POOL", "egress_lossy_pool"), "names no row of BUFFER_POOL"),
    "no such map": (without("DSCP_TO_TC_MAP", "WEIR"), "names no row of DSCP_TO_TC_MAP"),
    "no such port": (
        lambda c: c["QUEUE"].update({"Ethernet3|1": {"scheduler": "WEIR_7"}}),
        "names no row of PORT",
    ),
    "too much weight": (changed("SCHEDULER", "WEIR_6", "weight", "101"), "is not in 1..100"),
    "no weight": (changed("SCHEDULER", "WEIR_6", "weight", "0"), "is not in 1..100"),
    "a wrong discipline": (changed("SCHEDULER", "WEIR_6", "type", "PRIO"), "is not of the form DWRR"),
    "a wrong mode of marks": (changed("WRED_PROFILE", "WEIR_6", "ecn", "on"), "is not of the form ecn_"),
    "a chance above one": (
        changed("WRED_PROFILE", "WEIR_6", "red_drop_probability", "101"),
        "is not in 0..100",
    ),
    "thresholds the wrong way round": (
        changed("WRED_PROFILE", "WEIR_6", "green_min_threshold", "99999"),
        "green_max_threshold is below",
    ),
    "a DSCP of seven bits": (
        lambda c: c["DSCP_TO_TC_MAP"]["WEIR"].update({"64": "0"}),
        "key '64' is not of the form",
    ),
    "a group that is none": (
        changed("TC_TO_PRIORITY_GROUP_MAP", "WEIR", "3", "8"),
        "'8' is not of the form",
    ),
    "a threshold without a unit": (changed("BUFFER_PROFILE", "WEIR_5", "static_th", "34k"), "is no integer"),
    "a share that no chip has": (
        changed("BUFFER_PROFILE", "egress_lossy", "dynamic_th", "8"),
        "is not in -8..7",
    ),
    "no reserve": (lambda c: c["BUFFER_PROFILE"]["WEIR_5"].pop("size") and None, "lacks size"),
    "a queue of sixteen": (
        lambda c: c["BUFFER_QUEUE"].update({"Ethernet0|16": {"profile": "egress_lossy"}}),
        "key '16' is not of the form",
    ),
    "pauses of a ninth priority": (
        changed("PORT_QOS_MAP", "Ethernet0", "pfc_enable", "3,8"),
        "'3,8' is not of the form",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(made: Config, name: str) -> None:
    fault, problem = FAULTS[name]
    fault(made)
    assert any(problem in found for found in problems(made, UNCHECKED)), problems(made, UNCHECKED)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (without("PORT", PORTS[1]), "Ethernet4: the configuration has no such PORT"),
        (without("BUFFER_QUEUE", "Ethernet0|0-2"), "do not say which buffer queue 0 has"),
        (without("BUFFER_PROFILE", "egress_lossy"), "do not say which buffer queue 0 has"),
        (
            lambda c: c["BUFFER_QUEUE"].update({"Ethernet4|0-2": {"profile": "egress_lossless"}}),
            "of different buffer pools",
        ),
    ],
)
def test_a_switch_without_what_it_needs_is_refused(fault: Fault, problem: str) -> None:
    before = stock()
    fault(before)
    with pytest.raises(ValueError, match=problem):
        sonic(Qos(), PORTS, before)


def test_classes_that_need_more_queues_than_there_are_are_refused() -> None:
    classes = {code: {"trim_at": 10 + n} for n, code in enumerate(sorted(WEIR_CLASSES, reverse=True))}
    qos = Qos(classes=classes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need 14 queues; such a switch has 8"):
        sonic(qos, PORTS, stock())
    assert len(bands(qos, 16)) == 14


def test_the_command_reads_a_switchs_file_and_leaves_it_as_it_is_without(
    tmp_path: Path, made: Config
) -> None:
    file = tmp_path / "config_db.json"
    file.write_text(json.dumps(stock()))
    arguments = ["controller", "qos", "--format", "sonic", *PORTS]
    done = CliRunner().invoke(app, [*arguments, "--config-db", str(file)])
    assert done.exit_code == 0 and json.loads(done.output) == made
    again = copy.deepcopy(made)
    assert sonic(Qos(), PORTS, made) == again, "what it made is what it makes of that"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and "--config-db" in done.output
    file.write_text("{")
    assert CliRunner().invoke(app, [*arguments, "--config-db", str(file)]).exit_code == 2


def test_the_extract_agrees_with_sonics_models(made: Config) -> None:
    """Let a YANG validator judge the same configurations by the models themselves."""
    folder = os.environ.get("SONIC_YANG_MODELS")
    if not folder:
        pytest.skip("needs SONIC_YANG_MODELS: the folder src/sonic-yang-models of sonic-buildimage")
    pytest.importorskip("yangson", reason="needs yangson (pip install yangson jinja2)")
    from tests.controller.sonic_models import Models

    models = Models(Path(folder))
    assert models.problem(stock()) == "" and models.problem(made) == ""
    for name, (fault, _) in FAULTS.items():
        faulty = copy.deepcopy(made)
        fault(faulty)
        assert models.problem(faulty), name
