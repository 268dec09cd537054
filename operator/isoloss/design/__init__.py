"""What runs will tell of a target before they are trained: the expected error of the answer, and what it costs.

Pure: see knowledge.py for the model, setting.py for what is taken for granted.
"""

from isoloss.design.knowledge import Knowledge, Outlook, effects, evidence
from isoloss.design.setting import (
    PlannedRun,
    Setting,
    Target,
    centre_below,
    grid_about,
    token_slope,
)
