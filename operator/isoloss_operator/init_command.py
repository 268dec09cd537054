"""Where an environment installed before `commands` looks for `isoloss init`."""

from isoloss_operator.commands.init import init as init
