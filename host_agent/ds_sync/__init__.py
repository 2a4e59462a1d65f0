# SPDX-License-Identifier: Apache-2.0
"""DS-Sync: parameters averaged in small groups that change from step to step."""

from host_agent.ds_sync.averager import DsSync
from host_agent.ds_sync.groups import NoSlotsError
from host_agent.ds_sync.schedule import Group, Schedule

__all__ = ["DsSync", "Group", "NoSlotsError", "Schedule"]
