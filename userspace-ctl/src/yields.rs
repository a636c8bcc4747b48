// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Threads that yield: what is done while an agent waits has time, and another one's tool has none.
//!
//! By nice values and not by `SCHED_IDLE`: a thread that reclaims holds folios locked and a buffer of the
//! module, for which others may have to wait, and so must go on now and then on a machine that is busy all
//! the time.

/// Of threads that take pages out.
pub const RECLAIM: i32 = 10;
/// Of the thread that learns and plans: the LLM's answer goes on for some time after its first token, in
/// which pages have to come back.
pub const PLANNING: i32 = 5;
/// Of what nobody waits for.
pub const UNHURRIED: i32 = 19;

/// Raises the nice value of this thread by so much, up to 19; to be called once.
pub fn by(nice: i32) {
    // It never fails for a rise; a thread as nice as before does the same, only not as politely.
    let _ = rustix::process::nice(nice);
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    #[test]
    fn only_this_thread_yields() {
        let before = getpriority_process(None).unwrap();
        let other = std::thread::spawn(|| {
            super::by(super::UNHURRIED);
            getpriority_process(None).unwrap()
        });
        assert_eq!(other.join().unwrap(), 19);
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
