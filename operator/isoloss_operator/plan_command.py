"""Where an environment installed before `commands` looks for `isoloss plan`."""

from isoloss_operator.commands.plan import plan as plan
