# SPDX-License-Identifier: Apache-2.0
"""Loaded programs and P4Runtime's five ways of setting one (specification 15)."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from softp4 import native
from softp4.errors import Code, ControlError
from softp4.p4rt.device_config import program_json
from softp4.p4rt.digests import DigestLists
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.table_codec import TableCodec
from softp4.p4rt.updates import UpdateDecoder
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.program.errors import ProgramError
from softp4.program.types import Program
from softp4.runtime.read_programs import read_program
from softp4.switch import Switch

Config = Any
"""``p4.v1.ForwardingPipelineConfig``; the stubs carry no types."""

_REQUEST: Final = p4runtime_pb2.SetForwardingPipelineConfigRequest
_ACTIONS: Final = (
    _REQUEST.VERIFY,
    _REQUEST.VERIFY_AND_SAVE,
    _REQUEST.VERIFY_AND_COMMIT,
    _REQUEST.COMMIT,
    _REQUEST.RECONCILE_AND_COMMIT,
)

EntryKey = tuple[str, bytes]
"""Table name and packed key: what identifies an entry."""


@dataclass(frozen=True)
class EntryNotes:
    """Notes that the controller stored with an entry, for itself."""

    controller_metadata: int = 0
    metadata: bytes = b""


@dataclass(frozen=True)
class ReplicaNotes:
    """The form in which a multicast group or clone session was written, so that it reads back alike.

    ``byte_ports``: of each replica, whether its port came as a byte string, not as a number.
    """

    metadata: bytes = b""
    byte_ports: tuple[bool, ...] = ()


@dataclass(eq=False)
class Pipeline:
    """One program, its control-plane description, and what P4Runtime keeps beside the switch's own state.

    ``tells``: the program has digests; ``ages``: it has tables whose entries time out.
    """

    config: Config
    info: P4InfoIndex
    switch: Switch
    notes: dict[EntryKey, EntryNotes] = field(default_factory=dict)
    default_notes: dict[str, EntryNotes] = field(default_factory=dict)
    group_notes: dict[int, ReplicaNotes] = field(default_factory=dict)
    session_notes: dict[int, ReplicaNotes] = field(default_factory=dict)
    codecs: dict[int, TableCodec] = field(init=False)
    updates: UpdateDecoder = field(init=False)
    digests: DigestLists = field(init=False)
    tells: bool = field(init=False)
    ages: bool = field(init=False)

    def codec(self, number: int) -> TableCodec:
        """Return the codec of the table with that id. Raises ControlError NOT_FOUND."""
        found = self.codecs.get(number)
        return self.codecs[self.info.table(number).id] if found is None else found

    def __post_init__(self) -> None:
        program = self.switch.program
        self.codecs = {
            table.id: TableCodec(
                self.info, table, program.tables[table.name].keys, self.switch.table(table.name)
            )
            for table in self.info.tables.values()
        }
        self.updates = UpdateDecoder(self.codecs.values())
        self.digests = DigestLists(self.info.digests, {each.name for each in program.digests.values()})
        self.tells = bool(program.digests)
        self.ages = any(table.ages for table in program.tables.values())
        for profile in self.info.profiles.values():
            self.switch.profile(profile.name).limit(profile.limits)


class PipelineStore:
    """The running pipeline, and one that is saved but not yet committed.

    Reads and writes go to the saved one while there is one: it is a whole switch that no frame runs
    through yet, so committing it swaps program and state in one go.

    Args:
        make_switch: builds a switch for a program (not running yet).
        run: lets the frames of all ports run through a switch from now on.

    Attributes:
        lock: held by anyone who reads or writes a pipeline's state, so that reads and writes see whole
        batches.
    """

    def __init__(self, make_switch: Callable[[Program], Switch], run: Callable[[Switch], None]) -> None:
        self._make_switch = make_switch
        self._run = run
        self._closed = False
        self.lock = threading.RLock()
        self.running: Pipeline | None = None
        self.saved: Pipeline | None = None

    @property
    def newest(self) -> Pipeline | None:
        """Pipeline that reads and writes refer to, or None."""
        return self.saved or self.running

    def current(self) -> Pipeline:
        """Return ``newest``. Raises ControlError FAILED_PRECONDITION when there is none."""
        pipeline = self.newest
        if pipeline is None:
            raise ControlError(
                Code.FAILED_PRECONDITION,
                "no forwarding pipeline config is set: call SetForwardingPipelineConfig first",
            )
        return pipeline

    def adopt(self, config: Config, switch: Switch) -> None:
        """Take over a switch that runs already. Raises ProgramError when P4Info does not describe it."""
        info = P4InfoIndex(config.p4info)
        info.check_against(switch.program)
        self.running = Pipeline(config, info, switch)

    def set(self, action: int, config: Config | None, check: Callable[[], None] = lambda: None) -> None:
        """One SetForwardingPipelineConfig call. Raises ControlError; then nothing has changed.

        Compiling may take seconds, in which reads and writes go on. ``check`` may refuse with a ControlError
        when the change is about to be made.
        """
        if action not in _ACTIONS:
            raise ControlError(Code.INVALID_ARGUMENT, f"unknown pipeline config action {action}")
        if action == _REQUEST.COMMIT:
            if config is not None:
                raise ControlError(Code.INVALID_ARGUMENT, "COMMIT takes no config: it commits the saved one")
            with self.lock:
                check()
                self._commit_saved()
            return
        if config is None:
            raise ControlError(Code.INVALID_ARGUMENT, f"{_REQUEST.Action.Name(action)} needs a config")
        built = self._build(config)
        try:
            with self.lock:
                check()
                if self._closed:
                    raise ControlError(Code.FAILED_PRECONDITION, "the switch is being stopped")
                self._take(action, built)
        finally:
            if built not in (self.saved, self.running):
                built.switch.close()

    def _take(self, action: int, built: Pipeline) -> None:
        if action == _REQUEST.VERIFY_AND_SAVE:
            self._drop_saved()
            self.saved = built
        elif action == _REQUEST.VERIFY_AND_COMMIT:
            self._drop_saved()
            self._put_to_work(built)
        elif action == _REQUEST.RECONCILE_AND_COMMIT:
            self._reconcile(built)

    def _build(self, config: Config) -> Pipeline:
        """Return a pipeline of its own, with the state that the program starts with."""
        try:
            program = read_program(program_json(config.p4_device_config))
            info = P4InfoIndex(config.p4info)
            info.check_against(program)
            kept = p4runtime_pb2.ForwardingPipelineConfig()
            kept.CopyFrom(config)
            return Pipeline(kept, info, self._make_switch(program))
        except ProgramError as error:
            raise ControlError(Code.INVALID_ARGUMENT, str(error)) from error
        except (native.NoCompilerError, native.CompileError) as error:
            raise ControlError(Code.FAILED_PRECONDITION, str(error)) from error

    def _commit_saved(self) -> None:
        if self.saved is None:
            raise ControlError(Code.NOT_FOUND, "no config was saved: call VERIFY_AND_SAVE first")
        pipeline, self.saved = self.saved, None
        self._put_to_work(pipeline)

    def _reconcile(self, built: Pipeline) -> None:
        """Same program: it goes on, state and all. Another: entries, defaults and groups move over."""
        old = self.running
        if old is not None and _same_program(old.config, built.config):
            old.config.CopyFrom(built.config)
            self._drop_saved()
            return
        if old is not None:
            try:
                carry_over(old, built)
            except ControlError as error:
                raise ControlError(
                    Code.INVALID_ARGUMENT, f"the state cannot be kept under the new program: {error.message}"
                ) from error
        self._drop_saved()
        self._put_to_work(built)

    def _put_to_work(self, pipeline: Pipeline) -> None:
        self._run(pipeline.switch)
        old, self.running = self.running, pipeline
        if old is not None:
            old.switch.close()

    def _drop_saved(self) -> None:
        if self.saved is not None:
            self.saved.switch.close()
            self.saved = None

    def close(self) -> None:
        """Free every switch, once calls that work on one are done. None may be running any more."""
        with self.lock:
            self._closed = True
            self._drop_saved()
            if self.running is not None:
                self.running.switch.close()
                self.running = None


def _same_program(one: Config, other: Config) -> bool:
    programs = {program_json(config.p4_device_config) for config in (one, other)}
    return len(programs) == 1 and bool(one.p4info == other.p4info)


def carry_over(old: Pipeline, new: Pipeline) -> None:
    """Write ``old``'s state into ``new``.

    That is profiles, entries, defaults, groups, sessions, meters, digests, value sets, and custom CRCs that
    were changed. Counters and registers restart, buckets full. Raises ControlError at the first thing that
    ``new`` cannot hold.
    """
    for profile in old.info.profiles.values():
        for member in old.switch.profile(profile.name).members():
            new.switch.profile(profile.name).insert_member(member)
        for members in old.switch.profile(profile.name).groups():
            new.switch.profile(profile.name).insert_group(members)
    for table in old.info.tables.values():
        if not table.constant:
            _carry_over_entries(old, new, table.name)
        default = old.switch.table(table.name).default()
        if (
            default is not None
            and not table.const_default
            and default != new.switch.table(table.name).default()
        ):
            new.switch.table(table.name).set_default(*default)
    for group, replicas in old.switch.multicast_groups.all().items():
        new.switch.multicast_groups.set(group, replicas)
    for number, session in old.switch.clone_sessions.all().items():
        new.switch.clone_sessions.set(number, session.replicas, session.packet_length)
    for meter in old.info.meters.values():
        for index in range(meter.size):
            config = old.switch.meter(meter.name).config(index)
            if config is not None:
                new.switch.meter(meter.name).configure(config, index)
    new.digests.carry_over(old.digests)
    for value_set in old.info.value_sets.values():
        if chosen := old.switch.value_set(value_set.name).members():
            new.switch.value_set(value_set.name).set(chosen)
    _carry_over_crcs(old.switch, new.switch)
    new.default_notes.update(old.default_notes)
    new.group_notes.update(old.group_notes)
    new.session_notes.update(old.session_notes)


def _carry_over_entries(old: Pipeline, new: Pipeline, table: str) -> None:
    """Carry over a table's entries, with their notes; the new program may pack their keys otherwise."""
    before, after = old.switch.table(table), new.switch.table(table)
    for stored in before.packed_entries():
        entry = before.unpacked(stored)
        after.insert(entry)
        if (table, stored.key) in old.notes:
            new.notes[table, after.keys.pack(entry.key, entry.priority)] = old.notes[table, stored.key]


def _carry_over_crcs(old: Switch, new: Switch) -> None:
    """Carry over those that were changed; parameters mean nothing to a CRC of another width."""
    for name, parameters in old.crcs.all().items():
        before, after = old.program.calculations[name], new.program.calculations.get(name)
        if parameters == before.crc:
            continue
        if after is not None and after.crc is not None and after.crc_bits != before.crc_bits:
            message = f"{name} has {after.crc_bits} bits, not {before.crc_bits} as the CRC that was changed"
            raise ControlError(Code.INVALID_ARGUMENT, message)
        new.crcs.set(name, parameters)
