// SPDX-License-Identifier: GPL-2.0
/*
 * The work items of the restore workers; what they do is in restore.rs.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/workqueue.h>

#include "agentzip_ffi.h"

static struct work_struct jobs[AGENTZIP_RESTORE_JOBS];
static struct delayed_work hit_test;

static void run(struct work_struct *work)
{
	if (agentzip_rs_restore_job())
		queue_work(system_dfl_wq, work);
}

static void test(struct work_struct *work)
{
	agentzip_rs_hit_test();
}

void agentzip_restore_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(jobs); i++)
		INIT_WORK(&jobs[i], run);
	INIT_DELAYED_WORK(&hit_test, test);
}

/* More jobs than CPUs gain nothing: a job waits for nobody. */
void agentzip_restore_kick(unsigned int nr)
{
	unsigned int i;

	nr = min3(nr, (unsigned int)ARRAY_SIZE(jobs), num_online_cpus());
	for (i = 0; i < nr; i++)
		queue_work(system_dfl_wq, &jobs[i]);
}

void agentzip_hit_test_in(unsigned int ms)
{
	mod_delayed_work(system_dfl_wq, &hit_test, msecs_to_jiffies(ms));
}

void agentzip_restore_stop(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(jobs); i++)
		disable_work_sync(&jobs[i]);
	disable_delayed_work_sync(&hit_test);
}

void agentzip_job_pause(void)
{
	usleep_range(1000, 2000);
}
