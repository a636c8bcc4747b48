#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Prints the SHA-256 of a kernel's BTF, its own description of all its structures and functions:
#   btf-digest.sh DIR
# DIR is where its vmlinux is: a build tree, or the folder of a headers package, whose vmlinux may
# have little else. The same bytes are /sys/kernel/btf/vmlinux where this kernel runs. Prints nothing,
# and on standard error why, when there are none.
set -eu
vmlinux=$1/vmlinux

none() {
	echo "btf-digest: $1: agentzip arm will not know whether the module fits the running kernel" >&2
	exit 0
}

[ -e "$vmlinux" ] || none "there is no $vmlinux"

objcopy=
for program in ${OBJCOPY:-} objcopy llvm-objcopy; do
	if command -v "$program" >/dev/null; then
		objcopy=$program
		break
	fi
done
if [ -z "$objcopy" ]; then
	echo "btf-digest: neither objcopy nor llvm-objcopy is in the PATH: apt-get install binutils" >&2
	exit 1
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# A vmlinux can have gigabytes of debug information, which are not copied. Whether a section that is
# not there is an error depends on the program.
"$objcopy" --only-section=.BTF --dump-section=.BTF="$dir/btf" "$vmlinux" "$dir/rest" 2>"$dir/log" || :
[ -s "$dir/btf" ] || none "$objcopy finds no .BTF in $vmlinux"
sha256sum <"$dir/btf" | cut -c1-64
