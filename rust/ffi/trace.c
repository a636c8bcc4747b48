// SPDX-License-Identifier: GPL-2.0
/* Tracepoints, callable from Rust. */
#include "agentzip_ffi.h"

#define CREATE_TRACE_POINTS
#include "agentzip_trace.h"

void agentzip_trace_store(u64 cgroup_id, unsigned long slot, u64 index,
			  int representation, unsigned int len, u64 ns)
{
	trace_agentzip_store(cgroup_id, slot, index, representation, len, ns);
}

void agentzip_trace_load(u64 cgroup_id, unsigned long slot, int representation,
			 unsigned int len, int error, u64 ns)
{
	trace_agentzip_load(cgroup_id, slot, representation, len, error, ns);
}

void agentzip_trace_fault(u64 cgroup_id, unsigned long slot, u64 address,
			  bool write)
{
	trace_agentzip_fault(cgroup_id, slot, address, write);
}
