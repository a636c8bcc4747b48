#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# The root in which the processes of `cargo xtask corpus` run: Debian 13 with the
# libraries that an agent's Python imports, Node with the TypeScript compiler, and
# the repository that the agents work on: sqlglot with the tests of networkx.
# Run as root. In: nothing. Out: $OUT, a root folder.
set -eu
set -x
packages=python3,python3-numpy,python3-pandas,python3-requests,python3-pytest,python3-pydantic
packages=$packages,python3-sqlalchemy,python3-networkx,python3-sqlglot,nodejs,node-typescript
mmdebstrap --variant=essential --mode=root --include="$packages" \
	--aptopt='APT::Install-Recommends "false"' trixie "$OUT"
modules=$OUT/usr/lib/python3/dist-packages
repository=$OUT/agentzip/repository
mkdir -p "$repository"
# It is there only in the repository, so that each agent imports its own copy.
mv "$modules/sqlglot" "$repository/sqlglot"
(cd "$modules/networkx" && find . -path '*/tests/test_*.py' | tar -c -T -) |
	tar -x -C "$repository" --transform 's,^\./,tests/,;s,/tests/test_,/test_,'
find "$repository" -name __pycache__ -prune -exec rm -rf {} +
test -e "$repository/sqlglot/parser.py"
test -e "$repository/tests/classes/test_graph.py"
# Where an agent mounts a file system of its own, and what it unpacks there.
mkdir "$OUT/agentzip/work"
tar -C "$repository" --sort=name --mtime=@0 -czf "$OUT/agentzip/repository.tar.gz" .
rm -rf "$repository"
# Byte code is made here, once, and not by the processes.
chroot "$OUT" sh -c 'python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.*' >/dev/null || true
# Name and version of what the processes run, a line each.
chroot "$OUT" dpkg-query -W -f '${Package} ${Version}\n' $(echo "$packages" | tr , ' ') \
	>"$OUT/agentzip/versions"
