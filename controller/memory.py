# SPDX-License-Identifier: Apache-2.0
"""The memory of a controller over a restart: the jobs that run, so that they go on running.

One JSON file, rewritten whole when something changes, readable by its owner alone: it holds the jobs' tokens.
It has a checksum, and is taken only as it was written: a damaged one would give slots and ports to others.
"""

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from softp4.native.files import write_atomically
from softp4.native.json_text import parse_object
from weir.controller.job_tree import JobTree
from weir.controller.jobs import Job, JobState, Member, MemberState
from weir.controller.slots import SlotRange
from weir.controller.topology import Topology
from weir.wire.definition import MAX_WORKERS

_FORMAT: Final = "weir-controller-state-1"
_PROBE: Final = 4096  # bytes, which a few jobs take
_Changing: TypeAlias = tuple[frozenset[str] | None, frozenset[str] | None, tuple[tuple[bool, int], ...], int]


class StateFileError(Exception):
    """A state file that cannot be used. The message names it and says what to do."""


class _Record(BaseModel):
    """A part of the file. Fields in ``left_out`` are not written where they are false, as older ones are."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    left_out: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if value or name not in self.left_out}


class _MemberRecord(_Record):
    rank: int = Field(ge=0, lt=MAX_WORKERS)
    host: str
    udp_port: int = Field(gt=0, lt=1 << 16)
    process: str
    left: bool
    ranks: tuple[Annotated[int, Field(ge=0)], ...] = ()
    reductions: int = Field(default=0, ge=0)
    left_out = ("reductions",)


class _JobRecord(_Record):
    id: int = Field(gt=0, lt=1 << 32)
    name: str = Field(min_length=1)
    token: str
    size: int = Field(ge=1, le=MAX_WORKERS)
    slots_wanted: int = Field(ge=0)
    slot_base: int = Field(ge=0)
    slot_count: int = Field(gt=0)
    switches: tuple[str, ...]
    parents: tuple[str, ...] | None
    uplinks: tuple[str, ...] | None
    members: tuple[_MemberRecord, ...]
    revocable: bool = False
    publishes: bool = False
    subscribed: int = 0
    left_out = ("revocable", "publishes", "subscribed")

    @model_validator(mode="after")
    def _has_its_members(self) -> "_JobRecord":
        if sorted(member.rank for member in self.members) != list(range(self.size)):
            raise ValueError(f"the members are not the {self.size} ranks")
        return self


class _File(_Record):
    jobs: tuple[_JobRecord, ...]
    format: str
    sha256: str


class Memory:
    """The state file. Without a path, nothing is remembered."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written: str | None = None
        self._texts: dict[int, tuple[_Changing, str]] = {}  # by job id

    @property
    def kept(self) -> bool:
        """Return whether jobs outlive this process."""
        return self._path is not None

    def save(self, jobs: Iterable[Job]) -> None:
        """Remember the running ones of these jobs. Raises StateFileError when the file cannot be written."""
        if self._path is None:
            return
        running = [job for job in jobs if job.state is JobState.RUNNING]
        self._texts = {job.id: self._text(job) for job in running}
        text = _whole(text for _, text in self._texts.values())
        if text == self._written:
            return
        try:
            write_atomically(self._path, text, mode=0o600)
        except OSError as error:
            raise StateFileError(f"cannot write state file {self._path}: {error.strerror}") from None
        self._written = text

    def load(self, topology: Topology) -> list[Job]:
        """Return the jobs remembered, members as if they had just joined; those that left have left.

        A job whose hosts the topology has no more is forgotten, and one that spans racks if the spines are
        others: its slots would be summed elsewhere.

        Raises:
            StateFileError: the file is there but cannot be read, or could not be written.
        """
        if self._path is None:
            return []
        self._try_to_write(self._path)
        if not self._path.exists():
            return []
        try:
            records = _parse(self._path.read_bytes())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StateFileError(
                f"cannot use state file {self._path}: {why}; remove it to start without the jobs in it"
            ) from None
        return [job for record in records if (job := _job(record, topology)) is not None]

    def _text(self, job: Job) -> tuple[_Changing, str]:
        """Return the parts of a running job that may change, and its record, made once for each change."""
        left = tuple((member.state is MemberState.LEFT, member.reductions) for member in job.members.values())
        changing = (job.parents, job.uplinks, left, job.subscribed)
        known = self._texts.get(job.id)
        if known is not None and known[0] == changing:
            return known
        return changing, _record(job).model_dump_json()

    @staticmethod
    def _try_to_write(path: Path) -> None:
        """Raise StateFileError when jobs could not be remembered: better now than in the middle of one."""
        try:
            with tempfile.TemporaryFile(dir=path.parent) as probe:
                probe.write(bytes(_PROBE))
        except OSError as error:
            raise StateFileError(f"cannot write state file {path}: {path.parent}: {error.strerror}") from None


def _whole(jobs: Iterable[str]) -> str:
    """Return the file of jobs, each of them in JSON, with the checksum of them all."""
    body = f'{{"jobs":[{",".join(jobs)}]'
    checksum = hashlib.sha256(f"{body}}}".encode()).hexdigest()
    return f'{body},"format":"{_FORMAT}","sha256":"{checksum}"}}'


def _parse(data: bytes) -> tuple[_JobRecord, ...]:
    """Return the jobs of a file. Raises ValueError unless it is as it was written."""
    found = parse_object(data).get("format")
    if found != _FORMAT:
        said = "it names no format" if found is None else f"its format is {found!r:.60}"
        raise ValueError(f"{said}, not {_FORMAT!r}: the file is damaged, or another version of Weir wrote it")
    try:
        jobs = _File.model_validate_json(data).jobs
    except ValidationError as error:
        raise ValueError(_first(error)) from None
    if _whole(job.model_dump_json() for job in jobs).encode() != data:
        raise ValueError("it is damaged: its checksum does not fit")
    return jobs


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def _record(job: Job) -> _JobRecord:
    assert job.slots is not None, "a running job has slots"
    return _JobRecord(
        id=job.id,
        name=job.name,
        token=job.token,
        size=job.size,
        slots_wanted=job.slots_wanted,
        slot_base=job.slots.base,
        slot_count=job.slots.count,
        switches=job.switches,
        parents=_sorted(job.parents),
        uplinks=_sorted(job.uplinks),
        members=tuple(
            _MemberRecord(
                rank=member.rank,
                host=member.host.name,
                udp_port=member.udp_port,
                process=member.process,
                left=member.state is MemberState.LEFT,
                ranks=member.ranks,
                reductions=member.reductions,
            )
            for member in job.members.values()
        ),
        revocable=job.revocable,
        publishes=job.publishes,
        subscribed=job.subscribed,
    )


def _job(record: _JobRecord, topology: Topology) -> Job | None:
    hosts = {host.name: host for host in topology.hosts}
    if any(member.host not in hosts for member in record.members):
        return None
    job = Job(
        id=record.id,
        name=record.name,
        token=record.token,
        size=record.size,
        slots_wanted=record.slots_wanted,
        members={
            member.rank: Member(
                member.rank,
                hosts[member.host],
                member.udp_port,
                member.process,
                MemberState.LEFT if member.left else MemberState.JOINED,
                ranks=member.ranks,
                reductions=member.reductions,
            )
            for member in record.members
        },
        revocable=record.revocable,
        publishes=record.publishes,
        subscribed=record.subscribed,
        state=JobState.RUNNING,
        slots=SlotRange(record.slot_base, record.slot_count),
        switches=record.switches,
        parents=None if record.parents is None else frozenset(record.parents),
        uplinks=None if record.uplinks is None else frozenset(record.uplinks),
    )
    return job if job.switches == (*job.leaves, *JobTree.of(topology, job).joining) else None


def _sorted(names: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(sorted(names))
