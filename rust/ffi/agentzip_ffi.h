/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The border between the Rust and the C half of the module.
 *
 * C is here only for what the kernel offers as macros, inline functions, ftrace
 * ops or tracepoints. Functions named agentzip_rs_*() are written in Rust; all
 * others in the C file named above them. bindgen reads this header, so both
 * halves agree on every type.
 */
#ifndef AGENTZIP_FFI_H
#define AGENTZIP_FFI_H

#include <linux/types.h>

struct cgroup;
struct eventfd_ctx;
struct file;
struct folio;
struct page;
struct mem_cgroup;
struct mm_struct;

/* ---- hooks.c: interposing on the zswap entry points ---- */

/*
 * Install the hooks: those of pins.c, then invalidate, load, store. Undone
 * completely when one step fails. Takes a reference on the module until
 * disarmed; the caller holds another. May sleep. Returns 0, -EOPNOTSUPP as long
 * as the kernel may swap in large folios, -EBUSY when another IPMODIFY user
 * holds one of the functions or ftrace is off, -ENOTRECOVERABLE when undoing
 * failed (then the module must stay for ever), or another negative errno.
 */
int agentzip_hooks_arm(void);

/*
 * Remove the hooks in reverse order and wait until no task is between a
 * handler and the end of a replacement. May sleep. Returns 0, or a negative
 * errno when a hook could not be removed: then the module must stay for ever.
 */
int agentzip_hooks_disarm(void);

/* Wait until every replacement that runs now has returned. May sleep. */
void agentzip_wait_inflight(void);

/* Where ftrace's location in the function of this name is. May sleep. */
int agentzip_resolve(const char *name, unsigned long *addr);

/* Call the host's zswap_invalidate(). Any context in which the host may. */
void agentzip_zswap_invalidate(unsigned long slot);

/* Handlers: preemption is off; they never sleep and never allocate. */
bool agentzip_rs_store_hook(struct folio *folio);
bool agentzip_rs_load_hook(struct folio *folio);
void agentzip_rs_invalidate_hook(unsigned long slot);

/* Replacements: task context, folio locked and in the swap cache. */
bool agentzip_rs_store(struct folio *folio);
int agentzip_rs_load(struct folio *folio);

/* ---- recorder.c: page faults of sandboxes ---- */

/*
 * Install the handler on do_swap_page(), and remove it. Without it the module
 * works, but records nothing: then one line in the log tells. A failure to
 * remove it is one of disarming. May sleep; one caller at a time.
 */
void agentzip_recorder_install(void);
int agentzip_recorder_remove(void);
bool agentzip_recorder_installed(void);

/* There are so many more sandboxes that are recorded, or less. Any context. */
void agentzip_recorder_count(int more);

/* CLOCK_MONOTONIC. Any context but NMI. */
u64 agentzip_now_ns(void);

/*
 * The current task's cgroup in the default hierarchy, and the parent and the id
 * of one. The caller holds the RCU read lock while it uses the result.
 */
struct cgroup *agentzip_current_cgroup(void);
struct cgroup *agentzip_cgroup_parent(struct cgroup *cgrp);
u64 agentzip_cgroup_id(struct cgroup *cgrp);

/*
 * A reference to the eventfd that is open as @fd in the current process, or
 * -EBADF, -EINVAL when it is none. Signalling works in any context, putting
 * wherever memory may be freed.
 */
int agentzip_eventfd_get(int fd, struct eventfd_ctx **ctx);
void agentzip_eventfd_put(struct eventfd_ctx *ctx);
void agentzip_eventfd_signal(struct eventfd_ctx *ctx);

/*
 * Handler of do_swap_page(): preemption is off; never sleeps, never allocates.
 * The current thread, with these numbers in the initial pid namespace, waits
 * for the page at @address, which is in @slot.
 */
void agentzip_rs_fault(unsigned long address, unsigned long slot, int tgid,
		       int tid, bool write);

/* ---- mm.c: inline accessors of folios, pages and memory cgroups ---- */

unsigned long agentzip_folio_slot(const struct folio *folio);
unsigned long agentzip_folio_index(const struct folio *folio);
unsigned long agentzip_folio_nr_pages(const struct folio *folio);
void *agentzip_folio_page_address(struct folio *folio, unsigned long i);
void agentzip_folio_loaded(struct folio *folio);
void agentzip_folio_loaded_dirty(struct folio *folio);
void agentzip_folio_failed(struct folio *folio);
unsigned int agentzip_slot_type(unsigned long slot);
unsigned long agentzip_slot_offset(unsigned long slot);

/*
 * The folio's memory cgroup, its parent and its cgroup's id. The caller holds
 * the RCU read lock (or has preemption off) while it uses the result.
 */
struct mem_cgroup *agentzip_folio_memcg(struct folio *folio);
struct mem_cgroup *agentzip_memcg_parent(struct mem_cgroup *memcg);
u64 agentzip_memcg_cgroup_id(struct mem_cgroup *memcg);

/*
 * Keep a memory cgroup that was found under RCU beyond it; false when it is
 * about to be freed. The put may be called in any context.
 */
bool agentzip_memcg_tryget(struct mem_cgroup *memcg);
void agentzip_memcg_put(struct mem_cgroup *memcg);

/*
 * The memory cgroup of the cgroup v2 directory with this id, with a reference;
 * NULL when it was removed. May sleep.
 */
struct mem_cgroup *agentzip_memcg_of_cgroup(u64 id);

/*
 * Id of the cgroup v2 directory behind a file descriptor of the current
 * process, and the ids of its ancestors, nearest first. Returns how many ids
 * were written to @ids (at least 1), -E2BIG when there are more than @max, or
 * a negative errno when the descriptor is no cgroup v2 directory or the cgroup
 * has no memory controller.
 */
int agentzip_cgroup_ids(int fd, u64 *ids, int max);

/* Whether a cgroup with this id exists and was not removed. May sleep. */
bool agentzip_cgroup_exists(u64 id);

void *agentzip_page_address(struct page *page);
void agentzip_page_put(struct page *page);
/* Only our reference keeps @page, or reclaim is about to take it away. */
bool agentzip_page_orphaned(struct page *page);
void agentzip_page_get(struct page *page);
/* A copy of @page, off the LRU, charged to nobody; or NULL. May sleep. */
struct page *agentzip_page_copy(struct page *page);

enum agentzip_page_need {
	AGENTZIP_PAGE_FOR_RECLAIM,	/* at once; may use the reserves */
	AGENTZIP_PAGE_OPTIONAL,		/* at once, if there is plenty */
	AGENTZIP_PAGE_CAN_WAIT,		/* may sleep and reclaim */
};

/*
 * A zeroed page of the store, charged to @memcg unless that is NULL. Returns
 * its frame number, or 0 (which is no page that the allocator has).
 */
unsigned long agentzip_store_page_alloc(struct mem_cgroup *memcg,
					enum agentzip_page_need need);
/* Any context in which a spinlock may be taken. */
void agentzip_store_page_free(unsigned long pfn);
void *agentzip_store_page_address(unsigned long pfn);

u64 agentzip_total_ram_bytes(void);
unsigned int agentzip_nr_cpu_ids(void);

/* ---- movable.c: which folios may be held for long ---- */

/* Call it before the other, once at least. May sleep. */
void agentzip_movable_prepare(void);

/*
 * Whether holding @folio for long hinders nobody who wants to empty the memory
 * that it lies in. The caller has a reference. Any context.
 */
bool agentzip_folio_may_stay(const struct folio *folio);

/* ---- template_scan.c: which pages of a process a template can hold ---- */

struct agentzip_scanned_page {
	u64 index;		/* page index, as folio->index of a copy will be;
				 * of a page of a file: its number there */
	struct page *page;	/* one reference is the caller's */
	u64 copied;		/* 0: kept by reference; 1: a private copy */
};

/*
 * Scan [*@addr, @end) of @mm, at most @max pages into @out; advances *@addr.
 * Adds what it passed over to *@skipped. May sleep; takes mmap_lock for read.
 * Returns the number of pages written, or -ENOMEM, -EINTR.
 */
int agentzip_template_scan(struct mm_struct *mm, unsigned long *addr,
			   unsigned long end,
			   struct agentzip_scanned_page *out, unsigned int max,
			   u64 *skipped);

/*
 * The mm of process @pid in the caller's pid namespace, to be returned with
 * mmput(). ERR_PTR(-ESRCH) when there is none.
 */
struct mm_struct *agentzip_mm_of_pid(int pid);

/* ---- template_file.c: which pages of a file a template can hold ---- */

/*
 * A file of our own for what is open as @fd in the current process; *@sealed is
 * set when nobody can write it any more. ERR_PTR(-EBADF) when it is not open
 * for reading, ERR_PTR(-EINVAL) when it is no regular file that can be read and
 * positioned, or another error of opening it. May sleep.
 */
struct file *agentzip_template_file_open(int fd, bool *sealed);
void agentzip_template_file_close(struct file *file);
/* Its size in pages, the last of which may be a part of one. */
u64 agentzip_template_file_pages(struct file *file);

/*
 * Scan pages *@index to @end, at most the file's size, at most @max pages into
 * @out; advances *@index. Holes and pages of zeros are passed over. May sleep.
 * Returns the number of pages written, or -ENOMEM, -EINTR, or an error of
 * reading the file.
 */
int agentzip_template_file_scan(struct file *file, bool sealed, u64 *index,
				u64 end, struct agentzip_scanned_page *out,
				unsigned int max);

/* ---- walk.c: what the page table of a process says ---- */

/* States of a page; the numbers are those of the control interface. */
enum agentzip_page_state {
	AGENTZIP_PAGE_PRESENT = 1,
	AGENTZIP_PAGE_ACCESSED = 2,
	AGENTZIP_PAGE_SWAPPED = 4,
};

/*
 * States of the pages of [@start, @end), one byte each: those of anonymous pages,
 * 0 for all others. With @clear the accessed bit of every present one is cleared.
 * The caller keeps the mm in use. May sleep; takes mmap_lock for read. Returns 0,
 * -EINTR when the caller is being killed, or -EBUSY, in a work item only, when the
 * lock is held for too long.
 */
int agentzip_page_states(struct mm_struct *mm, unsigned long start,
			 unsigned long end, u8 *states, bool clear);

/* ---- restore.c: restoring pages of a process ---- */

struct agentzip_process {
	struct mm_struct *mm;	/* to be returned with agentzip_mm_drop() */
	int tgid;		/* in the initial pid namespace */
};

/*
 * The process that @pid is in the caller's pid namespace. Returns 0, -ESRCH when
 * there is none with memory of its own, -EPERM when that memory is not charged to
 * the cgroup v2 directory with this id or to one below. May sleep.
 */
int agentzip_process_find(int pid, u64 cgroup_id, struct agentzip_process *out);
/* What is kept is the structure, not the memory: that goes with the process. */
void agentzip_mm_drop(struct mm_struct *mm);

/* Keep the memory; false when the process is gone. The end does not sleep. */
bool agentzip_mm_begin(struct mm_struct *mm);
void agentzip_mm_end(struct mm_struct *mm);

/* The end of the addresses that user space can have. */
unsigned long agentzip_user_end(void);

enum agentzip_room {
	AGENTZIP_ROOM,
	AGENTZIP_ROOM_NONE,		/* a limit or the end of memory is near */
	AGENTZIP_ROOM_ELSEWHERE,	/* the process has left the sandbox */
};

/*
 * Whether @nr pages can be restored: within memory.max and memory.high of the memory
 * cgroup of @mm and of all above, which the sandbox is one of, and of the machine.
 */
enum agentzip_room agentzip_restore_room(struct mm_struct *mm, u64 cgroup_id,
					 unsigned long nr);

#define AGENTZIP_RESTORE_BATCH 16	/* pages under one mmap_lock */

enum agentzip_outcome {
	AGENTZIP_WAS_ABSENT,	/* not swapped out, and not in memory */
	AGENTZIP_WAS_PRESENT,
	AGENTZIP_RESTORED,	/* and its accessed bit is cleared */
	AGENTZIP_LEFT,		/* swapped out: it could not be had now */
	AGENTZIP_FAILED,	/* swapped out: a fault there is an error */
};

/*
 * Restore the pages at these addresses, at most AGENTZIP_RESTORE_BATCH. The caller
 * keeps the mm in use. May sleep; takes mmap_lock for read, or leaves the pages when
 * that is held for too long. Returns 0, or -ENOMEM when there is no memory for more;
 * the outcomes are always set.
 */
int agentzip_restore(struct mm_struct *mm, const u64 *pages, unsigned int nr,
		     u8 *outcomes);

/* ---- restore_worker.c: the work items ---- */

#define AGENTZIP_RESTORE_JOBS 8		/* at a time */

void agentzip_restore_init(void);
/* Let up to so many jobs run; each runs again for as long as it says so. */
void agentzip_restore_kick(unsigned int nr);
bool agentzip_rs_restore_job(void);
/* Run agentzip_rs_hit_test() in so many ms, instead of when it was to run. */
void agentzip_hit_test_in(unsigned int ms);
void agentzip_rs_hit_test(void);
/* Stop them for good and wait until they are done. May sleep. */
void agentzip_restore_stop(void);

/* Sleep for a disk. */
void agentzip_job_pause(void);

/* ---- sysfs.c ---- */

/* What a directory of the tree shows; ids index the tables in Rust. */
enum agentzip_node_kind {
	AGENTZIP_NODE_ROOT,
	AGENTZIP_NODE_STATS,
	AGENTZIP_NODE_SANDBOX,
	AGENTZIP_NODE_TEMPLATE,
};

/*
 * Every attribute, once: name, mode. X(name, mode). Which directory has which,
 * and who may read those of sandboxes and templates, is in sysfs.c; what they
 * say is in sysfs.rs and Documentation/ABI.
 */
#define AGENTZIP_ATTRS(X)			\
	/* root */				\
	X(abi_version, 0444)			\
	X(armed, 0444)				\
	X(draining, 0444)			\
	X(enabled, 0644)			\
	X(recorder, 0444)			\
	X(kernel_btf, 0444)			\
	X(max_distance, 0644)			\
	X(second_look, 0644)			\
	X(second_look_percent, 0644)		\
	X(prefetch, 0644)			\
	X(keep_on_load, 0644)			\
	/* root and sandboxes */		\
	X(max_bytes, 0644)			\
	/* stats and sandboxes */		\
	X(entries, 0444)			\
	X(stores, 0444)				\
	X(loads, 0444)				\
	X(erased, 0444)				\
	X(declined_incompressible, 0444)	\
	X(declined_nomem, 0444)			\
	X(declined_full, 0444)			\
	X(declined_detached, 0444)		\
	X(load_errors, 0444)			\
	X(template_backed, 0444)		\
	X(promoted, 0444)			\
	X(dropped, 0444)			\
	X(provisional, 0444)			\
	X(second_look_pages, 0444)		\
	X(second_look_bytes, 0444)		\
	X(second_look_ns, 0444)			\
	X(encode_ns, 0444)			\
	X(decode_ns, 0444)			\
	X(prefetch_pages, 0444)			\
	X(prefetch_present, 0444)		\
	X(prefetch_absent, 0444)		\
	X(prefetch_dropped, 0444)		\
	X(prefetch_hits, 0444)			\
	X(prefetch_misses, 0444)		\
	X(prefetch_untested, 0444)		\
	X(prefetch_ns, 0444)			\
	X(load_latency, 0444)			\
	X(faults, 0444)				\
	X(faults_lost, 0444)			\
	X(pages_fill, 0444)			\
	X(pages_ref, 0444)			\
	X(pages_delta, 0444)			\
	X(pages_delta_zstd, 0444)		\
	X(pages_zstd, 0444)			\
	X(pages_prefix, 0444)			\
	X(pages_dict, 0444)			\
	X(pages_padded, 0444)			\
	X(bytes_fill, 0444)			\
	X(bytes_ref, 0444)			\
	X(bytes_delta, 0444)			\
	X(bytes_delta_zstd, 0444)		\
	X(bytes_zstd, 0444)			\
	X(bytes_prefix, 0444)			\
	X(bytes_dict, 0444)			\
	X(bytes_padded, 0444)			\
	/* stats */				\
	X(memory_arenas, 0444)			\
	X(memory_references, 0444)		\
	X(memory_sketches, 0444)		\
	X(memory_dictionaries, 0444)		\
	X(memory_table, 0444)			\
	X(memory_template_pages, 0444)		\
	X(memory_template_index, 0444)		\
	X(memory_scratch, 0444)			\
	X(memory_objects, 0444)			\
	X(memory_total, 0444)			\
	/* sandboxes and templates */		\
	X(domain, 0444)				\
	/* sandboxes */				\
	X(phase, 0644)				\
	X(level, 0644)				\
	X(template, 0444)			\
	X(group, 0444)				\
	X(attached, 0444)			\
	X(sensitive, 0444)			\
	X(arena_bytes, 0444)			\
	X(group_references, 0444)		\
	X(group_reference_bytes, 0444)		\
	X(group_sketch_bytes, 0444)		\
	X(group_dictionaries, 0444)		\
	X(group_dictionary_bytes, 0444)		\
	X(group_dictionary_users, 0444)		\
	X(group_dictionary_first, 0444)		\
	X(group_dictionary_recent, 0444)	\
	X(ranges, 0444)				\
	/* templates */				\
	X(source, 0444)				\
	X(signature, 0444)			\
	X(pages_referenced, 0444)		\
	X(pages_copied, 0444)			\
	X(pages_skipped, 0444)			\
	X(pages_indexed, 0444)			\
	X(sketch_bytes, 0444)			\
	X(users, 0444)				\
	X(index_bytes, 0444)			\
	X(page_bytes, 0444)

#define AGENTZIP_ATTR_ENUM(name, mode) AGENTZIP_ATTR_##name,
enum agentzip_attr {
	AGENTZIP_ATTRS(AGENTZIP_ATTR_ENUM)
	AGENTZIP_ATTR_COUNT
};

struct agentzip_node;

/*
 * SHA-256 of the BTF of the kernel that the module was built for, in hexadecimal
 * digits; "none" when the build did not know it.
 */
const char *agentzip_kernel_btf(void);

int agentzip_sysfs_init(void);
void agentzip_sysfs_exit(void);

/* Creates a directory; NULL when memory or the name is missing. May sleep. */
struct agentzip_node *agentzip_sysfs_add(enum agentzip_node_kind kind,
					 unsigned int id, const char *name);
/* Removes it; waits for readers under way. May sleep. */
void agentzip_sysfs_remove(struct agentzip_node *node);

/*
 * Format an attribute into a buffer of a page, or set it from text; returns
 * the length or a negative errno. Never takes a lock that is held while a
 * directory is removed: removal waits for these calls.
 */
ssize_t agentzip_rs_show(enum agentzip_node_kind kind, unsigned int id,
			 enum agentzip_attr attr, char *buf);
ssize_t agentzip_rs_set(enum agentzip_node_kind kind, unsigned int id,
			enum agentzip_attr attr, const char *buf, size_t len);

/* ---- worker.c: one periodic work item ---- */

/* Run agentzip_rs_housekeeping() in a second, and for as long as it says so. */
void agentzip_worker_kick(void);
/* Stop it and wait until it is done. May sleep. */
void agentzip_worker_stop(void);
bool agentzip_rs_housekeeping(void);

/*
 * Run agentzip_rs_second_look() soon, and again after as many ms as it says, if
 * that is not negative. Stopped with the worker.
 */
void agentzip_second_look_kick(void);
int agentzip_rs_second_look(void);

/* ---- worker.c, for all work items: CPU time, and how they yield ---- */

struct agentzip_cpu_time {
	u64 ns;
	int nice;
};

/* CPU time that the current thread spends in between, at this nice value, in ns. */
struct agentzip_cpu_time agentzip_job_begin(int nice);
u64 agentzip_job_end(struct agentzip_cpu_time before);

/*
 * Let run who waits for this CPU, if we have a raised nice value. May sleep. Only inside of
 * what keeps the module: it is a voluntary switch, which synchronize_rcu_tasks() takes for
 * the end of what ran.
 */
void agentzip_give_way(void);

/* ---- trace.c ---- */

void agentzip_trace_store(u64 cgroup_id, unsigned long slot, u64 index,
			  int representation, unsigned int len, u64 ns);
void agentzip_trace_load(u64 cgroup_id, unsigned long slot, int representation,
			 unsigned int len, int error, u64 ns);
void agentzip_trace_fault(u64 cgroup_id, unsigned long slot, u64 address,
			  bool write);

#endif /* AGENTZIP_FFI_H */
