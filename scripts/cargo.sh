#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# The cargo of the Debian 13 root (1.85.1), on this repository, with
# target/pinned as its target folder: the same compiler on every machine.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
. "$scripts/common.sh"
repo=$(dirname "$scripts")
home=$(agentzip_cache)/cargo
mkdir -p "$home" "$repo/target/pinned"
# A registry mirror that the user has configured is used here too.
for config in "${CARGO_HOME:-$HOME/.cargo}/config.toml"; do
	[ ! -f "$config" ] || cp "$config" "$home/config.toml"
done
agentzip_enter "$(agentzip_toolchain "$scripts")" --bind "$repo:$repo" --bind "$home:/agentzip/cargo" \
	--user "$(id -u):$(id -g)" --cwd "$repo" -- \
	env HOME=/tmp CARGO_HOME=/agentzip/cargo "CARGO_TARGET_DIR=$repo/target/pinned" \
	"RUSTFLAGS=${RUSTFLAGS:-}" "AGENTZIP_CACHE=${AGENTZIP_CACHE:-}" cargo "$@"
