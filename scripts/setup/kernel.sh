#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Step 2: Debian's kernel packages and the source they were built from.
# Run as root. In: $TOOLCHAIN (step 1), $PIN (a release such as
# 7.3.4+deb13-cloud-amd64, or empty for the newest 7.3.x). Out in $OUT:
#   release        one line, `uname -r` of the kernel
#   root/          image, modules and headers packages, unpacked
#   source/        the kernel source
set -eu
set -x
. "$SCRIPTS/common.sh"

cat >"$OUT/inside.sh" <<'INSIDE'
set -eu
set -x
apt-get -o Acquire::Retries=3 update
release=$PIN
if [ -z "$release" ]; then
	# Newest by Debian's version order, not by text.
	for p in $(apt-cache --names-only search '^linux-image-7\.3\.[0-9].*-cloud-amd64$' | cut -d' ' -f1); do
		case $p in *-dbg) continue ;; esac
		release_p=${p#linux-image-}
		if [ -z "$release" ] || dpkg --compare-versions "$release_p" gt "$release"; then
			release=$release_p
		fi
	done
fi
if [ -z "$release" ]; then
	echo "no linux-image-7.3.*-cloud-amd64 package in the suites:" >&2
	cat /etc/apt/sources.list /etc/apt/sources.list.d/* >&2
	exit 1
fi
version=$(apt-cache show --no-all-versions "linux-image-$release" | sed -n 's/^Version: //p' | head -n1)

# Debian splits the kernel over several packages (image, binary, modules, base,
# headers, headers-common) and has changed the split before: follow the dependencies.
packages=
queue="linux-image-$release linux-headers-$release"
while [ -n "$queue" ]; do
	set -- $queue
	p=$1
	shift
	queue="$*"
	case " $packages " in *" $p "*) continue ;; esac
	packages="$packages $p"
	for d in $(apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
		--no-enhances "$p" | sed -n 's/^[ |]*Depends: \(linux-[a-z]*-[0-9][^ <>]*\)$/\1/p'); do
		case $d in linux-kbuild-*|linux-compiler-*) continue ;; esac
		queue="$queue $d"
	done
done
series=$(echo "$release" | cut -d. -f1,2)
mkdir -p /out/packages
cd /out/packages
apt-get -o Acquire::Retries=3 download $packages
# The source of exactly this version, else of the newest of the series.
apt-get -o Acquire::Retries=3 download "linux-source-$series=$version" ||
	apt-get -o Acquire::Retries=3 download -t trixie-backports "linux-source-$series"
mkdir -p /out/root /out/source
for d in linux-[!s]*.deb; do
	dpkg-deb -x "$d" /out/root
done
dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xf - --wildcards -O './usr/src/linux-source-*.tar.xz' |
	tar -xJf - -C /out/source --strip-components=1
depmod -b /out/root/usr "$release" || depmod -b /out/root "$release"
echo "$release" >/out/release
INSIDE
agentzip_enter "$TOOLCHAIN" --bind "$OUT:/out" -- env PIN="$PIN" sh /out/inside.sh
rm -rf "$OUT/packages" "$OUT/inside.sh"
release=$(cat "$OUT/release")
test -e "$OUT/root/usr/lib/modules/$release/kernel"
test -e "$OUT/root/usr/src/linux-headers-$release/.config"
test -e "$OUT/source/Makefile"
