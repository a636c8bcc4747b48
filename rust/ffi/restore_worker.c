// SPDX-License-Identifier: GPL-2.0
/*
 * The work items of the restore workers; what they do is in restore.rs.
 *
 * Jobs run at a raised nice value: on a CPU that is short, who runs a tool gets the
 * most of it. It goes back with the end of a job, for the thread serves others too.
 * That also brings the thread's CPU time up to date, which else lags by a tick.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/sched.h>
#include <linux/workqueue.h>

#include "agentzip_ffi.h"

#define JOB_NICE 5

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

struct agentzip_cpu_time agentzip_job_begin(void)
{
	struct agentzip_cpu_time before = { .nice = task_nice(current) };

	set_user_nice(current, JOB_NICE);
	before.ns = current->se.sum_exec_runtime;
	return before;
}

u64 agentzip_job_end(struct agentzip_cpu_time before)
{
	set_user_nice(current, before.nice);
	return current->se.sum_exec_runtime - before.ns;
}

void agentzip_job_pause(void)
{
	usleep_range(1000, 2000);
}
