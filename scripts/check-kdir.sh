#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Says clearly why a kernel tree cannot build Rust modules: check-kdir.sh KDIR
set -eu
kdir=$1

die() {
	echo "modules: $1" >&2
	shift
	for line in "$@"; do
		echo "    $line" >&2
	done
	exit 1
}

[ -d "$kdir" ] || die "KDIR=$kdir is no folder" \
	"give the build tree of a kernel: make modules KDIR=/path/to/tree" \
	"or let AgentZip make one for Debian's kernel: cargo xtask build modules"
[ -e "$kdir/.config" ] || die "$kdir has no .config: it is no configured kernel tree"
grep -q '^CONFIG_RUST=y' "$kdir/.config" || die "the kernel of $kdir is built without CONFIG_RUST" \
	"Rust modules cannot be loaded into it"
[ -e "$kdir/rust/libkernel.rmeta" ] || die "$kdir lacks the Rust metadata (rust/libkernel.rmeta)" \
	"distributions' header packages do not carry it; in a full source tree with this .config run:" \
	"    make O=BUILD olddefconfig && make O=BUILD prepare modules_prepare" \
	"and use KDIR=BUILD, or let AgentZip do that for Debian's kernel: cargo xtask build modules"

wanted=$(sed -n 's/^CONFIG_RUSTC_VERSION_TEXT="\(.*\)"$/\1/p' "$kdir/.config")
rustc=${RUSTC:-rustc}
found=$("$rustc" --version 2>/dev/null) || die "no rustc in the PATH" "$kdir was built by: $wanted"
[ "$found" = "$wanted" ] || die "$kdir was built by another rustc" \
	"the tree:  $wanted" \
	"this one:  $found ($(command -v "$rustc"))" \
	"metadata is only readable to the compiler that wrote it: set PATH or RUSTC to that one," \
	"or let AgentZip build with Debian's own: cargo xtask build modules"
