#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Step 3: a build tree for modules of Debian's kernel with the Rust metadata
# that its headers packages lack. Run as root.
# In: $TOOLCHAIN (step 1), $KERNEL (step 2). Out: $OUT, used as O=.
# The tree knows itself as /agentzip/build and its source as /agentzip/source:
# the two are mounted there whenever it is used.
set -eu
set -x
. "$SCRIPTS/common.sh"

release=$(cat "$KERNEL/release")
headers=$KERNEL/root/usr/src/linux-headers-$release
cp "$headers/.config" "$headers/Module.symvers" "$OUT/"
# The part of the release that Debian appends: 7.3.4+deb13-cloud-amd64 -> +deb13-cloud-amd64.
localversion=+${release#*+}
agentzip_enter "$TOOLCHAIN" --bind "$KERNEL/source:/agentzip/source" --bind "$OUT:/agentzip/build" -- \
	make -C /agentzip/source O=/agentzip/build olddefconfig
agentzip_enter "$TOOLCHAIN" --bind "$KERNEL/source:/agentzip/source" --bind "$OUT:/agentzip/build" -- \
	make -C /agentzip/source O=/agentzip/build -j"$(nproc)" "LOCALVERSION=$localversion" prepare modules_prepare
# modules_prepare leaves no symbol table behind; Debian's is the one to link with.
cp "$headers/Module.symvers" "$OUT/"
# olddefconfig must not have changed what the kernel was built with.
for option in CONFIG_RUST CONFIG_DYNAMIC_FTRACE_WITH_ARGS CONFIG_ZSWAP; do
	grep -q "^$option=y" "$OUT/.config" || {
		echo "$option is not set in the build tree: is the toolchain the kernel's?" >&2
		exit 1
	}
done
test -e "$OUT/rust/libkernel.rmeta"
test "$(cat "$OUT/include/config/kernel.release")" = "$release" || {
	echo "built for $(cat "$OUT/include/config/kernel.release"), not for $release" >&2
	exit 1
}
