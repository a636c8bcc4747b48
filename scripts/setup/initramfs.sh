#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Step 5: the initramfs: a static busybox, the modules needed to see the disks,
# and qemu-test/initramfs/init ($INIT). Run as root.
# In: $TOOLCHAIN (step 1), $KERNEL (step 2), $INIT. Out: $OUT/initramfs.gz, $OUT/vmlinuz.
set -eu
set -x
. "$SCRIPTS/common.sh"

release=$(cat "$KERNEL/release")
modules=$KERNEL/root/usr/lib/modules/$release
tree=$OUT/tree
mkdir -p "$tree/bin" "$tree/modules/$release" "$tree/proc" "$tree/sys" "$tree/dev" "$tree/root"
cp "$TOOLCHAIN/usr/bin/busybox" "$tree/bin/busybox"
cp "$INIT" "$tree/init"
chmod 755 "$tree/init"
# Modules in load order. One that is built in is not needed.
for name in virtio_blk; do
	for m in $(agentzip_enter "$TOOLCHAIN" --bind "$KERNEL/root:/out" -- \
		modprobe -d /out/usr -S "$release" --show-depends "$name" 2>/dev/null |
		sed -n 's/^insmod \([^ ]*\).*/\1/p'); do
		path=$modules/${m#*/"$release"/}
		base=$(basename "$path" .xz)
		case $path in
		*.xz) xz -dc "$path" >"$tree/modules/$release/$base" ;;
		*) cp "$path" "$tree/modules/$release/$base" ;;
		esac
		echo "$base" >>"$tree/modules/$release/order"
	done
done
touch "$tree/modules/$release/order"
agentzip_enter "$TOOLCHAIN" --bind "$OUT:/out" -- \
	sh -c 'cd /out/tree && find . | LC_ALL=C sort | cpio --quiet -o -H newc | gzip -1 >/out/initramfs.gz'
for kernel in "$modules/vmlinuz" "$KERNEL/root/boot/vmlinuz-$release"; do
	[ ! -e "$kernel" ] || cp "$kernel" "$OUT/vmlinuz"
done
test -s "$OUT/vmlinuz"
rm -rf "$tree"
chmod 644 "$OUT/vmlinuz" "$OUT/initramfs.gz"
