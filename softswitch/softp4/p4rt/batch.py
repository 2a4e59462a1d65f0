# SPDX-License-Identifier: Apache-2.0
"""A Write's updates under its atomicity (specification 12.2)."""

import logging
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec

from softp4.errors import Code, ControlError
from softp4.p4rt import entities, tables
from softp4.p4rt.keys import Message, decode_key
from softp4.p4rt.pipeline import Pipeline
from softp4.p4rt.unknown import has_unknown
from softp4.p4rt.updates import Run, Updates
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.state.table_store import PackedEntry

_REQUEST: Final = p4runtime_pb2.WriteRequest
_UPDATE: Final = p4runtime_pb2.Update
_P = ParamSpec("_P")
_log = logging.getLogger(__name__)

Results = list[ControlError | None]
"""What became of each update, in order; None is success."""


def attempt(action: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> ControlError | None:
    """Run an action; return why it failed, or None. What nobody has thought of is INTERNAL, and logged."""
    try:
        action(*args, **kwargs)
    except ControlError as error:
        return error
    except Exception as error:
        _log.exception("a part of a batch failed")
        return ControlError(Code.INTERNAL, f"{type(error).__name__}: {error}")
    return None


def apply(pipeline: Pipeline, request: Message) -> Results:
    """Apply the updates of a WriteRequest in their order.

    CONTINUE_ON_ERROR tries every one. The other two stop at the first that fails, undo what was done, and
    answer ABORTED for all but the culprit; with DATAPLANE_ATOMIC no frame is processed meanwhile.
    Raises ControlError, having done nothing: INVALID_ARGUMENT for an atomicity that P4Runtime does not have,
    UNIMPLEMENTED when the batch would fall between a frame's ingress and its egress.
    """
    write = entities.write_known if has_unknown(request) else entities.write
    updates = request.updates
    if request.atomicity == _REQUEST.CONTINUE_ON_ERROR:
        return [attempt(write, pipeline, each.type, each.entity) for each in updates]
    if request.atomicity not in (_REQUEST.ROLLBACK_ON_ERROR, _REQUEST.DATAPLANE_ATOMIC):
        raise ControlError(Code.INVALID_ARGUMENT, f"unknown atomicity {request.atomicity}")
    if request.atomicity == _REQUEST.ROLLBACK_ON_ERROR:
        return _all_or_none(pipeline, updates, write)
    with pipeline.switch.paused():
        _check_queues(pipeline, updates)
        return _all_or_none(pipeline, updates, write)


def apply_ordinary(pipeline: Pipeline, updates: Updates) -> Results:
    """Apply updates that have been decoded natively, as `apply` does with CONTINUE_ON_ERROR."""
    return [result for run in updates.runs for result in _apply_run(pipeline, run)]


def _apply_run(pipeline: Pipeline, run: Run) -> Results:
    """Make the updates of a run at once if that can be; if not, one by one, to see which of them cannot."""
    store, entries = run.codec.store, (run.keys, run.actions, run.args, run.wires)
    if run.type == _UPDATE.DELETE:
        done = store.delete_all(run.keys)
    elif run.type == _UPDATE.INSERT:
        done = store.insert_all(*entries)
    else:
        done = store.modify_all(*entries)
    results: Results = [None] * len(run.keys)
    if not done and run.type == _UPDATE.DELETE:
        results = [attempt(store.delete_packed, key) for key in run.keys]
    elif not done:
        put = store.insert_packed if run.type == _UPDATE.INSERT else store.modify_packed
        results = [attempt(put, made) for made in map(PackedEntry, *entries)]
    if pipeline.notes:
        for key, error in zip(run.keys, results, strict=True):
            if error is None:
                pipeline.notes.pop((run.codec.table.name, key), None)
    return results


def _check_queues(pipeline: Pipeline, updates: Sequence[Message]) -> None:
    """Raise ControlError unless frames that wait in queues, behind ingress, see all changes or none."""
    if len(updates) < 2 or pipeline.switch.deadline() is None:
        return
    seen = {_seen_at_egress(pipeline, update.entity) for update in updates}
    if len(seen) > 1 or None in seen:
        raise ControlError(
            Code.UNIMPLEMENTED,
            "DATAPLANE_ATOMIC: frames wait between ingress and egress, and the batch may concern both; "
            "try again when none wait",
        )


def _seen_at_egress(pipeline: Pipeline, entity: Message) -> bool | None:
    """Return whether frames see an entity in egress and not in ingress; None when that cannot be told."""
    kind = entity.WhichOneof("entity")
    if kind == "table_entry":
        table = entity.table_entry.table_id
    elif kind in ("direct_counter_entry", "direct_meter_entry"):
        table = getattr(entity, kind).table_entry.table_id
    elif kind == "packet_replication_engine_entry":
        is_group = entity.packet_replication_engine_entry.HasField("multicast_group_entry")
        return False if is_group else None
    else:
        return None
    if table not in pipeline.info.tables:
        return None
    return pipeline.info.tables[table].name in pipeline.switch.program.egress.tables


def _all_or_none(pipeline: Pipeline, updates: Sequence[Message], write: entities.Writer) -> Results:
    undo: list[tuple[int, Message]] = []
    for number, update in enumerate(updates):

        def step(update: Message = update) -> None:
            inverse = _inverse(pipeline, update)
            write(pipeline, update.type, update.entity)
            undo.extend(inverse)

        error = attempt(step)
        if error is not None:
            _roll_back(pipeline, undo)
            reason = f"rolled back: update {number} failed"
            results: Results = [ControlError(Code.ABORTED, reason) for _ in updates]
            results[number] = error
            return results
    return [None] * len(updates)


def _roll_back(pipeline: Pipeline, undo: Sequence[tuple[int, Message]]) -> None:
    for update, entity in reversed(undo):
        error = attempt(entities.write, pipeline, update, entity)
        if error is not None:
            _log.error("a batch could not be rolled back: %s", error)


def _inverse(pipeline: Pipeline, update: Message) -> list[tuple[int, Message]]:
    """Return what puts back the state that an update is about to change: what is read can be written."""
    if update.type == _UPDATE.INSERT:
        return [(_UPDATE.DELETE, update.entity)]
    kind = _UPDATE.INSERT if update.type == _UPDATE.DELETE else _UPDATE.MODIFY
    entity = update.entity
    if entity.WhichOneof("entity") == "table_entry":
        counted = update.type == _UPDATE.DELETE or entity.table_entry.HasField("counter_data")
        present = _present_entry(pipeline, entity.table_entry, counted=counted)
        return [(kind, p4runtime_pb2.Entity(table_entry=present))]
    return [(kind, each) for each in _present(pipeline, entity)]


def _present(pipeline: Pipeline, entity: Message) -> list[Message]:
    """Return what is there now of what an update changes, other than a table entry. Raises ControlError."""
    kind = entity.WhichOneof("entity")
    if kind in ("counter_entry", "direct_counter_entry") and not getattr(entity, kind).HasField("data"):
        return []
    found = list(entities.read(pipeline, entity))
    if kind in ("direct_counter_entry", "direct_meter_entry"):  # without a match, those of all entries
        wanted = _identity(pipeline, getattr(entity, kind).table_entry)
        found = [e for e in found if _identity(pipeline, getattr(e, kind).table_entry) == wanted]
    if kind in ("meter_entry", "direct_meter_entry"):
        for each in found:
            getattr(each, kind).ClearField("counter_data")  # what was counted cannot be written
    return found


def _present_entry(pipeline: Pipeline, given: Message, *, counted: bool) -> Message:
    """Return a table entry as it is now. A counter that the update leaves alone counts on, and is left
    out.
    """
    table = pipeline.info.table(given.table_id)
    wanted = p4runtime_pb2.TableEntry(table_id=table.id, is_default_action=given.is_default_action)
    if given.is_default_action:
        defaults = list(tables.read_table_entries(pipeline, wanted))
        return defaults[0] if defaults else wanted  # without an action: back to the program's own
    wanted.match.extend(given.match)
    wanted.priority = given.priority
    if table.counted and counted:
        wanted.counter_data.SetInParent()
    wanted.meter_config.SetInParent()
    found = tables.read_one(pipeline, wanted)
    found.is_const = False
    if table.constant:
        found.ClearField("action")  # it may not be named, not even as it is
    return found


def _identity(pipeline: Pipeline, entry: Message) -> tuple[object, ...]:
    return decode_key(pipeline.info.table(entry.table_id), entry), entry.priority
