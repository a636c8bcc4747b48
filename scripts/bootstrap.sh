#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Installs with apt what set-up needs and this machine lacks; where there is no
# cargo of at least 1.85, also makes the Debian 13 root that has one. When
# neither root nor sudo can be had, prints the one command to run.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
. "$scripts/common.sh"

if [ "$(uname -m)" != x86_64 ]; then
	echo "bootstrap: AgentZip's test guest needs an x86-64 machine, this is $(uname -m)" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
	echo "bootstrap: this is no Debian system (no apt-get); Debian 12 or 13 is needed" >&2
	exit 1
fi

missing=
for package in qemu-system-x86 mmdebstrap e2fsprogs binutils gcc libc6-dev make git tar xz-utils \
	util-linux mount ca-certificates debian-archive-keyring; do
	case $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true) in
	*" installed") ;;
	*) missing="$missing $package" ;;
	esac
done

if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
	echo "bootstrap: set-up needs root (chroot, mount) and there is no sudo. As root, run:" >&2
	echo "    apt-get update && apt-get install -y --no-install-recommends sudo$missing" >&2
	echo "then allow this user to use sudo, or run make as root." >&2
	exit 1
fi

if [ -n "$missing" ]; then
	echo "bootstrap: installing$missing"
	log=$(mktemp)
	install="apt-get install -y --no-install-recommends$missing"
	if ! { agentzip_root apt-get update &&
		agentzip_root env DEBIAN_FRONTEND=noninteractive $install; } >"$log" 2>&1; then
		tail -n 20 "$log" >&2
		echo "bootstrap: apt failed, its output is in $log. To retry by hand, as root:" >&2
		echo "    apt-get update && $install" >&2
		exit 1
	fi
	rm -f "$log"
fi

if ! agentzip_host_cargo; then
	toolchain=$(agentzip_toolchain "$scripts")
	if [ ! -d "$toolchain" ]; then
		echo "bootstrap: no cargo >= 1.85 here: making the Debian 13 root, whose cargo is used (about a minute)"
		log=$(agentzip_cache)/log/toolchain.log
		mkdir -p "$(dirname "$log")"
		agentzip_root rm -rf "$toolchain.tmp"
		if ! agentzip_root env "OUT=$toolchain.tmp" sh "$scripts/setup/toolchain.sh" >"$log" 2>&1; then
			tail -n 20 "$log" >&2
			echo "bootstrap: the Debian 13 root failed, log in $log. To retry: $0" >&2
			exit 1
		fi
		agentzip_root mv -T "$toolchain.tmp" "$toolchain"
	fi
fi
