/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Control interface of /dev/agentzip: the C view of rust/uapi/src/lib.rs.
 *
 * The Rust file is the definition; rust/uapi/tests/c_header.rs fails when this
 * one differs from it. What each command does, with every errno, is in
 * agentzip-ioctl.rst.
 *
 * Fields marked "in" are read by the kernel, "out" written by it. Reserved
 * fields and unknown flags must be zero. Clear a structure before filling it.
 */
#ifndef AGENTZIP_H
#define AGENTZIP_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define AGENTZIP_ABI_VERSION	3
#define AGENTZIP_IOC_MAGIC	0xA2

/* Longest name in bytes, and the size of a name field. */
#define AGENTZIP_NAME_MAX	47
#define AGENTZIP_NAME_LEN	48

/* Most address ranges in one AGENTZIP_TEMPLATE_ADD. */
#define AGENTZIP_MAX_RANGES	65536

/* Most ranges in one AGENTZIP_SANDBOX_RANGES. */
#define AGENTZIP_MAX_SANDBOX_RANGES	1024

/* Least and most bytes of a dictionary. */
#define AGENTZIP_MIN_DICTIONARY	256
#define AGENTZIP_MAX_DICTIONARY	1048576

/* Most pages in one AGENTZIP_DICTIONARY_SAMPLES. */
#define AGENTZIP_MAX_SAMPLES	16384

/* The cursor of AGENTZIP_DICTIONARY_SAMPLES after the last page. */
#define AGENTZIP_SAMPLES_END	0xffffffffffffffff

/* Size of a signature field: a fingerprint that user space computes, or zeros. */
#define AGENTZIP_SIGNATURE_LEN	32

/* Length of the per-representation arrays; unused positions are zero. */
#define AGENTZIP_REPRESENTATION_SLOTS	16

/* The domain that is meant when a domain field is all zero. */
#define AGENTZIP_DEFAULT_DOMAIN	"default"
#define AGENTZIP_DEVICE_PATH	"/dev/agentzip"
#define AGENTZIP_SYSFS_PATH	"/sys/kernel/agentzip"

/* What the agent of a sandbox is doing. */
enum agentzip_phase {
	AGENTZIP_PHASE_RUNNING	= 0,	/* a tool runs */
	AGENTZIP_PHASE_WAITING	= 1,	/* it waits for the LLM */
	AGENTZIP_PHASE_RESUMING	= 2,	/* the LLM answers */
};

/*
 * How an entry encodes its page; index of pages[] and bytes[]. A base is a
 * template page or a reference page of the group.
 */
enum agentzip_representation {
	AGENTZIP_REPRESENTATION_FILL		= 0,	/* one 8-byte word, repeated */
	AGENTZIP_REPRESENTATION_REF		= 1,	/* equal to a base */
	AGENTZIP_REPRESENTATION_DELTA		= 2,	/* changes against a base */
	AGENTZIP_REPRESENTATION_DELTA_ZSTD	= 3,	/* the same, compressed with zstd */
	AGENTZIP_REPRESENTATION_ZSTD		= 4,	/* the page by itself, zstd */
	AGENTZIP_REPRESENTATION_PREFIX		= 5,	/* zstd, a base before it */
	AGENTZIP_REPRESENTATION_DICT		= 6,	/* zstd, a dictionary of the group */
};

/*
 * Name fields (__u8 [AGENTZIP_NAME_LEN]) hold 1 to AGENTZIP_NAME_MAX ASCII
 * letters, digits, '.', '_' or '-', not starting with '.', padded with NUL.
 */

/* A half-open range of user addresses, page aligned, not empty. */
struct agentzip_range {
	__u64 start;		/* first byte */
	__u64 end;		/* byte after the last */
};

struct agentzip_info {
	__u32 abi_version;	/* out: AGENTZIP_ABI_VERSION of the module */
	__u32 armed;		/* out: 1 while the hooks are installed */
	__u32 enabled;		/* out: 1 while the kill switch lets stores through */
	__u32 draining;		/* out: 1 from DRAIN or DISARM to the next ARM */
};

struct agentzip_template_add {
	__s32 pid;		/* in: process that holds the pages, caller's pid namespace */
	__u32 flags;		/* in: 0 */
	__u64 ranges;		/* in: address of struct agentzip_range[], ascending */
	__u32 nr_ranges;	/* in: 1 to AGENTZIP_MAX_RANGES */
	__u32 reserved;		/* in: 0 */
	__u8 name[AGENTZIP_NAME_LEN];	/* in: unique among templates */
	__u8 domain[AGENTZIP_NAME_LEN];	/* in: trust domain; all zero: "default" */
	__u64 pages_referenced;	/* out: pages kept by reference */
	__u64 pages_copied;	/* out: pages that had to be copied */
	__u64 pages_skipped;	/* out: pages of the ranges that were left out */
};

/* AGENTZIP_TEMPLATE_ADD, second version. */
struct agentzip_template_add_signed {
	struct agentzip_template_add add;
	__u8 signature[AGENTZIP_SIGNATURE_LEN];	/* in: of the process; zeros: none */
};

struct agentzip_template_add_file {
	__s32 fd;		/* in: regular file, open for reading */
	__u32 flags;		/* in: 0 */
	__u64 offset;		/* in: first byte, page aligned */
	__u64 length;		/* in: bytes, page aligned; 0 or too many: to the end */
	__u8 name[AGENTZIP_NAME_LEN];	/* in: unique among templates */
	__u8 domain[AGENTZIP_NAME_LEN];	/* in: trust domain; all zero: "default" */
	__u8 signature[AGENTZIP_SIGNATURE_LEN];	/* in: of the contents; zeros: none */
	__u64 pages_referenced;	/* out: pages kept by reference (sealed memfd) */
	__u64 pages_copied;	/* out: pages that had to be copied */
	__u64 pages_skipped;	/* out: holes and pages of zeros */
};

struct agentzip_template_remove {
	__u8 name[AGENTZIP_NAME_LEN];	/* in */
	__u64 users;		/* out, on EBUSY too: sandboxes that use it */
};

struct agentzip_sandbox_attach {
	__s32 cgroup_fd;	/* in: open directory of a cgroup v2 */
	__u32 flags;		/* in: 0 */
	__u8 template_name[AGENTZIP_NAME_LEN];	/* in */
	__u8 group[AGENTZIP_NAME_LEN];	/* in; all zero: the template's name */
	__u8 domain[AGENTZIP_NAME_LEN];	/* in: the template's; all zero: "default" */
	__u64 cgroup_id;	/* out: name of its directory below sandboxes/ */
};

/* AGENTZIP_SANDBOX_ATTACH, second version. */
struct agentzip_sandbox_attach_signed {
	struct agentzip_sandbox_attach attach;
	__u8 signature[AGENTZIP_SIGNATURE_LEN];	/* in: the template's; zeros: not checked */
};

/* Addresses of a sandbox that were filled from its template, page aligned. */
struct agentzip_sandbox_range {
	__u64 start;		/* first address */
	__u64 end;		/* address after the last */
	__u64 offset;		/* in the template's file, or address in its process */
};

struct agentzip_sandbox_ranges {
	__u64 cgroup_id;	/* in */
	__u64 ranges;		/* in: address of struct agentzip_sandbox_range[], ascending */
	__u32 nr_ranges;	/* in: 0 to AGENTZIP_MAX_SANDBOX_RANGES */
	__u32 reserved;		/* in: 0 */
};

struct agentzip_sandbox_detach {
	__u64 cgroup_id;	/* in */
	__u64 entries;		/* out: entries that it still has */
};

struct agentzip_sandbox_phase {
	__u64 cgroup_id;	/* in */
	__u32 phase;		/* in: enum agentzip_phase */
	__u32 reserved;		/* in: 0 */
};

struct agentzip_dictionary_add {
	__u64 cgroup_id;	/* in: any sandbox of the group */
	__u64 content;		/* in: address of the dictionary, in zstd's format */
	__u32 length;		/* in: AGENTZIP_MIN_DICTIONARY to AGENTZIP_MAX_DICTIONARY */
	__u32 number;		/* out: its number in the group */
};

struct agentzip_dictionary_retire {
	__u64 cgroup_id;	/* in: any sandbox of the group */
	__u32 number;		/* out: number of the dictionary */
	__u32 reserved;		/* in: 0 */
};

struct agentzip_dictionary_samples {
	__u64 cgroup_id;	/* in: any sandbox of the group */
	__u64 buffer;		/* in: address of room for the pages */
	__u32 capacity;		/* in: how many fit, 1 to AGENTZIP_MAX_SAMPLES */
	__u32 least;		/* in: least bytes of a page's payload */
	__u64 cursor;		/* in: 0, or of the call before; out: for the next */
	__u32 pages;		/* out: pages written */
	__u32 reserved;		/* in: 0 */
};

/* Counters of a sandbox or of the whole store; see sysfs-kernel-agentzip. */
struct agentzip_page_stats {
	__u64 pages[AGENTZIP_REPRESENTATION_SLOTS];
	__u64 bytes[AGENTZIP_REPRESENTATION_SLOTS];
	__u64 stores;
	__u64 loads;
	__u64 erased;
	__u64 declined_incompressible;
	__u64 declined_nomem;
	__u64 declined_full;
	__u64 declined_detached;
	__u64 load_errors;
	__u64 template_backed;
	__u64 promoted;
	__u64 dropped;
	__u64 provisional;
	__u64 second_look_pages;
	__u64 second_look_bytes;
	__u64 second_look_ns;
	__u64 encode_ns;
	__u64 decode_ns;
};

/* What the store occupies, in bytes; every byte is in exactly one field. */
struct agentzip_memory_stats {
	__u64 arenas;
	__u64 references;
	__u64 sketches;
	__u64 table;
	__u64 template_pages;
	__u64 template_index;
	__u64 scratch;
	__u64 objects;
	__u64 dictionaries;
};

struct agentzip_stats {
	__u64 cgroup_id;	/* in: a sandbox, or 0 for the whole store */
	struct agentzip_page_stats page;	/* out */
	struct agentzip_memory_stats memory;	/* out: zero for a sandbox */
};

struct agentzip_drain {
	__u64 entries;		/* out: entries left */
};

#define AGENTZIP_INFO		_IOR(AGENTZIP_IOC_MAGIC, 0x00, struct agentzip_info)
#define AGENTZIP_ARM		_IO(AGENTZIP_IOC_MAGIC, 0x01)
#define AGENTZIP_DISARM		_IO(AGENTZIP_IOC_MAGIC, 0x02)
#define AGENTZIP_TEMPLATE_ADD	_IOWR(AGENTZIP_IOC_MAGIC, 0x10, struct agentzip_template_add)
#define AGENTZIP_TEMPLATE_ADD_SIGNED	_IOWR(AGENTZIP_IOC_MAGIC, 0x10, struct agentzip_template_add_signed)
#define AGENTZIP_TEMPLATE_ADD_FILE	_IOWR(AGENTZIP_IOC_MAGIC, 0x12, struct agentzip_template_add_file)
#define AGENTZIP_TEMPLATE_REMOVE	_IOWR(AGENTZIP_IOC_MAGIC, 0x11, struct agentzip_template_remove)
#define AGENTZIP_SANDBOX_ATTACH	_IOWR(AGENTZIP_IOC_MAGIC, 0x20, struct agentzip_sandbox_attach)
#define AGENTZIP_SANDBOX_ATTACH_SIGNED	_IOWR(AGENTZIP_IOC_MAGIC, 0x20, struct agentzip_sandbox_attach_signed)
#define AGENTZIP_SANDBOX_RANGES	_IOW(AGENTZIP_IOC_MAGIC, 0x23, struct agentzip_sandbox_ranges)
#define AGENTZIP_SANDBOX_DETACH	_IOWR(AGENTZIP_IOC_MAGIC, 0x21, struct agentzip_sandbox_detach)
#define AGENTZIP_SANDBOX_PHASE	_IOW(AGENTZIP_IOC_MAGIC, 0x22, struct agentzip_sandbox_phase)
#define AGENTZIP_DICTIONARY_ADD	_IOWR(AGENTZIP_IOC_MAGIC, 0x28, struct agentzip_dictionary_add)
#define AGENTZIP_DICTIONARY_RETIRE	_IOWR(AGENTZIP_IOC_MAGIC, 0x29, struct agentzip_dictionary_retire)
#define AGENTZIP_DICTIONARY_SAMPLES	_IOWR(AGENTZIP_IOC_MAGIC, 0x2a, struct agentzip_dictionary_samples)
#define AGENTZIP_STATS		_IOWR(AGENTZIP_IOC_MAGIC, 0x30, struct agentzip_stats)
#define AGENTZIP_DRAIN		_IOR(AGENTZIP_IOC_MAGIC, 0x31, struct agentzip_drain)

#endif /* AGENTZIP_H */
