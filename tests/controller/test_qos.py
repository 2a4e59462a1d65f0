# SPDX-License-Identifier: Apache-2.0
"""The qos section: what is not said is as by default, and what cannot be is refused."""

import pytest
from pydantic import ValidationError

from weir.controller.qos import NEVER, TRIM_AT, ClassSpec, Enqueue, Loss, Qos, QueueSpec, class_name
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES, RELIABLE_DSCP, SprayMode, dscp


def test_by_default_every_layer_class_has_its_own_queue() -> None:
    behaviours = Qos().per_hop_behaviours()
    for magnitude in range(MAGNITUDE_CLASSES):
        queues = [behaviours[dscp(layer, magnitude)].queue for layer in range(LAYER_CLASSES)]
        assert queues == [4, 3, 2, 1]
    assert behaviours[RELIABLE_DSCP] == Enqueue(queue=7, mark_at=12)
    assert behaviours[0] == Enqueue(queue=0, mark_at=20)


def test_by_default_small_magnitudes_are_trimmed_first() -> None:
    behaviours = Qos().per_hop_behaviours()
    for layer in range(LAYER_CLASSES):
        limits = [behaviours[dscp(layer, magnitude)].trim_at for magnitude in range(MAGNITUDE_CLASSES)]
        assert limits == sorted(set(limits))
        # the smallest go before senders slow down, the others only after
        assert limits[0] < behaviours[dscp(layer)].mark_at < limits[1]


def test_code_points_have_their_rfcs_names() -> None:
    by_name = {"AF43": {"trim_at": 4}, "af11": {"mark_at": 5}, "CS6": {"queue": 6}, "8": {"drop_at": 9}}
    assert Qos.model_validate({"classes": by_name}).classes == {
        38: ClassSpec(trim_at=4), 10: ClassSpec(mark_at=5), 48: ClassSpec(queue=6), 8: ClassSpec(drop_at=9),
    }  # fmt: skip


def test_a_file_changes_what_it_names_and_nothing_else() -> None:
    said = Qos(classes={38: ClassSpec(trim_at=4, mark_at="never"), 9: ClassSpec(drop_at=30)})
    behaviours, default = said.per_hop_behaviours(), Qos().per_hop_behaviours()
    assert behaviours.pop(38) == Enqueue(queue=4, trim_at=4)
    assert behaviours.pop(9) == Enqueue(queue=1, drop_at=30)
    default.pop(38)
    assert behaviours == default


def test_without_priorities_one_queue_has_all_but_the_reliable_class() -> None:
    behaviours = Qos(priorities=False).per_hop_behaviours()
    assert {code: t.queue for code, t in behaviours.items() if t.queue} == {RELIABLE_DSCP: 7}
    assert behaviours[38].trim_at == TRIM_AT[0]


def test_modes_are_the_programs() -> None:
    assert [Qos(spray=name).spray_mode for name in ("hash", "round_robin", "random", "least_loaded")] == list(
        SprayMode
    )


def test_classes_have_names() -> None:
    assert [class_name(code) for code in (56, 38, 10, 0, 48)] == [
        "reliable",
        "AF43 layer 0, magnitude 0",
        "AF11 layer 3, magnitude 2",
        "best effort",
        "",
    ]


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (
            {"losses": [Loss(switch="s", port=1, probability=0.1)] * 2},
            "losses: egress at port 1 of s is given",
        ),
        (
            {"losses": [Loss(switch="s", port=1, dscp=8, probability=0.1)] * 2},
            "egress of DSCP 8 at port 1 of s",
        ),
        ({"queues": [QueueSpec(switch="s", port=1, depth=4)] * 2}, "queues: port 1 of s is given twice"),
        ({"classes": {8: {"queue": 8}}}, "less than or equal to 7"),
        ({"classes": {10: {"trim_at": NEVER}}}, "less than 65535"),
        ({"classes": {"AF14": {}}}, "a valid integer"),
        (
            {"classes": {48: {"trim_at": 16}}},
            r"only AF11 to AF43 are trimmed \(CS6 was a layer class of wire",
        ),
        ({"classes": {0: {"trim_at": 16}}}, r"DSCP 0 has trim_at, but only AF11 to AF43 are trimmed \["),
        ({"classes": {"AF21": {"trim_at": 4}}}, "must not fall from AF23 to AF21.* it would be 8, 32, 4"),
    ],
)
def test_what_cannot_be_is_refused(section: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Qos.model_validate(section)
