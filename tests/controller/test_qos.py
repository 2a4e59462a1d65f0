# SPDX-License-Identifier: Apache-2.0
"""The qos section: what is not said is as by default, and what cannot be is refused."""

import pytest
from pydantic import ValidationError

from weir.controller.qos import NEVER, ClassSpec, Enqueue, Loss, Qos, QueueSpec, class_name
from weir.wire.definition import LAYER_CLASSES, RELIABLE_DSCP, SprayMode, dscp


def test_by_default_every_layer_class_has_its_own_queue() -> None:
    treatments = Qos().treatments()
    assert [treatments[dscp(layer)].queue for layer in range(LAYER_CLASSES)] == [6, 5, 4, 3, 2, 1]
    assert treatments[RELIABLE_DSCP] == Enqueue(queue=7, mark_at=12)
    assert treatments[dscp(0)] == Enqueue(queue=6, trim_at=16, mark_at=12)
    assert treatments[0] == Enqueue(queue=0, mark_at=20)


def test_a_file_changes_what_it_names_and_nothing_else() -> None:
    said = Qos(classes={48: ClassSpec(trim_at=4, mark_at="never"), 10: ClassSpec(drop_at=30)})
    treatments, default = said.treatments(), Qos().treatments()
    assert treatments.pop(48) == Enqueue(queue=6, trim_at=4)
    assert treatments.pop(10) == Enqueue(queue=1, drop_at=30)
    default.pop(48)
    assert treatments == default


def test_without_priorities_one_queue_has_all_but_the_reliable_class() -> None:
    treatments = Qos(priorities=False).treatments()
    assert {code: t.queue for code, t in treatments.items() if t.queue} == {RELIABLE_DSCP: 7}
    assert treatments[48].trim_at == 16


def test_modes_are_the_programs() -> None:
    assert [Qos(spray=name).spray_mode for name in ("hash", "round_robin", "random", "least_loaded")] == list(
        SprayMode
    )


def test_classes_have_names() -> None:
    assert [class_name(code) for code in (56, 48, 8, 0, 5)] == [
        "reliable",
        "layer class 0",
        "layer class 5",
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
        ({"classes": {8: {"trim_at": NEVER}}}, "less than 65535"),
    ],
)
def test_what_cannot_be_is_refused(section: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Qos.model_validate(section)
