#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Step 1: the Debian 13 root that holds the compilers Debian's own kernel was
# built with (rustc 1.85.1). Run as root. In: nothing. Out: $OUT, a root folder.
# scripts/common.sh hashes this file to find the finished root: every change
# here makes a new one.
set -eu
set -x
packages=rustc,cargo,rust-src,rustfmt,rust-clippy,bindgen,clang,libclang-dev,llvm,lld,gcc,libc6-dev
packages=$packages,make,flex,bison,bc,libelf-dev,libssl-dev,pkgconf,cpio,kmod,pahole
packages=$packages,rsync,xz-utils,busybox-static,e2fsprogs,ca-certificates,tar
# For the corpus of the codec benchmark.
packages=$packages,python3,python3-numpy,python3-pandas
mmdebstrap --variant=apt --mode=root --include="$packages" \
	--aptopt='APT::Install-Recommends "false"' trixie "$OUT"
# The backports suite comes from the mirror that mmdebstrap chose.
sed -n 's/ trixie / trixie-backports /p' "$OUT/etc/apt/sources.list" \
	>"$OUT/etc/apt/sources.list.d/backports.list"
test -s "$OUT/etc/apt/sources.list.d/backports.list"
mkdir -p "$OUT/agentzip"
chroot "$OUT" rustc --version
