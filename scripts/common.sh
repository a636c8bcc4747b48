#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Functions shared by the scripts. Sourced, never run.

# The cache folder: everything that set-up makes.
agentzip_cache() {
	if [ -n "${AGENTZIP_CACHE:-}" ]; then
		echo "$AGENTZIP_CACHE"
	else
		echo "${XDG_CACHE_HOME:-$HOME/.cache}/agentzip"
	fi
}

# Where the toolchain root is, or will be. $1: the folder of the scripts.
# The key is a hash of the recipe; `cargo xtask setup` computes the same.
agentzip_toolchain() {
	echo "$(agentzip_cache)/toolchain-$(sha256sum <"$1/setup/toolchain.sh" | cut -c1-12)"
}

# Whether the PATH has a cargo of at least 1.85.
agentzip_host_cargo() {
	agentzip_version=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
	[ "${agentzip_version:-0}" -ge 85 ]
}

# Runs a command with root's rights.
agentzip_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo --preserve-env=http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY "$@"
	fi
}

# Runs a command inside a root folder, in mount and PID namespaces of its own:
# nothing stays mounted and nothing stays running when it ends.
#   agentzip_enter ROOT [--bind FROM:TO]... [--user UID:GID] [--cwd DIR] -- COMMAND...
# The command sees /proc, /dev, the host's resolver and its certificates.
agentzip_enter() {
	agentzip_root unshare --mount --pid --fork --kill-child --propagation unchanged -- \
		sh -eu -c '
		# Fails where / is no mount point, in a chroot: there the caller keeps apart.
		mount --make-rprivate / 2>/dev/null || :
		root=$1
		shift
		user=0:0
		cwd=/
		mount -t proc proc "$root/proc"
		mount --rbind /dev "$root/dev"
		# A bind over the file, so that the root itself does not change.
		for f in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
			if [ -s "$f" ] && [ -f "$root$f" ]; then
				mount --bind "$(readlink -f "$f")" "$root$f"
			fi
		done
		while [ "$1" != -- ]; do
			case $1 in
			--bind)
				mkdir -p "$root${2##*:}"
				mount --bind "${2%:*}" "$root${2##*:}"
				;;
			--user) user=$2 ;;
			--cwd) cwd=$2 ;;
			esac
			shift 2
		done
		shift
		export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		export HOME=/root LC_ALL=C.UTF-8
		unset TMPDIR RUSTUP_HOME RUSTUP_TOOLCHAIN RUSTC CARGO
		exec chroot "--userspec=$user" "$root" /usr/bin/env --chdir="$cwd" "$@"
	' agentzip-enter "$@"
}
