# SPDX-License-Identifier: Apache-2.0
"""The rules of an audit, each with what to do where it is broken."""

from enum import Enum


class Rule(Enum):
    """A rule of the protocol (protocol.md, flows.md), by the name that findings carry."""

    WELL_FORMED = (
        "well-formed",
        "only Weir packets are sent to Weir's ports",
        "find the sender by its MAC address: another version of Weir, or another program on its port",
    )
    CHECKSUM = (
        "checksum",
        "the checksums of IPv4 and UDP are right; UDP's may be left out",
        "a device damages packets or mends their headers wrongly: exchange cable, NIC or switch behind which "
        "they are wrong. Receivers drop them",
    )
    LENGTH = (
        "length",
        "Ethernet, IPv4 and UDP agree how long a packet is, and it is one piece",
        "a device cuts, lengthens or fragments packets: raise its MTU to Weir's longest frame",
    )
    ADDRESS = (
        "address",
        "an address is at one MAC address of a link; results go to where the child's packets come from",
        "compare the switch's receivers with the hosts (weir status, weir shell), and look for a second "
        "machine with the address, or a host that forges it",
    )
    ON_THE_WAY = (
        "on the way",
        "a device that forwards a packet changes only its hop, congestion marks and lanes",
        "the device between the two frames rewrites packets: let it trust DSCP and ECN, and leave payloads",
    )
    ROUND_ORDER = (
        "round order",
        "nobody sends round r + 1 of a slot before the result of round r was sent to it",
        "its result was lost before the capture, or the switch's multicast group lacks the worker's port",
    )
    SAME_LANES = (
        "same lanes",
        "a retransmission equals the original packet, on every link",
        "memory was changed while it was sent, or a device changed the payload: see `on the way`",
    )
    COMPLETE = (
        "complete",
        "no result leaves before a packet of every child has come",
        "the switch counts children that are not there: compare its workers' masks (weir status), reload its "
        "program",
    )
    DELIVERY = (
        "delivery",
        "a result is sent to every child of the round, not only to those that ask again",
        "the switch's multicast group lacks the child's port, or its receiver entry is missing: let the "
        "controller write the entries again",
    )
    MASK = (
        "mask",
        "every worker that a result includes and counts sent lanes that were added",
        "the switch's masks are wrong: reload its program, and report the capture",
    )
    BUDGET = (
        "loss budget",
        "every worker that a result lacks had released its lanes, and stays within its budget",
        "a sender must not release more than its budget, and a switch must not omit protected lanes: "
        "report the capture with the method's options",
    )
    SUMS = (
        "sums",
        "at every switch, a sum equals the sum of the included contributions",
        "the switch adds wrongly, or the sums were changed on their way: do not use the run's results; "
        "reload the switch's program",
    )
    REPLICAS = (
        "replicas",
        "all results of a round are the same, whenever they are sent",
        "replicas of the model differ from here on: start them again from a checkpoint; reload the switch's "
        "program",
    )
    NEXT = (
        "next",
        "a result asks for the least block that was announced, and gets it in the next round",
        "blocks are skipped or summed in the wrong place: do not use the run's results; report the capture",
    )
    AUDIENCE = (
        "audience",
        "lanes of a result go to its audience, and to nobody else",
        "compare paths and masks of the switch's receivers with the job's (weir status)",
    )
    OPERATION = (
        "operation",
        "all packets of a round are of one operation, or its result says otherwise",
        "the ranks call different collectives: compare what each calls, and in which order",
    )
    CLASS = (
        "class",
        "DSCP and ECN agree with the packet's classes and flags",
        "the sender's version differs, or a device before the capture re-marks packets: let it trust DSCP",
    )
    TRIMMED = (
        "trimmed",
        "a trimmed packet has neither lanes nor data, and travels in the top class",
        "the device that trims does not follow docs/internals/protocol.md: turn trimming off there",
    )
    PRIORITY = (
        "priority",
        "no packet overtakes one of its own or of a higher class on a link",
        "compare the switch's queues with the topology's classes (weir status)",
    )
    SPRAY = (
        "spray",
        "equal-cost links carry equal shares of sprayed packets",
        "a path is down, or missing in the switch's group: weir status shows the paths",
    )
    SETTLEMENT = (
        "settlement",
        "a flow's receiver acknowledges only chunks that arrived, and gives up only chunks that the budget "
        "allows",
        "do not use this flow's tensors; report the capture",
    )

    def __init__(self, title: str, promise: str, remedy: str) -> None:
        self.title = title
        self.promise = promise
        self.remedy = remedy
