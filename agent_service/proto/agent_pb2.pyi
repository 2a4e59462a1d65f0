from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("job", "token", "size", "rank", "host", "ip", "udp_port", "slots", "timeout_s", "process", "wire_version", "ranks", "keyed", "revocable", "publishes", "subscribes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    REVOCABLE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBES_FIELD_NUMBER: _ClassVar[int]
    job: str
    token: str
    size: int
    rank: int
    host: str
    ip: str
    udp_port: int
    slots: int
    timeout_s: float
    process: str
    wire_version: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    keyed: bool
    revocable: bool
    publishes: bool
    subscribes: bool
    def __init__(self, job: _Optional[str] = ..., token: _Optional[str] = ..., size: _Optional[int] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., ip: _Optional[str] = ..., udp_port: _Optional[int] = ..., slots: _Optional[int] = ..., timeout_s: _Optional[float] = ..., process: _Optional[str] = ..., wire_version: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., keyed: _Optional[bool] = ..., revocable: _Optional[bool] = ..., publishes: _Optional[bool] = ..., subscribes: _Optional[bool] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("mac", "ip", "udp_port")
    MAC_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    mac: str
    ip: str
    udp_port: int
    def __init__(self, mac: _Optional[str] = ..., ip: _Optional[str] = ..., udp_port: _Optional[int] = ...) -> None: ...

class ClaimedPort(_message.Message):
    __slots__ = ("host", "udp_port", "key")
    HOST_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    host: str
    udp_port: int
    key: bytes
    def __init__(self, host: _Optional[str] = ..., udp_port: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("job_id", "size", "slots", "lease_s", "aggregation", "host", "host_name", "shm_dir", "switch_port", "switch_name", "fill", "paths", "wire_version", "one_column", "max_lanes", "wide", "key", "claimed", "group", "publisher", "rank")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    SHM_DIR_FIELD_NUMBER: _ClassVar[int]
    SWITCH_PORT_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ONE_COLUMN_FIELD_NUMBER: _ClassVar[int]
    MAX_LANES_FIELD_NUMBER: _ClassVar[int]
    WIDE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    size: int
    slots: int
    lease_s: float
    aggregation: Endpoint
    host: Endpoint
    host_name: str
    shm_dir: str
    switch_port: int
    switch_name: str
    fill: bool
    paths: _containers.RepeatedScalarFieldContainer[int]
    wire_version: int
    one_column: bool
    max_lanes: int
    wide: bool
    key: bytes
    claimed: ClaimedPort
    group: Endpoint
    publisher: Endpoint
    rank: int
    def __init__(self, job_id: _Optional[int] = ..., size: _Optional[int] = ..., slots: _Optional[int] = ..., lease_s: _Optional[float] = ..., aggregation: _Optional[_Union[Endpoint, _Mapping]] = ..., host: _Optional[_Union[Endpoint, _Mapping]] = ..., host_name: _Optional[str] = ..., shm_dir: _Optional[str] = ..., switch_port: _Optional[int] = ..., switch_name: _Optional[str] = ..., fill: _Optional[bool] = ..., paths: _Optional[_Iterable[int]] = ..., wire_version: _Optional[int] = ..., one_column: _Optional[bool] = ..., max_lanes: _Optional[int] = ..., wide: _Optional[bool] = ..., key: _Optional[bytes] = ..., claimed: _Optional[_Union[ClaimedPort, _Mapping]] = ..., group: _Optional[_Union[Endpoint, _Mapping]] = ..., publisher: _Optional[_Union[Endpoint, _Mapping]] = ..., rank: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("job_id", "rank", "token", "busy")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    rank: int
    token: str
    busy: bool
    def __init__(self, job_id: _Optional[int] = ..., rank: _Optional[int] = ..., token: _Optional[str] = ..., busy: _Optional[bool] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("kind", "reason", "rank", "reductions")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[JobEvent.Kind]
        RUNNING: _ClassVar[JobEvent.Kind]
        MEMBER_LEFT: _ClassVar[JobEvent.Kind]
        STOPPED: _ClassVar[JobEvent.Kind]
        RECLAIM: _ClassVar[JobEvent.Kind]
    UNKNOWN: JobEvent.Kind
    RUNNING: JobEvent.Kind
    MEMBER_LEFT: JobEvent.Kind
    STOPPED: JobEvent.Kind
    RECLAIM: JobEvent.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REDUCTIONS_FIELD_NUMBER: _ClassVar[int]
    kind: JobEvent.Kind
    reason: str
    rank: int
    reductions: int
    def __init__(self, kind: _Optional[_Union[JobEvent.Kind, str]] = ..., reason: _Optional[str] = ..., rank: _Optional[int] = ..., reductions: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("job_id", "rank", "token", "reason", "reductions")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REDUCTIONS_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    rank: int
    token: str
    reason: str
    reductions: int
    def __init__(self, job_id: _Optional[int] = ..., rank: _Optional[int] = ..., token: _Optional[str] = ..., reason: _Optional[str] = ..., reductions: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("page_token", "job", "token")
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_token: str
    job: str
    token: str
    def __init__(self, page_token: _Optional[str] = ..., job: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("packets", "bytes")
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    packets: int
    bytes: int
    def __init__(self, packets: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PortStatus(_message.Message):
    __slots__ = ("port", "host", "mac", "ip", "shm_dir", "up", "down", "claimed")
    PORT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    SHM_DIR_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    port: int
    host: str
    mac: str
    ip: str
    shm_dir: str
    up: Traffic
    down: Traffic
    claimed: ClaimedPort
    def __init__(self, port: _Optional[int] = ..., host: _Optional[str] = ..., mac: _Optional[str] = ..., ip: _Optional[str] = ..., shm_dir: _Optional[str] = ..., up: _Optional[_Union[Traffic, _Mapping]] = ..., down: _Optional[_Union[Traffic, _Mapping]] = ..., claimed: _Optional[_Union[ClaimedPort, _Mapping]] = ...) -> None: ...

class EventCount(_message.Message):
    __slots__ = ("event", "name", "help", "drop", "count")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    event: int
    name: str
    help: str
    drop: bool
    count: Traffic
    def __init__(self, event: _Optional[int] = ..., name: _Optional[str] = ..., help: _Optional[str] = ..., drop: _Optional[bool] = ..., count: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("queue", "queued", "trimmed", "marked", "dropped")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    MARKED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    queue: int
    queued: Traffic
    trimmed: Traffic
    marked: Traffic
    dropped: Traffic
    def __init__(self, queue: _Optional[int] = ..., queued: _Optional[_Union[Traffic, _Mapping]] = ..., trimmed: _Optional[_Union[Traffic, _Mapping]] = ..., marked: _Optional[_Union[Traffic, _Mapping]] = ..., dropped: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class ClassStatus(_message.Message):
    __slots__ = ("dscp", "name", "queue", "trim_at", "mark_at", "drop_at", "traffic")
    DSCP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TRIM_AT_FIELD_NUMBER: _ClassVar[int]
    MARK_AT_FIELD_NUMBER: _ClassVar[int]
    DROP_AT_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    dscp: int
    name: str
    queue: int
    trim_at: int
    mark_at: int
    drop_at: int
    traffic: Traffic
    def __init__(self, dscp: _Optional[int] = ..., name: _Optional[str] = ..., queue: _Optional[int] = ..., trim_at: _Optional[int] = ..., mark_at: _Optional[int] = ..., drop_at: _Optional[int] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class PathStatus(_message.Message):
    __slots__ = ("port", "spine", "traffic")
    PORT_FIELD_NUMBER: _ClassVar[int]
    SPINE_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    port: int
    spine: str
    traffic: Traffic
    def __init__(self, port: _Optional[int] = ..., spine: _Optional[str] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class LossStatus(_message.Message):
    __slots__ = ("port", "direction", "dscp", "probability")
    PORT_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    DSCP_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    port: int
    direction: str
    dscp: int
    probability: float
    def __init__(self, port: _Optional[int] = ..., direction: _Optional[str] = ..., dscp: _Optional[int] = ..., probability: _Optional[float] = ...) -> None: ...

class SwitchStatus(_message.Message):
    __slots__ = ("name", "address", "program", "state", "problem", "entries", "slots", "slots_used", "ports", "events", "role", "given_up", "queues", "classes", "paths", "spray", "losses")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    SPRAY_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    program: str
    state: str
    problem: str
    entries: int
    slots: int
    slots_used: int
    ports: _containers.RepeatedCompositeFieldContainer[PortStatus]
    events: _containers.RepeatedCompositeFieldContainer[EventCount]
    role: str
    given_up: bool
    queues: _containers.RepeatedCompositeFieldContainer[QueueStatus]
    classes: _containers.RepeatedCompositeFieldContainer[ClassStatus]
    paths: _containers.RepeatedCompositeFieldContainer[PathStatus]
    spray: str
    losses: _containers.RepeatedCompositeFieldContainer[LossStatus]
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., program: _Optional[str] = ..., state: _Optional[str] = ..., problem: _Optional[str] = ..., entries: _Optional[int] = ..., slots: _Optional[int] = ..., slots_used: _Optional[int] = ..., ports: _Optional[_Iterable[_Union[PortStatus, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[EventCount, _Mapping]]] = ..., role: _Optional[str] = ..., given_up: _Optional[bool] = ..., queues: _Optional[_Iterable[_Union[QueueStatus, _Mapping]]] = ..., classes: _Optional[_Iterable[_Union[ClassStatus, _Mapping]]] = ..., paths: _Optional[_Iterable[_Union[PathStatus, _Mapping]]] = ..., spray: _Optional[str] = ..., losses: _Optional[_Iterable[_Union[LossStatus, _Mapping]]] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("rank", "host", "port", "state", "silent_s", "up", "down")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    port: int
    state: str
    silent_s: float
    up: Traffic
    down: Traffic
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., state: _Optional[str] = ..., silent_s: _Optional[float] = ..., up: _Optional[_Union[Traffic, _Mapping]] = ..., down: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("name", "job_id", "state", "size", "leaves", "slot_base", "slot_count", "members", "spines")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SPINES_FIELD_NUMBER: _ClassVar[int]
    name: str
    job_id: int
    state: str
    size: int
    leaves: _containers.RepeatedScalarFieldContainer[str]
    slot_base: int
    slot_count: int
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    spines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., job_id: _Optional[int] = ..., state: _Optional[str] = ..., size: _Optional[int] = ..., leaves: _Optional[_Iterable[str]] = ..., slot_base: _Optional[int] = ..., slot_count: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., spines: _Optional[_Iterable[str]] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("switches", "jobs", "next_page_token", "continued")
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[SwitchStatus]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    next_page_token: str
    continued: bool
    def __init__(self, switches: _Optional[_Iterable[_Union[SwitchStatus, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., continued: _Optional[bool] = ...) -> None: ...
