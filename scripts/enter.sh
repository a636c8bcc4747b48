#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Runs a command inside a root folder made by set-up:
#   enter.sh ROOT [--bind FROM:TO]... [--user UID:GID] [--cwd DIR] -- COMMAND...
set -eu
. "$(dirname "$0")/common.sh"
agentzip_enter "$@"
