// SPDX-License-Identifier: GPL-2.0
/*
 * The module's periodic work, and the second look; what they do is in
 * housekeeping.rs and second_look.rs. And how these and the restore workers yield.
 */
#include <linux/kernel.h>
#include <linux/sched.h>
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

static void look(struct work_struct *work);
static DECLARE_DELAYED_WORK(second_look, look);

static void look(struct work_struct *work)
{
	int pause_ms = agentzip_rs_second_look();

	if (pause_ms >= 0)
		queue_delayed_work(system_dfl_wq, &second_look,
				   msecs_to_jiffies(pause_ms));
}

void agentzip_second_look_kick(void)
{
	/* At once: whether a pause goes on, the round decides. */
	mod_delayed_work(system_dfl_wq, &second_look, 0);
}

/*
 * Jobs run at a raised nice value: on a CPU that is short, who runs a tool gets the
 * most of it. It goes back with the end of a job, for the thread serves others too.
 * That also brings the thread's CPU time up to date, which else lags by a tick.
 */
struct agentzip_cpu_time agentzip_job_begin(int nice)
{
	struct agentzip_cpu_time before = { .nice = task_nice(current) };

	set_user_nice(current, nice);
	before.ns = current->se.sum_exec_runtime;
	return before;
}

u64 agentzip_job_end(struct agentzip_cpu_time before)
{
	set_user_nice(current, before.nice);
	return current->se.sum_exec_runtime - before.ns;
}

/*
 * cond_resched() does nothing in kernels that preempt by themselves, and with PREEMPT_LAZY
 * those do so at a tick, as long as kernel code runs: whoever wakes up on this CPU waits for
 * that, some hundred pages long. Who has no raised nice value works for itself, or holds what
 * others wait for. A task that is about to sleep would do so here.
 */
void agentzip_give_way(void)
{
	might_sleep();
	if (task_nice(current) <= 0 || !task_is_running(current))
		return;
	if (test_thread_flag(TIF_NEED_RESCHED_LAZY))
		schedule();
}

void agentzip_worker_stop(void)
{
	/* For good: files in sysfs, which go later, kick the second look. */
	disable_delayed_work_sync(&housekeeping);
	disable_delayed_work_sync(&second_look);
}
