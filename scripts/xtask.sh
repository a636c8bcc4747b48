#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# `cargo xtask`, also where there is no usable cargo: then xtask is built inside
# the Debian 13 root (see bootstrap.sh), without shared libraries, and run here.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
. "$scripts/common.sh"
repo=$(dirname "$scripts")
cd "$repo"

if agentzip_host_cargo; then
	exec cargo xtask "$@"
fi
toolchain=$(agentzip_toolchain "$scripts")
if [ ! -d "$toolchain" ]; then
	echo "xtask: no cargo >= 1.85, and no Debian 13 root yet: run scripts/bootstrap.sh first" >&2
	exit 1
fi
target=x86_64-unknown-linux-gnu
# --target keeps the flag away from build scripts and macros, which need shared libraries.
RUSTFLAGS="-C target-feature=+crt-static" "$scripts/cargo.sh" build --quiet --locked --package xtask --target $target
exec "$repo/target/pinned/$target/debug/xtask" "$@"
