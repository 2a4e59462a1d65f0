# SPDX-License-Identifier: Apache-2.0
"""DS-Sync: parameters averaged in small groups that change from step to step."""

from weir.host_agent.torch.ds_sync.averager import DsSync
from weir.host_agent.torch.ds_sync.groups import NoSlotsError
from weir.host_agent.torch.ds_sync.schedule import Group, Schedule

__all__ = ["DsSync", "Group", "NoSlotsError", "Schedule"]
