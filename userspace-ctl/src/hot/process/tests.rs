// SPDX-License-Identifier: GPL-2.0 OR MIT

//! On real processes: ourselves and children. What only some kernels have is tried where it is.

use std::process::{Child, Command, Stdio};

use super::*;
use crate::procfs::Procfs;

/// A child that does nothing, and ends with the test.
struct Sleeper(Child);

impl Sleeper {
    /// A shell that waits for a line, and then does this.
    fn new(then: &str) -> Sleeper {
        let mut child = Command::new("sh")
            .args(["-c", &format!("echo; read x; {then}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Its memory changes no more when it has said this.
        let mut said = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut said)
            .unwrap();
        let child = Sleeper(child);
        while Procfs::new("/proc".into()).state(child.pid()).unwrap() != 'S' {
            std::thread::yield_now();
        }
        child
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn proc() -> &'static Path {
    Path::new("/proc")
}

#[test]
fn who_is_inside() {
    for (text, name, inside) in [
        ("0::/agents/sb1\n", "/agents/sb1", true),
        ("1:memory:/x\n0::/agents/sb1/in\n", "/agents/sb1", true),
        ("0::/agents/sb10\n", "/agents/sb1", false),
        ("0::/agents/sb1 (deleted)\n", "/agents/sb1", false),
        ("0::/\n", "/agents/sb1", false),
        ("1:memory:/agents/sb1\n", "/agents/sb1", false),
        ("0::/a\n", "/", true),
    ] {
        assert_eq!(is_inside(text, name), inside, "{text} {name}");
    }
}

#[test]
fn identities() {
    let fields: Vec<String> = (4..53).map(|field| field.to_string()).collect();
    let stat = format!("7 (a) S (b)) S {}\n", fields.join(" "));
    let expected = Identity {
        pid: 7,
        started: 22,
        stack: 28,
        arguments: 48,
    };
    assert_eq!(identity(7, &stat), Some(expected));
    assert_eq!(identity(7, "7 (a) S 1 2"), None);
    assert_eq!(identity(7, ""), None);
    let (one, other) = (Sleeper::new(""), Sleeper::new(""));
    let of = |sleeper: &Sleeper| hold(proc(), sleeper.pid()).unwrap().identity();
    assert_eq!(of(&one), of(&one));
    assert_ne!(of(&one), of(&other));
}

#[test]
fn an_exec_makes_it_another_one() {
    let mut child = Sleeper::new("exec sleep 60");
    let before = hold(proc(), child.pid()).unwrap();
    assert!(before.resident().unwrap() > 0);
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut after = hold(proc(), child.pid()).unwrap();
    for _ in 0..12_000 {
        if after.text("cmdline").unwrap().starts_with("sleep") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        after = hold(proc(), child.pid()).unwrap();
    }
    assert_eq!(after.identity().started, before.identity().started);
    assert_ne!(after.identity(), before.identity());
    // Its memory of before is gone.
    let all = Range { start: 0, end: END };
    let scanned = before.scan(all, Kind::Anonymous, 1, &mut Vec::new());
    let errno = scanned.unwrap_err().raw_os_error();
    assert!(
        matches!(errno, Some(libc::ESRCH | libc::ENOTTY)),
        "{errno:?}"
    );
}

/// The pages of a child are found, advice reaches them, and it lives on with what it had.
#[test]
fn pages_of_a_child() {
    let child = Sleeper::new("");
    let process = hold(proc(), child.pid()).unwrap();
    let mut runs = Vec::new();
    let all = Range { start: 0, end: END };
    match process.scan(all, Kind::Anonymous, u64::MAX, &mut runs) {
        // Before Linux 6.7.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return,
        other => assert_eq!(other.unwrap(), END),
    }
    let bytes = super::super::ranges::bytes(&runs);
    assert!(bytes > 0 && bytes <= process.resident().unwrap());
    let mappings = process.mappings().unwrap();
    assert_eq!(super::super::ranges::intersect(&runs, &mappings), runs);
    let one = process
        .scan(all, Kind::Anonymous, 1, &mut Vec::new())
        .unwrap();
    assert_eq!(one, runs[0].start + PAGE_SIZE);
    process.clear().unwrap();
    for advice in [Advice::Cold, Advice::PageOut, Advice::WillNeed] {
        match process.advise(&runs[..1], advice) {
            Ok(done) => assert_eq!(done, runs[0].end - runs[0].start),
            // Not allowed in some containers.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{advice:?}"),
        }
    }
    let none = Range {
        start: PAGE_SIZE,
        end: 2 * PAGE_SIZE,
    };
    let error = process.advise(&[none], Advice::PageOut).unwrap_err();
    assert!(matches!(
        error.raw_os_error(),
        Some(libc::ENOMEM | libc::EPERM)
    ));
    assert!(process.resident().is_ok());
}

#[test]
fn a_child_that_ended() {
    let mut child = Sleeper::new("");
    let process = hold(proc(), child.pid()).unwrap();
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    assert!(is_gone(&hold(proc(), child.pid()).unwrap_err()));
    let all = Range { start: 0, end: END };
    for result in [
        process.resident().map(drop),
        process.mappings().map(drop),
        process.clear(),
        process.advise(&[all], Advice::Cold).map(drop),
    ] {
        assert!(is_gone(&result.unwrap_err()));
    }
}

#[test]
fn only_of_the_sandbox() {
    let child = Sleeper::new("");
    let live = Live::new("/proc".into(), Hierarchy::new("/sys/fs/cgroup".into()));
    let target = |name: &str| Target {
        id: 1,
        path: format!("/sys/fs/cgroup{name}").into(),
        name: name.to_owned(),
    };
    let elsewhere = live.open(&target("/no/such/sandbox"), child.pid());
    assert!(elsewhere.unwrap().is_none());
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", child.pid())).unwrap();
    if let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::")) {
        assert!(live.open(&target(own), child.pid()).unwrap().is_some());
    }
    // No pid is that high.
    assert!(live.open(&target("/"), i32::MAX).unwrap().is_none());
    let most = Most {
        cgroups: 9,
        processes: 9,
    };
    assert!(live.list(&target("/no/such/sandbox"), most).is_err());
}

#[test]
fn processes_of_a_sandbox_within_bounds() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("cgroup.procs"), text).unwrap();
    };
    write("sb", "10\n0\n11\n");
    write("sb/in", "12\nx\n");
    write("sb/in/deep", "13\n");
    write("other", "14\n");
    let live = Live::new("/proc".into(), Hierarchy::new(dir.path().to_owned()));
    let mut target = Target {
        id: dir.path().join("sb").metadata().unwrap().ino(),
        path: dir.path().join("sb"),
        name: "/sb".to_owned(),
    };
    for (cgroups, processes, found) in [
        (9, 9, &[10, 11, 12, 13][..]),
        (2, 9, &[10, 11, 12]),
        (1, 9, &[10, 11]),
        (9, 1, &[10]),
        (9, 0, &[]),
    ] {
        let most = Most { cgroups, processes };
        assert_eq!(live.list(&target, most).unwrap(), found);
    }
    target.id += 1;
    let most = Most {
        cgroups: 9,
        processes: 9,
    };
    let error = live.list(&target, most).unwrap_err().to_string();
    assert!(error.contains("another one has its place"), "{error}");
}

/// Where the kernel has soft-dirty bits, they say what was written and nothing else.
#[test]
fn what_was_written() {
    if let Err(error) = probe(proc()) {
        let text = error.to_string();
        assert!(
            text.contains("encode.hot_skip: has no effect: this kernel lacks"),
            "{text}"
        );
        return;
    }
    let me = hold(proc(), std::process::id() as i32).unwrap();
    let mut memory = vec![1_u8; 64 * PAGE_SIZE as usize];
    let start = (memory.as_ptr() as u64).next_multiple_of(PAGE_SIZE);
    me.clear().unwrap();
    let at = (start - memory.as_ptr() as u64) as usize + 7 * PAGE_SIZE as usize;
    memory[at] = std::hint::black_box(2);
    let range = Range {
        start,
        end: start + 60 * PAGE_SIZE,
    };
    let mut runs = Vec::new();
    me.scan(range, Kind::Written, u64::MAX, &mut runs).unwrap();
    let page = start + 7 * PAGE_SIZE;
    assert!(runs.iter().any(|run| run.start <= page && page < run.end));
    assert!(super::super::ranges::bytes(&runs) <= 8 * PAGE_SIZE || runs.len() == 1);
}
