/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Control interface of /dev/agentzip: the C view of rust/uapi/src.
 *
 * The Rust files are the definition; rust/uapi/tests/c_header.rs fails when this
 * one differs from them. What each command does, with every errno, is in
 * agentzip-ioctl.rst.
 *
 * Fields marked "in" are read by the kernel, "out" written by it. Reserved
 * fields and unknown flags must be zero. Clear a structure before filling it.
 */
#ifndef AGENTZIP_H
#define AGENTZIP_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define AGENTZIP_ABI_VERSION	5
#define AGENTZIP_IOC_MAGIC	0xA2

/* Longest name in bytes, and the size of a name field. */
#define AGENTZIP_NAME_MAX	47
#define AGENTZIP_NAME_LEN	48

/* Most address ranges in one AGENTZIP_TEMPLATE_ADD. */
#define AGENTZIP_MAX_RANGES	65536

/* Most ranges in one AGENTZIP_SANDBOX_RANGES. */
#define AGENTZIP_MAX_SANDBOX_RANGES	1024

/* Flag of an AGENTZIP_SANDBOX_ATTACH: pages share nothing, all take the same room. */
#define AGENTZIP_SANDBOX_SENSITIVE	1

/* Least and most bytes of a dictionary. */
#define AGENTZIP_MIN_DICTIONARY	256
#define AGENTZIP_MAX_DICTIONARY	1048576

/* Most pages in one AGENTZIP_DICTIONARY_SAMPLES. */
#define AGENTZIP_MAX_SAMPLES	16384

/* The cursor of AGENTZIP_DICTIONARY_SAMPLES after the last page. */
#define AGENTZIP_SAMPLES_END	0xffffffffffffffff

/* Least and most records in the ring of an AGENTZIP_SANDBOX_RECORD. */
#define AGENTZIP_MIN_RECORDS	64
#define AGENTZIP_MAX_RECORDS	16384

/* Most ranges and most pages in one AGENTZIP_PREFETCH, and its times in ms. */
#define AGENTZIP_MAX_PREFETCH_RANGES	16384
#define AGENTZIP_MAX_PREFETCH_PAGES	262144
#define AGENTZIP_MAX_PREFETCH_MS	600000
#define AGENTZIP_DEFAULT_PREFETCH_MS	500

/* agentzip_prefetch.flags: no hit test. */
#define AGENTZIP_PREFETCH_UNTESTED	1

/* Most pages in one AGENTZIP_PAGE_STATES. */
#define AGENTZIP_MAX_PAGE_STATES	262144

/* Counts in a sandbox's load_latency in sysfs. */
#define AGENTZIP_LATENCY_BUCKETS	32

/* Of a fault record: representation, where the store did not decode the page; flags. */
#define AGENTZIP_NOT_DECODED	0xff
#define AGENTZIP_FAULT_WRITE	1

/* Flags of an AGENTZIP_PAGE_STATES, and bits of the state of a page. */
#define AGENTZIP_PAGE_STATES_CLEAR	1
#define AGENTZIP_PAGE_PRESENT	1	/* mapped */
#define AGENTZIP_PAGE_ACCESSED	2	/* since the bit was last cleared */
#define AGENTZIP_PAGE_SWAPPED	4	/* swapped out */

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
	AGENTZIP_REPRESENTATION_PADDED		= 7,	/* zstd, filled up to 2040 bytes */
};

/* What a fault record is about. */
enum agentzip_fault_kind {
	AGENTZIP_FAULT_DEMAND	= 0,	/* a thread waited for a page */
	AGENTZIP_FAULT_HIT	= 1,	/* a restored page was accessed in time */
	AGENTZIP_FAULT_MISS	= 2,	/* one was not */
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
	__u32 flags;		/* in: 0, or AGENTZIP_SANDBOX_SENSITIVE */
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

struct agentzip_sandbox_record {
	__u64 cgroup_id;	/* in */
	__u32 records;		/* in: size of the ring, a power of two, or 0 for none */
	__s32 eventfd;		/* in: signalled when half full; -1: none */
};

/* A page fault, or the end of a page that was restored ahead of need. */
struct agentzip_fault_record {
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u64 address;		/* of the page */
	__s32 tgid;		/* process, in the initial pid namespace */
	__s32 tid;		/* thread; 0 where none waited */
	__u32 decode_ns;
	__u8 representation;	/* enum agentzip_representation, AGENTZIP_NOT_DECODED */
	__u8 kind;		/* enum agentzip_fault_kind */
	__u8 flags;		/* AGENTZIP_FAULT_WRITE */
	__u8 reserved;		/* 0 */
};

struct agentzip_faults_read {
	__u64 cgroup_id;	/* in */
	__u64 buffer;		/* in: address of room for fault records */
	__u32 capacity;		/* in: how many fit, 1 to AGENTZIP_MAX_RECORDS */
	__u32 records;		/* out: records written */
	__u64 lost;		/* out: records lost since the sandbox was attached */
};

struct agentzip_prefetch {
	__u64 cgroup_id;	/* in: the sandbox that the process is in */
	__u64 ranges;		/* in: address of an array of agentzip_range */
	__u32 nr_ranges;	/* in: 1 to AGENTZIP_MAX_PREFETCH_RANGES */
	__s32 pid;		/* in */
	__u32 timeout_ms;	/* in: dropped when older; 0: AGENTZIP_DEFAULT_PREFETCH_MS */
	__u32 hit_window_ms;	/* in: 0: AGENTZIP_DEFAULT_PREFETCH_MS */
	__u32 priority;		/* in: greater ones go first */
	__u32 flags;		/* in: AGENTZIP_PREFETCH_UNTESTED or 0 */
	__u64 pages;		/* out: pages queued */
};

struct agentzip_page_states {
	__u64 cgroup_id;	/* in: the sandbox that the process is in */
	__u64 start;		/* in: first address */
	__u64 end;		/* in: address after the last */
	__u64 states;		/* in: address of room for a byte for each page */
	__s32 pid;		/* in */
	__u32 flags;		/* in: AGENTZIP_PAGE_STATES_CLEAR */
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
#define AGENTZIP_SANDBOX_RECORD	_IOW(AGENTZIP_IOC_MAGIC, 0x40, struct agentzip_sandbox_record)
#define AGENTZIP_FAULTS_READ	_IOWR(AGENTZIP_IOC_MAGIC, 0x41, struct agentzip_faults_read)
#define AGENTZIP_PREFETCH	_IOWR(AGENTZIP_IOC_MAGIC, 0x42, struct agentzip_prefetch)
#define AGENTZIP_PAGE_STATES	_IOW(AGENTZIP_IOC_MAGIC, 0x43, struct agentzip_page_states)
#define AGENTZIP_STATS		_IOWR(AGENTZIP_IOC_MAGIC, 0x30, struct agentzip_stats)
#define AGENTZIP_DRAIN		_IOR(AGENTZIP_IOC_MAGIC, 0x31, struct agentzip_drain)

#endif /* AGENTZIP_H */
