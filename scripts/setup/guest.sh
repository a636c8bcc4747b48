#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Step 4: the guest's root file system, Debian 13 with Python, as an ext4 image.
# Run as root. In: $TOOLCHAIN (step 1), $KERNEL (step 2). Out: $OUT/root.ext4.
set -eu
set -x
. "$SCRIPTS/common.sh"

root=$OUT/root
packages=python3,python3-numpy,python3-pandas,busybox,kmod,util-linux,mount,procps
mmdebstrap --variant=essential --mode=root --include="$packages" \
	--aptopt='APT::Install-Recommends "false"' trixie "$root"
release=$(cat "$KERNEL/release")
mkdir -p "$root/usr/lib/modules" "$root/opt/agentzip" "$root/sys" "$root/proc"
cp -a "$KERNEL/root/usr/lib/modules/$release" "$root/usr/lib/modules/"
rm -f "$root/usr/lib/modules/$release/vmlinuz" "$root/usr/lib/modules/$release/System.map"
echo agentzip-guest >"$root/etc/hostname"
# Byte code is made here, once, and not in every guest.
chroot "$root" python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.* >/dev/null || true
# Free space: a third of the content and 256 MiB.
size=$(du -sm "$root" | cut -f1)
truncate -s "$((size + size / 3 + 256))M" "$OUT/root.ext4"
agentzip_enter "$TOOLCHAIN" --bind "$OUT:/out" -- \
	mke2fs -q -F -t ext4 -L root -m 0 -d /out/root /out/root.ext4
rm -rf "$root"
chmod 644 "$OUT/root.ext4"
