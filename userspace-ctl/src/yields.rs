// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Threads that yield: what is done while an agent waits has time, and another one's tool has none.
//!
//! Not far, and not by `SCHED_IDLE`: a thread that reclaims has folios locked, for which a sandbox that goes on may
//! have to wait, and one that plans has the time of an answer of the LLM. Threads that work while they hold
//! a lock of a running sandbox, as its `mmap_lock`, do not yield at all.

/// Nice value of reclaim and of the restorer, above that of the daemon; the module's restore workers have the
/// same. Against who runs a tool they get a quarter of a CPU.
const NICE: i32 = 5;

/// Raises the nice value of this thread, up to 19; to be called once.
pub fn now() {
    // It never fails for a rise; a thread as nice as before does the same, only not as politely.
    let _ = rustix::process::nice(NICE);
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    #[test]
    fn only_this_thread_yields() {
        let before = getpriority_process(None).unwrap();
        let other = std::thread::spawn(|| {
            super::now();
            getpriority_process(None).unwrap()
        });
        assert_eq!(other.join().unwrap(), (before + super::NICE).min(19));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
