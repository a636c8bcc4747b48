// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sandboxes and hints by xattr, on a file system that has user xattrs: that of the target folder.
//! Where it has none, these tests fail, for what they are about would not have been tested.

use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentzip_ctl::authority::{Authority, Tenant};
use agentzip_ctl::directory::Mount;
use agentzip_ctl::watch::{Change, WatchSettings, Watcher, NAMES, PHASE};
use rustix::fs::{removexattr, setxattr, XattrFlags};

struct Fixture {
    dir: tempfile::TempDir,
    authority: Authority,
    watcher: Watcher,
}

/// A folder for trees; below $AGENTZIP_WATCH_DIR if that is set, which may be of cgroup v2.
fn folder() -> tempfile::TempDir {
    let base = std::env::var_os("AGENTZIP_WATCH_DIR");
    let base = base.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    tempfile::tempdir_in(base).unwrap()
}

/// Removes directories as those of cgroups are: their files go with them.
fn remove_tree(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(path);
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // What is no directory, the folder's own end removes.
        remove_tree(self.dir.path());
    }
}

/// A change as one line.
fn line(change: &Change) -> String {
    match change {
        Change::Appeared {
            cgroup, attributes, ..
        } => {
            format!(
                "appeared {} {}",
                cgroup.name(),
                serde_json::to_string(attributes).unwrap()
            )
        }
        Change::Attributes {
            cgroup, attributes, ..
        } => {
            format!(
                "attributes {} {}",
                cgroup.name(),
                serde_json::to_string(attributes).unwrap()
            )
        }
        Change::Phase {
            cgroup,
            hint,
            standing,
            ..
        } => {
            format!(
                "phase {} {hint}{}",
                cgroup.name(),
                if *standing { " standing" } else { "" }
            )
        }
        Change::Removed { cgroup, why, .. } => format!("removed {} {why:?}", cgroup.name()),
        Change::Refused { cgroup, reason, .. } => format!("refused {cgroup} {reason}"),
    }
}

fn lines(changes: &[Change]) -> Vec<String> {
    changes.iter().map(line).collect()
}

fn own_uid(path: &Path) -> u32 {
    path.metadata().unwrap().uid()
}

impl Fixture {
    /// Watches `tree`, with entries that grant us everything in domain `d` unless we are root.
    fn new(change: impl FnOnce(&mut WatchSettings)) -> Fixture {
        let dir = folder();
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        Fixture::over(dir, change)
    }

    fn over(dir: tempfile::TempDir, change: impl FnOnce(&mut WatchSettings)) -> Fixture {
        let uid = own_uid(dir.path());
        let tenant = Tenant {
            uid,
            tree: "/tree".into(),
            domain: "d".parse().unwrap(),
        };
        let tenants: Vec<Tenant> = Some(tenant)
            .filter(|tenant| tenant.uid != 0)
            .into_iter()
            .collect();
        let mut settings = WatchSettings {
            trees: vec!["/tree".into()],
            ..WatchSettings::default()
        };
        change(&mut settings);
        let mount = Arc::new(Mount::open(dir.path()).unwrap());
        Fixture {
            authority: Authority::new(&tenants, dir.path()).unwrap(),
            watcher: Watcher::new(mount, &settings).unwrap(),
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("tree").join(name)
    }

    fn mkdir(&self, name: &str) {
        std::fs::create_dir_all(self.path(name)).unwrap();
    }

    fn set(&self, name: &str, attribute: &str, value: &str) {
        let attribute = format!("user.agentzip.{attribute}");
        let path = self.path(name);
        setxattr(&path, attribute, value.as_bytes(), XattrFlags::empty()).unwrap_or_else(|error| {
            panic!("no user xattrs on {}: {error}; put the target folder on ext4, xfs, btrfs, or tmpfs of Linux 6.6 or newer", path.display())
        });
    }

    fn rescan(&mut self) -> Vec<String> {
        lines(&self.watcher.rescan(&self.authority))
    }

    /// Everything that is there to be read.
    fn read(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let changes = self.watcher.read(&self.authority).unwrap();
            if changes.is_empty() && !self.ready() {
                return all;
            }
            all.extend(lines(&changes));
        }
    }

    fn ready(&self) -> bool {
        use rustix::event::{poll, PollFd, PollFlags, Timespec};
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.watcher, PollFlags::IN)];
        poll(&mut fds, Some(&now)).unwrap() > 0
    }

    /// The domain that our sandboxes get: root's get none unless it is named.
    fn attributes(&self, rest: &str) -> String {
        match own_uid(self.dir.path()) {
            0 => format!("{{{rest}}}"),
            _ => format!("{{{rest},\"domain\":\"d\"}}"),
        }
    }
}

#[test]
fn a_life_by_xattr() {
    let mut f = Fixture::new(|_| {});
    assert!(f.rescan().is_empty());
    f.mkdir("sb");
    assert!(f.read().is_empty());
    f.set("sb", "template", "t");
    let template = f.attributes("\"template\":\"t\"");
    assert_eq!(f.read(), [format!("appeared /tree/sb {template}")]);
    f.set("sb", "group", "g");
    let both = f.attributes("\"template\":\"t\",\"group\":\"g\"");
    assert_eq!(f.read(), [format!("attributes /tree/sb {both}")]);
    // The same text twice counts twice.
    for _ in 0..2 {
        f.set("sb", "phase", "llm-wait;expect=8000");
        assert_eq!(f.read(), ["phase /tree/sb llm-wait;expect=8000"]);
    }
    // Another attribute is no hint.
    f.set("sb", "profile", "batch");
    let changed = f.read();
    assert!(
        changed.len() == 1 && changed[0].starts_with("attributes"),
        "{changed:?}"
    );
    // Nor is something that is not ours.
    setxattr(f.path("sb"), "user.other", b"1", XattrFlags::empty()).unwrap();
    assert!(f.read().is_empty());
    for mode in [0o700, 0o755] {
        std::fs::set_permissions(f.path("sb"), PermissionsExt::from_mode(mode)).unwrap();
        assert!(f.read().is_empty());
    }
    removexattr(f.path("sb"), "user.other").unwrap();
    assert!(f.read().is_empty());
    f.set("sb", "phase", "first-token\n");
    assert_eq!(f.read(), ["phase /tree/sb first-token"]);
    removexattr(f.path("sb"), NAMES[0]).unwrap();
    assert_eq!(f.read(), ["removed /tree/sb Untagged"]);
    f.set("sb", "template", "t2");
    assert!(f.read()[0].contains("t2"));
    std::fs::remove_dir(f.path("sb")).unwrap();
    assert_eq!(f.read(), ["removed /tree/sb Gone"]);
    assert_eq!(f.watcher.size(), (1, 1));
}

#[test]
fn what_is_there_at_the_beginning_is_found_and_standing() {
    let dir = folder();
    std::fs::create_dir_all(dir.path().join("tree/a/b/c")).unwrap();
    let mut f = Fixture::over(dir, |_| {});
    f.set("a/b/c", "template", "t");
    f.set("a/b/c", "phase", "idle");
    f.set("a", "phase", "done");
    let found = f.rescan();
    assert_eq!(found[0], "phase /tree/a done standing");
    assert!(found[1].starts_with("appeared /tree/a/b/c"), "{found:?}");
    assert_eq!(found[2], "phase /tree/a/b/c idle standing");
    // Nothing changed, so nothing is told again.
    assert!(f.rescan().is_empty());
    f.set("a/b/c", "phase", "idle");
    assert_eq!(f.read(), ["phase /tree/a/b/c idle"]);
}

#[test]
fn a_whole_path_made_at_once_is_seen() {
    let mut f = Fixture::new(|_| {});
    f.rescan();
    for round in 0..20 {
        let name = format!("x{round}/y/z");
        f.mkdir(&name);
        f.set(&name, "template", "t");
        f.set(&name, "phase", "idle");
        let told = f.read();
        assert!(
            told[0].starts_with(&format!("appeared /tree/{name} ")),
            "{told:?}"
        );
        assert_eq!(told[1], format!("phase /tree/{name} idle"));
        assert_eq!(
            told.iter()
                .filter(|line| line.starts_with("appeared"))
                .count(),
            1
        );
        remove_tree(&f.path(&format!("x{round}")));
        assert_eq!(f.read(), [format!("removed /tree/{name} Gone")]);
    }
    assert_eq!(f.watcher.size(), (1, 1));
}

#[test]
fn what_is_below_a_sandbox_belongs_to_it() {
    let mut f = Fixture::new(|_| {});
    f.mkdir("out/in");
    f.set("out/in", "template", "t");
    assert_eq!(f.rescan().len(), 1);
    f.set("out", "template", "t");
    let told = f.read();
    assert!(told[0].starts_with("appeared /tree/out "), "{told:?}");
    assert_eq!(told[1..], ["removed /tree/out/in Swallowed"]);
    f.set("out/in", "phase", "idle");
    f.mkdir("out/more");
    assert!(f.read().is_empty());
    assert_eq!(f.watcher.size(), (2, 1));
    removexattr(f.path("out"), NAMES[0]).unwrap();
    let told = f.read();
    assert_eq!(told[0], "removed /tree/out Untagged");
    assert!(told[1].starts_with("appeared /tree/out/in "), "{told:?}");
}

#[test]
fn a_sensitive_sandbox_by_xattr() {
    let mut f = Fixture::new(|_| {});
    f.mkdir("sb");
    f.set("sb", "sensitive", "1");
    // A template makes it a sandbox: it is never one that is not sensitive.
    assert!(f.rescan().is_empty());
    f.set("sb", "template", "t");
    let told = f.read();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("appeared /tree/sb "), "{told:?}");
    assert!(told[0].contains("\"sensitive\":true"), "{told:?}");
    // Nobody gets another kind of sandbox than was meant.
    f.set("sb", "sensitive", "yes");
    let told = f.read();
    let refused = "refused /tree/sb user.agentzip.sensitive: expected 0 or 1";
    assert!(told.contains(&refused.to_owned()), "{told:?}");
    f.set("sb", "sensitive", "0");
    let told = f.read();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(!told[0].contains("sensitive"), "{told:?}");
}

#[test]
fn bad_values_are_refused_with_a_reason() {
    let mut f = Fixture::new(|_| {});
    f.mkdir("sb");
    f.rescan();
    for (attribute, value, reason) in [
        ("template", "../up", "user.agentzip.template: a name has"),
        ("template", &"x".repeat(300), "longer than 256 bytes"),
        ("phase", "nap", "user.agentzip.phase: unknown hint \"nap\""),
        ("phase", "llm-wait;tool=x", "has no parameter"),
        ("phase", &"y".repeat(1000), "longer than 256 bytes"),
    ] {
        f.set("sb", attribute, value);
        let told = f.read();
        assert!(
            told.len() == 1 && told[0].starts_with("refused /tree/sb "),
            "{told:?}"
        );
        assert!(told[0].contains(reason), "{told:?}");
        removexattr(f.path("sb"), format!("user.agentzip.{attribute}")).unwrap();
        assert!(f.read().is_empty());
    }
}

/// Owners may say only what a tenant entry grants. Needs root, to have directories of other owners; as another user
/// it shows that nothing is granted without an entry.
#[test]
fn owners_may_only_say_what_is_granted() {
    let mut f = Fixture::new(|_| {});
    for name in ["mine", "bare"] {
        f.mkdir(name);
    }
    if own_uid(f.dir.path()) != 0 {
        f.authority = Authority::new(&[], f.dir.path()).unwrap();
        f.rescan();
        f.set("mine", "template", "t");
        assert!(f.read()[0].contains("no tenant entry"));
        return;
    }
    let tenants = [Tenant {
        uid: 1234,
        tree: "tree/mine".into(),
        domain: "d".parse().unwrap(),
    }];
    f.authority = Authority::new(&tenants, f.dir.path()).unwrap();
    for name in ["mine", "bare"] {
        chown(f.path(name), Some(1234), None).unwrap();
    }
    f.rescan();
    f.set("mine", "template", "t");
    assert_eq!(
        f.read(),
        ["appeared /tree/mine {\"template\":\"t\",\"domain\":\"d\"}"]
    );
    f.set("mine", "domain", "other");
    let told = f.read();
    assert!(
        told[0].contains("in domain d only, not in other"),
        "{told:?}"
    );
    assert_eq!(told[1], "removed /tree/mine Untagged");
    // Said once, not with each event.
    f.set("mine", "phase", "idle");
    assert_eq!(f.read(), ["phase /tree/mine idle"]);
    f.set("bare", "template", "t");
    assert!(f.read()[0].contains("no tenant entry"));
    // A hint needs no entry: it is the owner's.
    f.set("bare", "phase", "idle");
    assert_eq!(f.read(), ["phase /tree/bare idle"]);
    // Root's, but anyone may write: whose words are these?
    f.mkdir("open");
    f.set("open", "phase", "idle");
    assert_eq!(f.read(), ["phase /tree/open idle"]);
    std::fs::set_permissions(f.path("open"), PermissionsExt::from_mode(0o777)).unwrap();
    f.set("open", "phase", "done");
    let told = f.read();
    assert!(told[0].contains("xattrs may be anyone's"), "{told:?}");
    f.set("open", "template", "t");
    assert!(f.read()[0].contains("xattrs may be anyone's"));
}

#[test]
fn depth_and_number_are_bounded() {
    let mut f = Fixture::new(|settings| {
        settings.max_depth = 2;
        settings.max_directories = 8;
    });
    f.rescan();
    f.mkdir("a/b/c");
    f.set("a/b", "template", "t");
    assert!(f.read()[0].starts_with("appeared /tree/a/b "));
    removexattr(f.path("a/b"), NAMES[0]).unwrap();
    f.read();
    f.set("a/b/c", "template", "t");
    assert!(f.read().is_empty(), "deeper than max_depth");
    // The root, a, a/b, and five more.
    for number in 0..20 {
        f.mkdir(&format!("n{number:02}"));
    }
    let told = f.read();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("refused /tree more than 8 cgroups in this tree"),
        "{told:?}"
    );
    assert_eq!(f.watcher.size().0, 8);
    // Room again: those that were left out are found.
    f.set("n19", "template", "t");
    for number in 0..18 {
        std::fs::remove_dir(f.path(&format!("n{number:02}"))).unwrap();
    }
    let told = f.read();
    assert!(
        told.iter()
            .any(|line| line.starts_with("appeared /tree/n19 ")),
        "{told:?}"
    );
    assert_eq!(f.watcher.size().0, 5);
}

#[test]
fn symlinks_and_files_are_no_cgroups() {
    let mut f = Fixture::new(|_| {});
    let outside = f.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    setxattr(&outside, NAMES[0], b"t", XattrFlags::empty()).unwrap();
    std::os::unix::fs::symlink(&outside, f.path("link")).unwrap();
    std::fs::write(f.path("file"), "").unwrap();
    setxattr(f.path("file"), NAMES[0], b"t", XattrFlags::empty()).unwrap();
    assert!(f.rescan().is_empty());
    std::os::unix::fs::symlink(&outside, f.path("link2")).unwrap();
    setxattr(&outside, PHASE, b"idle", XattrFlags::empty()).unwrap();
    assert!(f.read().is_empty());
    assert_eq!(f.watcher.size().0, 1);
}

#[test]
fn a_directory_made_anew_is_another_one() {
    let mut f = Fixture::new(|_| {});
    f.mkdir("sb");
    f.set("sb", "template", "t");
    f.rescan();
    for _ in 0..10 {
        std::fs::remove_dir(f.path("sb")).unwrap();
        f.mkdir("sb");
        f.set("sb", "template", "t");
        let told = f.read();
        assert_eq!(told[0], "removed /tree/sb Gone");
        assert!(told[1].starts_with("appeared /tree/sb "), "{told:?}");
    }
    // Renamed, as no cgroup can be.
    std::fs::rename(f.path("sb"), f.path("other")).unwrap();
    let told = f.read();
    assert_eq!(told[0], "removed /tree/sb Gone");
    assert!(told[1].starts_with("appeared /tree/other "), "{told:?}");
    std::fs::rename(f.path("other"), f.dir.path().join("away")).unwrap();
    assert_eq!(f.read(), ["removed /tree/other Gone"]);
}

/// More events than the kernel's queue holds: nothing is lost but repeats.
#[test]
fn an_overflow_loses_no_state() {
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let mut f = Fixture::new(|_| {});
    f.mkdir("a");
    f.mkdir("b");
    f.set("a", "template", "t");
    f.rescan();
    f.mkdir("b/late");
    for _ in 0..limit / 2 + 100 {
        f.set("a", "phase", "llm-wait");
        f.set("b", "phase", "llm-wait");
    }
    f.set("a", "phase", "first-token");
    f.set("b/late", "template", "t");
    std::fs::create_dir(f.path("c")).unwrap();
    f.set("c", "template", "t");
    f.set("c", "phase", "done");
    std::fs::create_dir(f.path("gone")).unwrap();
    std::fs::remove_dir(f.path("gone")).unwrap();
    let told = f.read();
    let last = told
        .iter()
        .rfind(|line| line.starts_with("phase /tree/a "))
        .unwrap();
    assert!(last.starts_with("phase /tree/a first-token"), "{last}");
    for wanted in [
        "appeared /tree/b/late ",
        "appeared /tree/c ",
        "phase /tree/c done",
    ] {
        assert!(told.iter().any(|line| line.starts_with(wanted)), "{wanted}");
    }
    // Each directory is looked at once for many events.
    assert!(told.len() < limit / 4, "{}", told.len());
    f.set("c", "phase", "idle");
    assert_eq!(f.read(), ["phase /tree/c idle"]);
}

#[test]
fn a_tree_that_comes_and_goes() {
    let mut f = Fixture::new(|_| {});
    std::fs::remove_dir(f.path("")).unwrap();
    let told = f.rescan();
    assert!(
        told[0].starts_with("refused /tree the tree is not watched"),
        "{told:?}"
    );
    assert!(f.watcher.misses_trees());
    let again = f.watcher.seek_trees(&f.authority);
    assert!(again.is_empty(), "said once: {again:?}");
    // It is seen as it comes, and goes, and comes again, among others beside it.
    for _ in 0..3 {
        f.mkdir("sb");
        f.mkdir("../beside");
        f.set("sb", "template", "t");
        let found = f.read();
        assert!(found[0].starts_with("appeared /tree/sb "), "{found:?}");
        assert_eq!(found.len(), 1);
        assert!(!f.watcher.misses_trees());
        remove_tree(&f.path(""));
        remove_tree(&f.path("../beside"));
        assert_eq!(f.read()[0], "removed /tree/sb Gone");
        assert!(f.watcher.misses_trees());
        assert_eq!(f.watcher.size(), (0, 0));
    }
}

/// Where the directory above is not there either, it is sought.
#[test]
fn a_tree_whose_parent_comes() {
    let mut f =
        Fixture::new(|settings| settings.trees = vec!["/up/tree".into(), "/up/other".into()]);
    assert_eq!(f.rescan().len(), 2);
    f.mkdir("../up/tree/sb");
    f.set("../up/tree/sb", "phase", "idle");
    assert!(f.read().is_empty());
    let found = lines(&f.watcher.seek_trees(&f.authority));
    assert_eq!(found, ["phase /up/tree/sb idle standing"]);
    f.mkdir("../up/other/sb");
    f.set("../up/other/sb", "phase", "done");
    assert_eq!(f.read(), ["phase /up/other/sb done"]);
    assert!(!f.watcher.misses_trees());
}

#[test]
fn root_of_the_hierarchy_as_tree() {
    let mut f = Fixture::new(|settings| settings.trees = vec!["/".into()]);
    f.mkdir("sb");
    f.set("sb", "phase", "idle");
    assert_eq!(f.rescan(), ["phase /tree/sb idle standing"]);
}

/// Directories that come, go and change while they are looked at.
#[test]
fn a_tree_in_motion_ends_in_its_state() {
    let mut f = Fixture::new(|_| {});
    f.rescan();
    let base = f.path("");
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = done.clone();
    let mover = std::thread::spawn(move || {
        for round in 0..300 {
            let outer = base.join(format!("o{}", round % 7));
            let inner = outer.join(format!("i{}", round % 3));
            let _ = std::fs::create_dir(&outer);
            let _ = std::fs::create_dir(&inner);
            let _ = setxattr(&inner, NAMES[0], b"t", XattrFlags::empty());
            let _ = setxattr(&inner, PHASE, b"idle", XattrFlags::empty());
            if round % 5 == 0 {
                remove_tree(&base.join(format!("o{}", (round + 3) % 7)));
            }
        }
        flag.store(true, std::sync::atomic::Ordering::Release);
    });
    let mut alive = std::collections::BTreeSet::new();
    loop {
        let last = done.load(std::sync::atomic::Ordering::Acquire);
        for line in f.read() {
            let mut words = line.split(' ');
            match (words.next().unwrap(), words.next().unwrap().to_owned()) {
                ("appeared", name) => assert!(alive.insert(name)),
                ("removed", name) => assert!(alive.remove(&name)),
                _ => {}
            }
        }
        if last {
            break;
        }
    }
    mover.join().unwrap();
    let mut expected = std::collections::BTreeSet::new();
    for outer in std::fs::read_dir(f.path("")).unwrap().flatten() {
        for inner in std::fs::read_dir(outer.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            if !inner.path().is_dir() {
                continue;
            }
            let inside = inner.path();
            let inside = inside.strip_prefix(f.dir.path()).unwrap();
            expected.insert(format!("/{}", inside.display()));
        }
    }
    assert_eq!(alive, expected);
    assert!(!expected.is_empty());
}
