#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Puts the sources of zstd's C library where Kbuild looks for them, in zstd/ beside Kbuild:
#   zstd-sources.sh DIR [CARGO]
# They are those of the zstd-sys crate, in the version of Cargo.lock, which the host build of the
# codec links: both then write the same bytes. CARGO (default: cargo) downloads the crate if need
# be and checks it against Cargo.lock. What is in DIR already is kept if it is of that version.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
. "$scripts/common.sh"
repo=$(dirname "$scripts")
dir=$1
cargo=${2:-cargo}

die() {
	echo "zstd-sources: $1" >&2
	shift
	for line in "$@"; do
		echo "    $line" >&2
	done
	exit 1
}

wanted=$(sed -n '/^name = "zstd-sys"$/,/^$/p' "$repo/Cargo.lock")
[ -n "$wanted" ] || die "$repo/Cargo.lock names no zstd-sys"
if [ "$(cat "$dir/crate" 2>/dev/null)" = "$wanted" ]; then
	exit 0
fi

command -v "$cargo" >/dev/null || die "no cargo in the PATH to fetch zstd's sources with" \
	"install one (any version from 1.85 on), or let AgentZip build: cargo xtask build modules"
metadata=$("$cargo" metadata --manifest-path "$repo/Cargo.toml" --format-version 1 --locked \
	--all-features --filter-platform x86_64-unknown-linux-gnu) ||
	die "$cargo could not fetch the crates of $repo/Cargo.lock, see above"
crate=$(printf '%s\n' "$metadata" |
	sed -n 's|.*"manifest_path":"\([^"]*/zstd-sys-[^"/]*\)/Cargo.toml".*|\1|p')
# The path inside of the toolchain root, where cargo.sh runs.
case $crate in
/agentzip/cargo/*) crate=$(agentzip_cache)/cargo/${crate#/agentzip/cargo/} ;;
esac
[ -e "$crate/zstd/lib/zstd.h" ] || die "no zstd/lib/zstd.h in the zstd-sys crate (${crate:-not found})"

rm -rf "$dir"
for part in common compress decompress; do
	mkdir -p "$dir/$part"
	cp "$crate/zstd/lib/$part"/*.[ch] "$dir/$part"
done
cp "$crate/zstd/lib/zstd.h" "$crate/zstd/lib/zstd_errors.h" "$crate/zstd/LICENSE" \
	"$crate/zstd/COPYING" "$dir"
echo "$wanted" >"$dir/crate"
