/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM agentzip

#if !defined(AGENTZIP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define AGENTZIP_TRACE_H

#include <linux/tracepoint.h>

/* Numbers of Representation in rust/uapi; -1: declined, or a load that failed. */
#define show_agentzip_representation(r)			\
	__print_symbolic(r,				\
			 { -1, "none" },		\
			 { 0, "fill" },			\
			 { 1, "ref" },			\
			 { 2, "delta" },		\
			 { 3, "delta_zstd" },		\
			 { 4, "zstd" }, { 5, "prefix" }, { 6, "dict" },	\
			 { 7, "padded" })

TRACE_EVENT(agentzip_store,
	TP_PROTO(u64 cgroup_id, unsigned long slot, u64 index,
		 int representation, unsigned int len, u64 ns),
	TP_ARGS(cgroup_id, slot, index, representation, len, ns),
	TP_STRUCT__entry(
		__field(u64, cgroup_id)
		__field(unsigned long, slot)
		__field(u64, index)
		__field(int, representation)
		__field(unsigned int, len)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->cgroup_id = cgroup_id;
		__entry->slot = slot;
		__entry->index = index;
		__entry->representation = representation;
		__entry->len = len;
		__entry->ns = ns;
	),
	TP_printk("cgroup=%llu slot=%#lx index=%#llx representation=%s len=%u ns=%llu",
		  __entry->cgroup_id, __entry->slot, __entry->index,
		  show_agentzip_representation(__entry->representation),
		  __entry->len, __entry->ns)
);

TRACE_EVENT(agentzip_load,
	TP_PROTO(u64 cgroup_id, unsigned long slot, int representation,
		 unsigned int len, int error, u64 ns),
	TP_ARGS(cgroup_id, slot, representation, len, error, ns),
	TP_STRUCT__entry(
		__field(u64, cgroup_id)
		__field(unsigned long, slot)
		__field(int, representation)
		__field(unsigned int, len)
		__field(int, error)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->cgroup_id = cgroup_id;
		__entry->slot = slot;
		__entry->representation = representation;
		__entry->len = len;
		__entry->error = error;
		__entry->ns = ns;
	),
	TP_printk("cgroup=%llu slot=%#lx representation=%s len=%u error=%d ns=%llu",
		  __entry->cgroup_id, __entry->slot,
		  show_agentzip_representation(__entry->representation),
		  __entry->len, __entry->error, __entry->ns)
);

TRACE_EVENT(agentzip_fault,
	TP_PROTO(u64 cgroup_id, unsigned long slot, u64 address, bool write),
	TP_ARGS(cgroup_id, slot, address, write),
	TP_STRUCT__entry(
		__field(u64, cgroup_id)
		__field(unsigned long, slot)
		__field(u64, address)
		__field(bool, write)
	),
	TP_fast_assign(
		__entry->cgroup_id = cgroup_id;
		__entry->slot = slot;
		__entry->address = address;
		__entry->write = write;
	),
	TP_printk("cgroup=%llu slot=%#lx address=%#llx write=%d",
		  __entry->cgroup_id, __entry->slot, __entry->address,
		  __entry->write)
);

#endif /* AGENTZIP_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE agentzip_trace
#include <trace/define_trace.h>
