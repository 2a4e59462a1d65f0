# SPDX-License-Identifier: Apache-2.0
"""The compiled program for Tofino beside the one for v1model, with as many packets as one likes.

``python -m tests.p4src.tofino_executor --seeds 100`` runs the cases of ``test_tofino_executor.py``, those
drawn at random with that many seeds at each place, and prints how many packets were compared, what was
decided of them, and which rows of the compiled program's constant tables none of them hit. Whatever differs
ends it.
"""

import argparse
from collections import Counter

from tests.harness.bfa.tables import Table
from tests.harness.soft import SoftTarget
from tests.harness.target import EVENTS
from tests.harness.tofino import BfaTarget
from tests.p4src import test_tna
from weir.wire.definition import GROUP_LANES, Event

SEEDS = 256  # jobs of different seeds have different ids


def compare(seeds: int) -> BfaTarget:
    """Send all cases to both programs; return the compiled one.

    Raises:
        AssertionError: they differ.
    """
    targets = SoftTarget(), BfaTarget()
    for groups in (1, 2):
        targets[1].lanes = groups * GROUP_LANES
        for place in test_tna.PLACES:
            for seed in range(seeds):
                test_tna.test_it_decides_as_the_program_for_v1model(targets, groups, place, seed)
        for place in ("root", "spine"):
            test_tna.test_every_child_of_a_full_switch_counts_is_asked_and_gets_its_copy(
                targets, groups, place
            )
        test_tna.test_all_marks_of_children_and_parents_go_where_they_go(targets, groups)
        for wrong in test_tna.MALFORMED:
            test_tna.test_what_no_slot_packet_says_is_refused(targets, groups, wrong)
        test_tna.test_questions_of_workers_and_wrong_checksums_are_refused(targets, groups)
    return targets[1]


def rows(table: Table) -> str:
    """Return which of a constant table's rows were never hit."""
    missed = [str(entry.rank) for entry in table.entries if not entry.packets]
    hit = len(table.entries) - len(missed)
    return f"{table.name}: {hit} of {len(table.entries)}" + (f"; not {', '.join(missed)}" if missed else "")


def main() -> None:
    """Compare, and report: the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8, help=f"of packets drawn at random, at most {SEEDS}")
    options = parser.parse_args()
    target = compare(min(options.seeds, SEEDS))
    counts = Counter({event.name: target.counter(EVENTS, event).packets for event in Event})
    print(f"{counts.total()} packets, no difference")
    for name, count in counts.most_common():
        if count:
            print(f"{count:8} {name}")
    for gress in (target.program.ingress, target.program.egress):
        for table in gress.tables.values():
            if table.static:
                print(rows(table))


if __name__ == "__main__":
    main()
