// SPDX-License-Identifier: GPL-2.0
/*
 * The module's periodic work, and the second look; what they do is in
 * housekeeping.rs and second_look.rs.
 */
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

/*
 * Rounds run at the highest nice value, as khugepaged does: nobody waits for what they
 * do. The nice value goes back at the end of a round, for the thread serves others too.
 */
static void look(struct work_struct *work)
{
	int nice = task_nice(current);
	int pause_ms;

	set_user_nice(current, MAX_NICE);
	pause_ms = agentzip_rs_second_look();
	set_user_nice(current, nice);

	if (pause_ms >= 0)
		queue_delayed_work(system_dfl_wq, &second_look,
				   msecs_to_jiffies(pause_ms));
}

void agentzip_second_look_kick(void)
{
	/* At once: whether a pause goes on, the round decides. */
	mod_delayed_work(system_dfl_wq, &second_look, 0);
}

void agentzip_worker_stop(void)
{
	/* For good: files in sysfs, which go later, kick the second look. */
	disable_delayed_work_sync(&housekeeping);
	disable_delayed_work_sync(&second_look);
}
