#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Step 6: the debug kernel: the same source as Debian's kernel, clang, and
# qemu-test/debug-kernel/debug.config ($CONFIG). Run as root.
# In: $TOOLCHAIN (step 1), $KERNEL (step 2), $CONFIG. Out: $OUT, a build tree for
# modules as step 3 makes it, and $OUT/vmlinuz.
set -eu
set -x
. "$SCRIPTS/common.sh"

inside() {
	agentzip_enter "$TOOLCHAIN" --bind "$KERNEL/source:/agentzip/source" --bind "$OUT:/agentzip/build" -- \
		make -C /agentzip/source O=/agentzip/build LLVM=1 LOCALVERSION=+agentzip-debug "$@"
}

cp "$CONFIG" "$OUT/debug.config"
inside rustavailable
inside KCONFIG_ALLCONFIG=/agentzip/build/debug.config alldefconfig
# An option whose dependencies are not there vanishes without a word.
failed=
while IFS= read -r line; do
	case $line in
	CONFIG_*=n) ! grep -q "^${line%n}" "$OUT/.config" || failed="$failed $line" ;;
	CONFIG_*) grep -qxF "$line" "$OUT/.config" || failed="$failed $line" ;;
	esac
done <"$CONFIG"
if [ -n "$failed" ]; then
	echo "lost on the way from $CONFIG to .config:$failed" >&2
	exit 1
fi
inside -j"$(nproc)" bzImage modules
cp "$OUT/arch/x86/boot/bzImage" "$OUT/vmlinuz"
test -s "$OUT/Module.symvers"
test -e "$OUT/rust/libkernel.rmeta"
# Modules are built with headers, metadata and programs; the objects are done with.
find "$OUT" \( -path "$OUT/scripts" -o -path "$OUT/tools" \) -prune -o \
	\( -name '*.o' -o -name '*.a' -o -name '.*.cmd' -o -name 'vmlinux*' \) -type f -print |
	grep -v "^$OUT/vmlinuz\$" | xargs rm -f
chmod 644 "$OUT/vmlinuz"
