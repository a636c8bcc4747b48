// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hand-driven scheduler: runs threads one at a time and decides at every lock who goes on.
//!
//! [`explore`] repeats a scenario with every order of the threads' steps that has at most so many
//! preemptions (a switch away from a thread that could have gone on). A step is what a thread does
//! between two locks that it takes. Locks are the scheduler's own, so a thread that waits for one is
//! known to wait, and a deadlock is found.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard};

thread_local! {
    /// Number of this thread in the scenario; none outside of one.
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Names a lock.
pub type Lock = (&'static str, u64);

#[derive(Clone, Copy, PartialEq)]
enum Condition {
    Ready,
    Waits(Lock),
    Done,
}

/// A decision: which of how many threads was let on.
struct Decision {
    chosen: usize,
    options: usize,
}

#[derive(Default)]
struct State {
    threads: Vec<Condition>,
    running: usize,
    held: HashMap<Lock, usize>,
    /// What to decide first; the rest is decided for the first option.
    script: Vec<usize>,
    decisions: Vec<Decision>,
    preemptions: usize,
    bound: usize,
    failed: bool,
}

/// The scheduler of one run.
#[derive(Default)]
pub struct Scheduler {
    state: Mutex<State>,
    turn: Condvar,
}

impl Scheduler {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Runs `f` with a lock held. Outside of a scenario there is nobody to exclude.
    pub fn with<R>(&self, lock: Lock, f: impl FnOnce() -> R) -> R {
        let Some(me) = ME.get() else { return f() };
        self.acquire(me, lock);
        let result = f();
        self.release(lock);
        result
    }

    fn acquire(&self, me: usize, lock: Lock) {
        let mut state = self.state();
        state.choose(me);
        loop {
            while state.running != me && !state.failed {
                self.turn.notify_all();
                state = self.turn.wait(state).unwrap();
            }
            if state.failed {
                drop(state);
                panic!("another thread failed");
            }
            match state.held.get(&lock) {
                None => {
                    state.held.insert(lock, me);
                    return;
                }
                Some(holder) => {
                    assert_ne!(*holder, me, "{lock:?} is taken twice by one thread");
                    state.threads[me] = Condition::Waits(lock);
                    state.choose(me);
                }
            }
        }
    }

    fn release(&self, lock: Lock) {
        let mut state = self.state();
        state.held.remove(&lock);
        for thread in &mut state.threads {
            if *thread == Condition::Waits(lock) {
                *thread = Condition::Ready;
            }
        }
    }

    fn begin(&self, me: usize) {
        let mut state = self.state();
        while state.running != me && !state.failed {
            state = self.turn.wait(state).unwrap();
        }
        ME.set(Some(me));
    }

    fn end(&self, me: usize, failed: bool) {
        let mut state = self.state();
        state.failed |= failed;
        state.threads[me] = Condition::Done;
        state.choose(me);
        self.turn.notify_all();
    }
}

impl State {
    /// Decides who goes on after a step of thread `me`.
    fn choose(&mut self, me: usize) {
        let ready = |state: &Self, thread: usize| state.threads[thread] == Condition::Ready;
        let mut options: Vec<usize> = Vec::new();
        let goes_on = ready(self, me);
        if goes_on {
            options.push(me);
        }
        if !goes_on || self.preemptions < self.bound {
            options.extend((0..self.threads.len()).filter(|&t| t != me && ready(self, t)));
        }
        if options.is_empty() {
            let waits = self
                .threads
                .iter()
                .any(|t| matches!(t, Condition::Waits(_)));
            if waits && !self.failed {
                self.failed = true;
                panic!("deadlock: {:?} are held", self.held);
            }
            return;
        }
        let at = self.decisions.len();
        let chosen = self.script.get(at).copied().unwrap_or(0);
        assert!(chosen < options.len(), "the scenario is not deterministic");
        self.decisions.push(Decision {
            chosen,
            options: options.len(),
        });
        self.running = options[chosen];
        if goes_on && self.running != me {
            self.preemptions += 1;
        }
    }
}

/// Runs `scenario` once for every order with at most `bound` preemptions, and returns how many there
/// are. The scenario makes its world with the scheduler and gives the threads' bodies to
/// [`Run::threads`].
pub fn explore(bound: usize, mut scenario: impl FnMut(&mut Run)) -> usize {
    let mut script = Vec::new();
    let mut runs = 0;
    loop {
        let mut run = Run {
            script: std::mem::take(&mut script),
            bound,
            decisions: Vec::new(),
        };
        scenario(&mut run);
        runs += 1;
        // The next order: the last decision that has an option left takes it.
        let mut decisions = run.decisions;
        while decisions.last().is_some_and(|d| d.chosen + 1 >= d.options) {
            decisions.pop();
        }
        let Some(last) = decisions.last_mut() else {
            return runs;
        };
        last.chosen += 1;
        script = decisions.iter().map(|d| d.chosen).collect();
    }
}

/// One run of a scenario.
pub struct Run {
    script: Vec<usize>,
    bound: usize,
    decisions: Vec<Decision>,
}

impl Run {
    /// Runs the threads to their ends.
    ///
    /// # Panics
    ///
    /// With the panic of the thread that failed first, after printing the order of the run.
    pub fn threads(&mut self, scheduler: &Scheduler, bodies: Vec<Box<dyn FnOnce() + Send + '_>>) {
        {
            let mut state = scheduler.state();
            *state = State {
                threads: vec![Condition::Ready; bodies.len()],
                script: std::mem::take(&mut self.script),
                bound: self.bound,
                ..State::default()
            };
        }
        let mut failures = Vec::new();
        std::thread::scope(|scope| {
            let handles: Vec<_> = bodies
                .into_iter()
                .enumerate()
                .map(|(me, body)| {
                    scope.spawn(move || {
                        scheduler.begin(me);
                        let result = catch_unwind(AssertUnwindSafe(body));
                        let failed = result.is_err();
                        // A deadlock that is found here is reported by the thread that waits.
                        let _ = catch_unwind(AssertUnwindSafe(|| scheduler.end(me, failed)));
                        scheduler.turn.notify_all();
                        result
                    })
                })
                .collect();
            for handle in handles {
                failures.extend(handle.join().expect("panics are caught").err());
            }
        });
        let mut state = scheduler.state();
        self.decisions = std::mem::take(&mut state.decisions);
        if let Some(failure) = failures.into_iter().next() {
            let order: Vec<_> = self.decisions.iter().map(|d| d.chosen).collect();
            eprintln!("order of the failed run: {order:?}");
            drop(state);
            resume_unwind(failure);
        }
    }
}
