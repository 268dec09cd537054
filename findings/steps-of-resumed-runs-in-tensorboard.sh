#!/bin/sh
# Expected: of a run that stopped at step 90 and went on from a checkpoint of step 50, written into one folder, TensorBoard's reader
#   gives each step once, as its own message about "purging expired events" says.
# Seen: it gives steps 50 to 90 twice, the older values first, unless the writer was told the step (purge_step). A table of these
#   scalars has two losses for one step.
# With: tensorboardX 2.6.5, tensorboard 2.21.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorboardX==2.6.5 tensorboard==2.21.0
"$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import sys
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter


def steps(name, **resumed):
    path = f"{sys.argv[1]}/{name}"
    for first, last, options in ((0, 90, {}), (50, 110, resumed)):
        with SummaryWriter(path, **options) as writer:
            for step in range(first, last + 1, 10):
                writer.add_scalar("eval/loss", 3 - first / 100, step)
        time.sleep(1.1)  # files are named by the second
    found = EventAccumulator(path)
    found.Reload()
    return [each.step for each in found.Scalars("eval/loss")]


plain, purged = steps("plain"), steps("purged", purge_step=50)
print(f"resumed: {plain}")
print(f"resumed with purge_step=50: {purged}")
sys.exit(plain != [*range(0, 91, 10), *range(50, 111, 10)] or purged != [*range(0, 111, 10)])
PROGRAM
