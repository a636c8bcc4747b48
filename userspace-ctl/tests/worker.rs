// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reclaim jobs, on a folder with files like a cgroup's. A full FIFO for `memory.reclaim` holds the writer in
//! the kernel until a signal comes, as reclaim does.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentzip_ctl::directory::{Directory, Mount};
use agentzip_ctl::hot::process::{Most, Processes, Subject};
use agentzip_ctl::hot::Target;
use agentzip_ctl::worker::{Job, Order, Spare};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{mknodat, open, FileType, Mode, OFlags, CWD};

fn cgroup(root: &Path) -> Directory {
    std::fs::create_dir_all(root.join("sb")).unwrap();
    for (name, text) in [
        ("memory.reclaim", ""),
        ("memory.current", "1000000\n"),
        (
            "memory.stat",
            "anon 1\ninactive_file 4096\nactive_file 8192\npgsteal_proactive 10\n",
        ),
    ] {
        std::fs::write(root.join("sb").join(name), text).unwrap();
    }
    Mount::open(root)
        .unwrap()
        .directory(Path::new("sb"))
        .unwrap()
}

/// Makes `memory.reclaim` a FIFO that is full; returns its other end.
fn block(root: &Path) -> OwnedFd {
    let path = root.join("sb/memory.reclaim");
    std::fs::remove_file(&path).unwrap();
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let end = open(
        &path,
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap();
    while rustix::io::write(&end, &[0; 4096]).is_ok() {}
    end
}

fn wait(job: &Job, time: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let mut fds = [PollFd::new(job, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() > 0
}

/// Held by each test that has jobs: they count their threads.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const ALL: Order = Order {
    bytes: 1 << 30,
    file_first: false,
};

#[test]
fn a_job_asks_for_anonymous_memory_and_ends() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = cgroup(dir.path());
    let order = Order {
        bytes: 8193,
        file_first: false,
    };
    let job = Job::start(&cgroup, order).unwrap();
    assert!(wait(&job, Duration::from_secs(20)));
    let outcome = job.finish().unwrap();
    let written = std::fs::read_to_string(dir.path().join("sb/memory.reclaim")).unwrap();
    assert_eq!(written, "12288 swappiness=max");
    assert_eq!((outcome.asked_bytes, outcome.reclaimed_bytes), (12288, 0));
    assert!(!outcome.stopped && !outcome.short && outcome.stop_latency.is_zero());
    assert!(outcome.cpu <= outcome.elapsed + Duration::from_millis(50));
}

#[test]
fn page_cache_goes_first_when_asked() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = cgroup(dir.path());
    let order = Order {
        bytes: 1 << 20,
        file_first: true,
    };
    Job::start(&cgroup, order).unwrap().finish().unwrap();
    // One file description, written twice: the cache that there is, then the rest.
    let written = std::fs::read_to_string(dir.path().join("sb/memory.reclaim")).unwrap();
    assert_eq!(written, "12288 swappiness=01048576 swappiness=max");
}

#[test]
fn a_stop_ends_a_write_that_is_in_the_kernel() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = cgroup(dir.path());
    let _end = block(dir.path());
    let job = Job::start(&cgroup, ALL).unwrap();
    assert!(!wait(&job, Duration::from_millis(100)));
    assert!(!job.is_finished());
    let deadline = Instant::now() + Duration::from_secs(20);
    while job.cpu_time().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(job.cpu_time().unwrap() < Duration::from_millis(100));
    job.stop();
    job.stop();
    assert!(wait(&job, Duration::from_secs(20)));
    let outcome = job.finish().unwrap();
    assert!(outcome.stopped && outcome.in_aging());
    assert!(outcome.stop_latency > Duration::ZERO && outcome.stop_latency <= outcome.elapsed);
}

/// Whenever the stop comes, before the thread begins or just before it enters the kernel, it is obeyed.
#[test]
fn no_stop_is_lost() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = cgroup(dir.path());
    let _end = block(dir.path());
    for round in 0..300_u64 {
        let job = Job::start(&cgroup, ALL).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(round % 150) {
            std::hint::spin_loop();
        }
        job.stop();
        assert!(wait(&job, Duration::from_secs(20)), "round {round}");
        assert!(job.finish().unwrap().stopped);
    }
}

#[test]
fn a_job_that_is_dropped_is_stopped() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = cgroup(dir.path());
    let end = block(dir.path());
    let before = threads();
    for _ in 0..8 {
        drop(Job::start(&cgroup, ALL).unwrap());
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    // A thread has its name only once it runs: one look is not enough.
    let mut quiet = 0;
    while quiet < 20 && Instant::now() < deadline {
        quiet = if threads() == before { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(5));
    }
    // Nobody wrote.
    drop(end);
    assert_eq!(quiet, 20, "threads are left");
}

/// Threads of this process that reclaim.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.trim() == "reclaim"
        })
        .count()
}

#[test]
fn errors_say_what_to_do() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = cgroup(dir.path());
    std::fs::remove_file(dir.path().join("sb/memory.reclaim")).unwrap();
    let error = Job::start(&cgroup, ALL).unwrap_err().to_string();
    assert!(
        error.contains("/sb: cannot be reclaimed: it has no memory.reclaim; switch"),
        "{error}"
    );
    // A device that refuses every write.
    std::os::unix::fs::symlink("/dev/full", dir.path().join("sb/memory.reclaim")).unwrap();
    let error = Job::start(&cgroup, ALL).unwrap_err().to_string();
    assert!(error.contains("cannot open /sb/memory.reclaim"), "{error}");
}

/// The part of `nothing_is_left_of_a_daemon_that_was_killed` that is killed.
#[test]
fn part_that_is_killed() {
    let Ok(root) = std::env::var("AGENTZIP_TEST_KILLED") else {
        return;
    };
    let cgroup = Mount::open(Path::new(&root))
        .unwrap()
        .directory(Path::new("sb"))
        .unwrap();
    let _jobs = [
        Job::start(&cgroup, ALL).unwrap(),
        Job::start(&cgroup, ALL).unwrap(),
    ];
    println!("\nready");
    std::io::stdout().flush().unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn nothing_is_left_of_a_daemon_that_was_killed() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    cgroup(dir.path());
    let end = block(dir.path());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["part_that_is_killed", "--exact", "--nocapture"])
        .env("AGENTZIP_TEST_KILLED", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    // Threads give themselves their names.
    let names = || -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
            .filter(|name| name.trim() == "reclaim")
            .collect()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while names().len() != 2 {
        assert!(Instant::now() < deadline, "{:?}", names());
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    // A process is reaped only when its last thread is gone.
    child.wait().unwrap();
    // And nobody is in the kernel to write once there is room.
    let mut all = Vec::new();
    let _ = File::from(end).read_to_end(&mut all);
    assert!(all.iter().all(|byte| *byte == 0));
}

/// Processes of which nothing is there; the test asks only whether they are asked for.
struct Nobody(std::sync::atomic::AtomicUsize);

impl Processes for Nobody {
    fn list(&self, _: &Target, _: Most) -> agentzip_ctl::Result<Vec<i32>> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Vec::new())
    }

    fn open(&self, _: &Target, _: i32) -> std::io::Result<Option<Box<dyn Subject>>> {
        Ok(None)
    }
}

/// A job that spares hot pages asks `memory.reclaim` for the file cache only, and can be stopped there.
#[test]
fn hot_pages_are_not_left_to_the_kernel() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let sandbox = cgroup(dir.path());
    let nobody = Arc::new(Nobody(Default::default()));
    let spare = Spare {
        processes: nobody.clone(),
        target: Target {
            id: sandbox.id(),
            path: dir.path().join("sb"),
            name: sandbox.name(),
        },
        hot: Arc::default(),
    };
    let asked = || nobody.0.load(std::sync::atomic::Ordering::Relaxed);
    let outcome = Job::sparing(&sandbox, ALL, spare.clone()).unwrap().finish();
    let outcome = outcome.unwrap();
    assert_eq!((outcome.reclaimed_bytes, outcome.short), (0, true));
    let written = || std::fs::read_to_string(dir.path().join("sb/memory.reclaim")).unwrap();
    assert_eq!((written().as_str(), asked()), ("", 1));
    let all = Order {
        file_first: true,
        ..ALL
    };
    Job::sparing(&sandbox, all, spare.clone())
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!((written().as_str(), asked()), ("12288 swappiness=0", 2));
    let _end = block(dir.path());
    let job = Job::sparing(&sandbox, all, spare).unwrap();
    assert!(!wait(&job, Duration::from_millis(50)));
    job.stop();
    let outcome = job.finish().unwrap();
    assert!(outcome.stopped);
    assert_eq!(asked(), 2);
}
