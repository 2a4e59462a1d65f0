from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClassStatus(_message.Message):
    __slots__ = ["drop_at", "dscp", "mark_at", "name", "queue", "traffic", "trim_at"]
    DROP_AT_FIELD_NUMBER: _ClassVar[int]
    DSCP_FIELD_NUMBER: _ClassVar[int]
    MARK_AT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    TRIM_AT_FIELD_NUMBER: _ClassVar[int]
    drop_at: int
    dscp: int
    mark_at: int
    name: str
    queue: int
    traffic: Traffic
    trim_at: int
    def __init__(self, dscp: _Optional[int] = ..., name: _Optional[str] = ..., queue: _Optional[int] = ..., trim_at: _Optional[int] = ..., mark_at: _Optional[int] = ..., drop_at: _Optional[int] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ["ip", "mac", "udp_port"]
    IP_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    ip: str
    mac: str
    udp_port: int
    def __init__(self, mac: _Optional[str] = ..., ip: _Optional[str] = ..., udp_port: _Optional[int] = ...) -> None: ...

class EventCount(_message.Message):
    __slots__ = ["count", "drop", "event", "help", "name"]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    count: Traffic
    drop: bool
    event: int
    help: str
    name: str
    def __init__(self, event: _Optional[int] = ..., name: _Optional[str] = ..., help: _Optional[str] = ..., drop: bool = ..., count: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ["job_id", "rank", "token"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    rank: int
    token: str
    def __init__(self, job_id: _Optional[int] = ..., rank: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ["kind", "rank", "reason"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMBER_LEFT: JobEvent.Kind
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUNNING: JobEvent.Kind
    STOPPED: JobEvent.Kind
    UNKNOWN: JobEvent.Kind
    kind: JobEvent.Kind
    rank: int
    reason: str
    def __init__(self, kind: _Optional[_Union[JobEvent.Kind, str]] = ..., reason: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ["job_id", "leaves", "members", "name", "size", "slot_base", "slot_count", "spines", "state"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SPINES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    leaves: _containers.RepeatedScalarFieldContainer[str]
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    name: str
    size: int
    slot_base: int
    slot_count: int
    spines: _containers.RepeatedScalarFieldContainer[str]
    state: str
    def __init__(self, name: _Optional[str] = ..., job_id: _Optional[int] = ..., state: _Optional[str] = ..., size: _Optional[int] = ..., leaves: _Optional[_Iterable[str]] = ..., slot_base: _Optional[int] = ..., slot_count: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., spines: _Optional[_Iterable[str]] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ["aggregation", "fill", "host", "host_name", "job_id", "lease_s", "shm_dir", "size", "slots", "switch_name", "switch_port"]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    SHM_DIR_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    SWITCH_PORT_FIELD_NUMBER: _ClassVar[int]
    aggregation: Endpoint
    fill: bool
    host: Endpoint
    host_name: str
    job_id: int
    lease_s: float
    shm_dir: str
    size: int
    slots: int
    switch_name: str
    switch_port: int
    def __init__(self, job_id: _Optional[int] = ..., size: _Optional[int] = ..., slots: _Optional[int] = ..., lease_s: _Optional[float] = ..., aggregation: _Optional[_Union[Endpoint, _Mapping]] = ..., host: _Optional[_Union[Endpoint, _Mapping]] = ..., host_name: _Optional[str] = ..., shm_dir: _Optional[str] = ..., switch_port: _Optional[int] = ..., switch_name: _Optional[str] = ..., fill: bool = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ["host", "ip", "job", "process", "rank", "size", "slots", "timeout_s", "token", "udp_port"]
    HOST_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    ip: str
    job: str
    process: str
    rank: int
    size: int
    slots: int
    timeout_s: float
    token: str
    udp_port: int
    def __init__(self, job: _Optional[str] = ..., token: _Optional[str] = ..., size: _Optional[int] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., ip: _Optional[str] = ..., udp_port: _Optional[int] = ..., slots: _Optional[int] = ..., timeout_s: _Optional[float] = ..., process: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ["job_id", "rank", "token"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    rank: int
    token: str
    def __init__(self, job_id: _Optional[int] = ..., rank: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class LossStatus(_message.Message):
    __slots__ = ["direction", "dscp", "port", "probability"]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    DSCP_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    direction: str
    dscp: int
    port: int
    probability: float
    def __init__(self, port: _Optional[int] = ..., direction: _Optional[str] = ..., dscp: _Optional[int] = ..., probability: _Optional[float] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ["down", "host", "port", "rank", "silent_s", "state", "up"]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    down: Traffic
    host: str
    port: int
    rank: int
    silent_s: float
    state: str
    up: Traffic
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., state: _Optional[str] = ..., silent_s: _Optional[float] = ..., up: _Optional[_Union[Traffic, _Mapping]] = ..., down: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class PathStatus(_message.Message):
    __slots__ = ["port", "spine", "traffic"]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SPINE_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    port: int
    spine: str
    traffic: Traffic
    def __init__(self, port: _Optional[int] = ..., spine: _Optional[str] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class PortStatus(_message.Message):
    __slots__ = ["down", "host", "ip", "mac", "port", "shm_dir", "up"]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SHM_DIR_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    down: Traffic
    host: str
    ip: str
    mac: str
    port: int
    shm_dir: str
    up: Traffic
    def __init__(self, port: _Optional[int] = ..., host: _Optional[str] = ..., mac: _Optional[str] = ..., ip: _Optional[str] = ..., shm_dir: _Optional[str] = ..., up: _Optional[_Union[Traffic, _Mapping]] = ..., down: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ["dropped", "marked", "queue", "queued", "trimmed"]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    MARKED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    dropped: Traffic
    marked: Traffic
    queue: int
    queued: Traffic
    trimmed: Traffic
    def __init__(self, queue: _Optional[int] = ..., queued: _Optional[_Union[Traffic, _Mapping]] = ..., trimmed: _Optional[_Union[Traffic, _Mapping]] = ..., marked: _Optional[_Union[Traffic, _Mapping]] = ..., dropped: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ["jobs", "switches"]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    switches: _containers.RepeatedCompositeFieldContainer[SwitchStatus]
    def __init__(self, switches: _Optional[_Iterable[_Union[SwitchStatus, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class SwitchStatus(_message.Message):
    __slots__ = ["address", "classes", "entries", "events", "given_up", "losses", "name", "paths", "ports", "problem", "program", "queues", "role", "slots", "slots_used", "spray", "state"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    SPRAY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    address: str
    classes: _containers.RepeatedCompositeFieldContainer[ClassStatus]
    entries: int
    events: _containers.RepeatedCompositeFieldContainer[EventCount]
    given_up: bool
    losses: _containers.RepeatedCompositeFieldContainer[LossStatus]
    name: str
    paths: _containers.RepeatedCompositeFieldContainer[PathStatus]
    ports: _containers.RepeatedCompositeFieldContainer[PortStatus]
    problem: str
    program: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueStatus]
    role: str
    slots: int
    slots_used: int
    spray: str
    state: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., program: _Optional[str] = ..., state: _Optional[str] = ..., problem: _Optional[str] = ..., entries: _Optional[int] = ..., slots: _Optional[int] = ..., slots_used: _Optional[int] = ..., ports: _Optional[_Iterable[_Union[PortStatus, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[EventCount, _Mapping]]] = ..., role: _Optional[str] = ..., given_up: bool = ..., queues: _Optional[_Iterable[_Union[QueueStatus, _Mapping]]] = ..., classes: _Optional[_Iterable[_Union[ClassStatus, _Mapping]]] = ..., paths: _Optional[_Iterable[_Union[PathStatus, _Mapping]]] = ..., spray: _Optional[str] = ..., losses: _Optional[_Iterable[_Union[LossStatus, _Mapping]]] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ["bytes", "packets"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    packets: int
    def __init__(self, packets: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
