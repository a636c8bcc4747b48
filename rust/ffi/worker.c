// SPDX-License-Identifier: GPL-2.0
/* The module's periodic work; what it does is in housekeeping.rs. */
#include <linux/workqueue.h>

#include "agentzip_ffi.h"

#define PERIOD HZ

static void run(struct work_struct *work);
static DECLARE_DELAYED_WORK(housekeeping, run);

static void run(struct work_struct *work)
{
	if (agentzip_rs_housekeeping())
		agentzip_worker_kick();
}

void agentzip_worker_kick(void)
{
	queue_delayed_work(system_dfl_wq, &housekeeping, PERIOD);
}

void agentzip_worker_stop(void)
{
	cancel_delayed_work_sync(&housekeeping);
}
