# SPDX-License-Identifier: GPL-2.0
#
# make demo      set up what is missing, run the demo in a guest, write target/report/demo.json
# make test      formatting, lints, unit tests, short fuzzing, module build, guest suite
# make test-debug  guest suite and failure injection on a kernel with every checker (half an hour
#                more for the kernel, once)
# make modules   build agentzip.ko with a prepared kernel tree (KDIR=...), the plain Kbuild way;
#                HEADERS=... where that tree has no vmlinux with BTF and a headers package has one
# make doctor    check the prerequisites        make bench   native codec benchmark
# make clean     remove what was built (the cache of set-up stays: cargo xtask clean-cache)

KDIR    ?= /lib/modules/$(shell uname -r)/build
HEADERS ?= $(KDIR)
XTASK   := scripts/xtask.sh

.PHONY: demo test test-debug doctor bench setup modules clean

demo test: setup
	$(XTASK) $@

test-debug: setup
	$(XTASK) test --debug

bench: setup
	$(XTASK) bench codec

doctor:
	$(XTASK) doctor

setup:
	scripts/bootstrap.sh

modules:
	@scripts/check-kdir.sh "$(KDIR)"
	@scripts/zstd-sources.sh zstd
	btf=$$(scripts/btf-digest.sh "$(HEADERS)") && \
	$(MAKE) -C $(KDIR) M=$(CURDIR) KERNEL_BTF=$$btf modules

clean:
	rm -rf target zstd
	if [ -e "$(KDIR)/Makefile" ]; then $(MAKE) -C $(KDIR) M=$(CURDIR) clean; fi
