# SPDX-License-Identifier: Apache-2.0
"""Steps of all workers become one; replicas that differ are an error; messages survive the pipe."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from weir.host_agent.transport.counters import TransportCounters
from weir.process.processor import ProcessorTime
from weir.train.config import make_config
from weir.train.messages import Delivery, Evaluated, Failed, Ready, Sent, Step, WireCounters, decode, encode
from weir.train.record import ReplicasDifferError, RunRecord, StepSummary
from weir.train.summary import overall_status, summarize, summary_view


def step(rank: int, number: int, checksum: int = 0xABC, **changes: object) -> Step:
    values = {
        "epoch": 1,
        "loss": 1.0 + rank,
        "samples": 16,
        "seconds": 0.1 * (rank + 1),
        "communication_s": 0.05,
        "traffic": WireCounters(bytes_up=100 * (rank + 1), packets_up=2, retransmissions=1),
        "sent": Sent(density=0.5, blocks=1, blocks_skipped=3),
    }
    return Step(rank=rank, step=number, checksum=checksum, **{**values, **changes})


def test_a_step_is_complete_when_every_rank_was_heard() -> None:
    record = RunRecord("weir", ranks=range(3), epochs=1)
    assert record.add(step(2, 1)) is None and record.add(step(0, 1)) is None
    assert record.add(step(0, 2)) is None  # a rank that runs ahead
    summary = record.add(step(1, 1))
    assert (summary.step, summary.loss, summary.seconds) == (1, 2.0, pytest.approx(0.3))
    assert (summary.bytes_up, summary.retransmissions, summary.blocks_skipped) == (200, 3, 9)
    assert record.steps == [summary]
    assert record.totals[0].bytes_up == 200 and record.totals[2].bytes_up == 300


def test_processor_time_is_of_the_steps_after_the_first_for_each_gigabyte_of_gradients() -> None:
    record = RunRecord("weir", ranks=range(2), epochs=1)
    record.add(Ready(rank=0, parameters=250_000, steps_per_epoch=3, samples=4, traffic_source=""))
    for number, each in ((1, 9.0), (2, 0.1), (3, 0.2)):  # the first one warms up
        assert record.processor_per_gigabyte() is None or number == 3
        for rank in range(2):
            record.add(step(rank, number, processor_s=each * (1 + 2 * rank)))  # twice as much on average
        record.clock(ProcessorTime(1.0, 5.0 + 0.2 * number, 100.0 + 0.8 * number))
    assert record.processor_per_gigabyte() == ProcessorTime(
        pytest.approx(2 * 0.3 / 0.002), pytest.approx(0.4 / 0.002), pytest.approx(1.6 / 0.002)
    )
    record.clock(None)  # a switch is gone
    assert record.processor_per_gigabyte() is None


def test_memory_is_that_of_the_worker_that_ever_held_most() -> None:
    record = RunRecord("weir", ranks=range(2), epochs=1)
    for rank, number, held in ((0, 1, 5), (1, 1, 9), (0, 2, 7), (1, 2, 8)):
        record.add(step(rank, number, memory=held))
    assert record.memory == 9


def test_build_up_and_imbalance_are_of_what_all_workers_chose_and_sent() -> None:
    def two(*sent: Sent) -> tuple[float | None, float | None]:
        record = RunRecord("weir", ranks=range(2), epochs=1)
        found = [record.add(step(rank, 1, sent=part)) for rank, part in enumerate(sent)][-1]
        return found.build_up, found.imbalance

    apart = (Sent(chosen=10, values=10, union=40), Sent(chosen=30, values=30, union=40))
    assert two(*apart) == (2.0, 1.5)
    filled = (Sent(chosen=10, values=40, union=40), Sent(chosen=30, values=40, union=40))
    assert two(*filled) == (1.0, 1.5)
    assert two(Sent(), Sent()) == (None, None)
    assert two(Sent(chosen=0, values=0, union=0), Sent(chosen=0, values=0, union=0)) == (None, None)


def test_replicas_that_may_differ_in_between_are_compared_in_the_end() -> None:
    def finished(other: int) -> RunRecord:
        record = RunRecord("weir", ranks=range(2), epochs=1)
        for rank in range(2):
            record.add(step(rank, 1, checksum=None))
        record.add(Evaluated(0, 1, 0.5, 0.5, step=1, checksum=7, traffic=WireCounters(bytes_up=50)))
        record.add(Evaluated(1, 1, 0.5, 0.5, step=1, checksum=other))
        return record

    record = finished(other=7)
    assert record.identical_at_end and not record.identical_in_steps
    assert record.totals[0].bytes_up == 150  # making them equal has its price
    with pytest.raises(ReplicasDifferError, match=r"after the last step of the weir run .*rank 1: 0*8"):
        finished(other=8)


def test_replicas_that_differ_are_an_error_that_names_run_step_and_ranks() -> None:
    record = RunRecord("weir", ranks=range(2), epochs=1)
    record.add(step(0, 7))
    with pytest.raises(ReplicasDifferError, match=r"after step 7 of the weir run .*rank 1: 0*abd"):
        record.add(step(1, 7, checksum=0xABD))


@pytest.mark.parametrize(
    "message",
    [
        Ready(rank=1, parameters=5, steps_per_epoch=2, samples=10, traffic_source="here"),
        step(1, 3, checksum=2**64 - 1),
        step(1, 4, delivery=Delivery(TransportCounters(releases=2), lanes=5, missing=1, budget=2)),
        Evaluated(rank=0, epoch=1, loss=0.5, accuracy=0.75),
        Evaluated(rank=0, epoch=1, loss=0.5, accuracy=0.75, checksum=3, traffic=WireCounters(bytes_up=5)),
        Failed(rank=2, error="ValueError: é", traceback="line\nline"),
    ],
)
def test_messages_come_back_as_they_went(message: object) -> None:
    line = encode(message)
    assert "\n" not in line and decode(line) == message


def test_steps_jsonl_is_what_it_was() -> None:
    """Somebody's scripts read it: lines of an earlier version mean the same, and are written again."""
    for line in (Path(__file__).parent / "recorded" / "steps.jsonl").read_text().splitlines():
        values = json.loads(line)
        told = dict(values["delivery"])
        counters = TransportCounters(
            timeouts=told.pop("timeouts"),
            releases=told.pop("releases"),
            trimmed=told.pop("trimmed"),
            marked=told.pop("marked"),
            repeats_asked=told.pop("repeats"),
        )
        summary = StepSummary(**{**values, "delivery": Delivery(counters, **told)})
        assert json.dumps(summary.as_json()) == line


@pytest.mark.parametrize("line", ["", "{}", '{"kind": "step"', '{"kind": "other"}', "hello"])
def test_a_line_that_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_the_worst_run_decides_the_status() -> None:
    def record(status: str) -> RunRecord:
        made = RunRecord("weir", ranks=[0], epochs=1)
        made.status = status
        return made

    assert overall_status([record("complete"), record("complete")]) == "complete"
    assert overall_status([record("complete"), record("interrupted")]) == "interrupted"
    assert overall_status([record("failed"), record("interrupted")]) == "failed"
    assert overall_status([]) == "interrupted"


def test_a_run_that_never_began_still_has_a_summary() -> None:
    record = RunRecord("weir", ranks=range(2), epochs=1)
    summary = summarize(make_config(workers=2), [record], {})
    assert summary["runs"]["weir"]["steps"] == 0 and summary["runs"]["weir"]["accuracy"] is None
    told = ("timeouts", "releases", "trimmed", "marked", "repeats", "lanes", "missing", "budget")
    assert summary["runs"]["weir"]["delivery"] == dict.fromkeys(told, 0)


@pytest.mark.parametrize("limited", [True, False])
def test_the_summary_says_when_no_link_was_limited(limited: bool) -> None:
    """A run over memory says nothing about networks, where fewer bytes pay."""
    network = {"links": "100mbit", "hosts": "namespaces"} if limited else {}
    records = []
    for run in ("weir", "gloo"):
        record = RunRecord(run, ranks=[0], epochs=1)
        record.add(step(0, 1))
        records.append(record)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_view(make_config(workers=1, **network), records, "complete"))
    assert ("no link was limited" in console.export_text()) is not limited
