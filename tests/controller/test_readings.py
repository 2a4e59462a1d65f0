# SPDX-License-Identifier: Apache-2.0
"""Many who ask for the switches' counters make one reading, and nobody is told of one that is too old."""

import asyncio
from typing import Any

from weir.controller.readings import Readings
from weir.controller.reconciler import Reading
from weir.controller.switch_client import SwitchError


class Counted:
    """A switch that tells readings apart; it can be asked unless ``problem`` is set."""

    def __init__(self) -> None:
        self.made: list[Reading] = []
        self.problem = ""
        self.asked = False

    async def read(self) -> Reading:
        self.asked = True
        await asyncio.sleep(0)
        if self.problem:
            raise SwitchError(self.problem)
        self.made.append(Reading())
        return self.made[-1]


def readings(switch: Counted, now: list[float]) -> Readings:
    switches: Any = {"s1": switch}
    return Readings(switches, lambda: now[0])


def test_who_asks_while_one_is_under_way_shares_the_next() -> None:
    async def ask() -> None:
        switch, now = Counted(), [1.0]
        made = readings(switch, now)
        early = asyncio.create_task(made.not_older(0.0))
        while not switch.asked:
            await asyncio.sleep(0)
        now[0] = 2.0
        late = [asyncio.create_task(made.not_older(0.0)) for _ in range(50)]
        answers = await asyncio.gather(early, *late)
        assert len(switch.made) == 2
        assert answers[0]["s1"] is switch.made[0]
        assert all(answer["s1"] is switch.made[1] for answer in answers[1:])

    asyncio.run(ask())


def test_one_is_kept_for_as_long_as_its_asker_says() -> None:
    async def ask() -> None:
        switch, now = Counted(), [1.0]
        made = readings(switch, now)
        for at, age, reads in ((1.0, 0.0, 1), (1.9, 1.0, 1), (2.5, 1.0, 2), (2.6, 0.0, 3)):
            now[0] = at
            await made.not_older(age)
            assert len(switch.made) == reads

    asyncio.run(ask())


def test_who_goes_away_stops_nobody() -> None:
    async def ask() -> None:
        switch = Counted()
        made = readings(switch, [1.0])
        first, second = (asyncio.create_task(made.not_older(0.0)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second)["s1"] is switch.made[0]
        assert len(switch.made) == 1

    asyncio.run(ask())


def test_a_switch_that_cannot_be_asked_has_no_counters() -> None:
    switch = Counted()
    switch.problem = "it is not there"
    assert asyncio.run(readings(switch, [1.0]).not_older(0.0)) == {"s1": Reading()}
