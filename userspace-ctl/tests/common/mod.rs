// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A fake machine: trees of files in a temporary directory, and a device and a host that keep
//! their state in memory.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod daemon;

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use agentzip_ctl::cgroup::Selector;
use agentzip_ctl::commands::{ranges, sandbox, template_add};
use agentzip_ctl::device::{
    Device, Failure, FaultsTaken, Haste, Info, NewSandbox, NewTemplate, Samples, Source,
    TemplatePages,
};
use agentzip_ctl::host::{Host, Process};
use agentzip_ctl::{Context, Error, ObjectName, Paths, Signature};
use agentzip_uapi::{FaultRecord, Name, Phase, Range, Representation, SandboxRange, ABI_VERSION};

/// What stands for the kernel's BTF, and its SHA-256.
pub const BTF: &str = "abc";
pub const BTF_DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// Counters of `stats/` and of each sandbox, besides `entries` and the representations.
const COUNTERS: [&str; 17] = [
    "stores",
    "loads",
    "erased",
    "declined_incompressible",
    "declined_nomem",
    "declined_full",
    "declined_detached",
    "load_errors",
    "template_backed",
    "promoted",
    "dropped",
    "provisional",
    "second_look_pages",
    "second_look_bytes",
    "second_look_ns",
    "encode_ns",
    "decode_ns",
];

/// The trees.
pub struct Trees {
    pub dir: tempfile::TempDir,
}

impl Trees {
    /// An armed module, built for this kernel, without templates and sandboxes; one swap device; no
    /// cgroups but the root.
    pub fn new() -> Self {
        let trees = Trees {
            dir: tempfile::tempdir().unwrap(),
        };
        for (name, text) in [
            ("sysfs/abi_version", "3\n"),
            ("sysfs/armed", "1\n"),
            ("sysfs/enabled", "1\n"),
            ("sysfs/draining", "0\n"),
            ("sysfs/max_bytes", "max\n"),
            ("cgroup/cgroup.procs", "1\n"),
            ("zswap/enabled", "N\n"),
            ("proc/sys/vm/page-cluster", "0\n"),
            (
                "proc/meminfo",
                "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\nSwapCached: 0 kB\n",
            ),
            (
                "proc/swaps",
                "Filename Type Size Used Priority\n/dev/vdb partition 4194300 1000 -2\n",
            ),
        ] {
            trees.write(name, text);
        }
        for part in "arenas references sketches table template_pages template_index scratch \
                     objects dictionaries total"
            .split_ascii_whitespace()
        {
            trees.write(&format!("sysfs/stats/memory_{part}"), "0\n");
        }
        trees.write("btf", BTF);
        trees.write("sysfs/kernel_btf", &format!("{BTF_DIGEST}\n"));
        trees.counters("sysfs/stats", 0);
        fs::create_dir_all(trees.path("sysfs/sandboxes")).unwrap();
        fs::create_dir_all(trees.path("sysfs/templates")).unwrap();
        trees
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Page counters in a directory: `entries` deltas of 10 bytes each, everything else zero.
    pub fn counters(&self, directory: &str, entries: u64) {
        for name in COUNTERS {
            self.write(&format!("{directory}/{name}"), "0\n");
        }
        self.write(&format!("{directory}/entries"), &format!("{entries}\n"));
        for representation in Representation::ALL {
            let pages = match representation {
                Representation::Delta => entries,
                _ => 0,
            };
            let name = representation.name();
            self.write(&format!("{directory}/pages_{name}"), &format!("{pages}\n"));
            self.write(
                &format!("{directory}/bytes_{name}"),
                &format!("{}\n", pages * 10),
            );
        }
    }

    /// A template in sysfs, from a process and without a signature.
    pub fn template(&self, name: &str, domain: &str) {
        let directory = format!("sysfs/templates/{name}");
        for (file, text) in [
            ("domain", domain),
            ("source", "process"),
            ("signature", "none"),
        ] {
            self.write(&format!("{directory}/{file}"), &format!("{text}\n"));
        }
        for (file, value) in [
            ("pages_referenced", 300),
            ("pages_copied", 20),
            ("pages_skipped", 1),
            ("pages_indexed", 320),
            ("users", 1),
            ("index_bytes", 4096),
            ("page_bytes", 81_920),
            ("sketch_bytes", 8192),
        ] {
            self.write(&format!("{directory}/{file}"), &format!("{value}\n"));
        }
    }

    /// A cgroup with a memory controller that has nothing to reclaim; returns its id.
    pub fn cgroup(&self, name: &str, pids: &str) -> u64 {
        let directory = format!("cgroup/{name}");
        self.write(&format!("{directory}/cgroup.procs"), pids);
        self.write(&format!("{directory}/memory.reclaim"), "");
        self.write(&format!("{directory}/memory.current"), "8192\n");
        self.write(&format!("{directory}/memory.swap.current"), "4096\n");
        self.write(
            &format!("{directory}/memory.stat"),
            "anon 0\nshmem 0\nswapcached 0\ninactive_anon 0\nactive_anon 0\nunevictable 0\n\
             pgsteal_proactive 0\nswpout_zero 0\n",
        );
        self.path(&directory).metadata().unwrap().ino()
    }

    /// A sandbox in sysfs.
    pub fn sandbox(&self, id: u64, attached: bool, entries: u64) {
        let directory = format!("sysfs/sandboxes/{id}");
        for (file, value) in [
            ("phase", "running"),
            ("level", "6"),
            ("template", "base"),
            ("group", "base"),
            ("domain", "default"),
            ("attached", if attached { "1" } else { "0" }),
            ("sensitive", "0"),
            ("max_bytes", "max"),
            ("arena_bytes", "4096"),
            ("group_references", "7"),
            ("group_reference_bytes", "12288"),
            ("group_sketch_bytes", "8192"),
            ("group_dictionaries", "2"),
            ("group_dictionary_bytes", "300000"),
            ("group_dictionary_users", "40"),
            ("group_dictionary_first", "700"),
            ("group_dictionary_recent", "710"),
            ("ranges", "0"),
        ] {
            self.write(&format!("{directory}/{file}"), &format!("{value}\n"));
        }
        self.counters(&directory, entries);
    }

    /// A process whose one mapping (32 pages at 0x10000, and a file behind it) has these pages
    /// swapped out; the memory file reads as zeros. Its binary is `root/usr/bin/python3`.
    pub fn process(&self, pid: i32, state: char, swapped: &[u64]) {
        let directory = format!("proc/{pid}");
        self.write(
            &format!("{directory}/maps"),
            "00010000-00030000 rw-p 00000000 00:00 0    [heap]\n\
             00030000-00040000 r-xp 00000000 fe:01 5    /usr/bin/python3\n\
             00040000-00048000 rw-p 00000000 fe:01 5    /usr/bin/python3\n\
             00050000-00060000 rw-s 00000000 00:01 9    /dev/zero (deleted)\n\
             00060000-00064000 r--p 00000000 00:00 0    [vvar]\n",
        );
        self.write(
            &format!("{directory}/stat"),
            &format!("{pid} (python3) {state} 1 1"),
        );
        let pagemap = File::create(self.path(&format!("{directory}/pagemap"))).unwrap();
        pagemap.set_len(8 * 256).unwrap();
        for page in swapped {
            pagemap
                .write_all_at(&(1u64 << 62).to_ne_bytes(), page * 8)
                .unwrap();
        }
        self.write(&format!("{directory}/root/usr/bin/python3"), "#! python\n");
        let memory = File::create(self.path(&format!("{directory}/mem"))).unwrap();
        memory.set_len(0x100_000).unwrap();
    }

    pub fn paths(&self) -> Paths {
        Paths {
            device: self.path("dev/agentzip"),
            sysfs: self.path("sysfs"),
            cgroup_root: Some(self.path("cgroup")),
            proc: self.path("proc"),
            zswap: self.path("zswap"),
            btf: self.path("btf"),
        }
    }
}

/// What the fake device and host saw, and what they shall answer.
#[derive(Default)]
pub struct State {
    /// Each call as one line.
    pub calls: RefCell<Vec<String>>,
    /// Errno of every following command except `info`; 0 for success.
    pub errno: Cell<i32>,
    /// How many more commands fail with `errno`; `None` for all.
    pub failures: Cell<Option<u32>>,
    /// `users` of a refusal.
    pub users: Cell<Option<u64>>,
    pub armed: Cell<bool>,
    pub draining: Cell<bool>,
    pub enabled: Cell<bool>,
    pub abi_version: Cell<u32>,
    pub entries: Cell<u64>,
    pub ranges: RefCell<Vec<Range>>,
    /// Signature of the last `template_add` or `sandbox_attach`.
    pub signature: Cell<Option<Signature>>,
    /// Errno of `sandbox_ranges`.
    pub ranges_errno: Cell<i32>,
    /// Errno of `swap_on`.
    pub swap_on_errno: Cell<i32>,
    /// Errno of `will_need`.
    pub will_need_errno: Cell<i32>,
    /// Where `swap_off` sets `stats/entries` to 0, and `will_need` clears the pagemap.
    pub root: RefCell<PathBuf>,
    /// A process of this pid has exited.
    pub exited: Cell<i32>,
    /// What `dictionary_samples` gives, 100 pages at a time.
    pub samples: RefCell<Vec<Box<[u8; 4096]>>>,
    /// The last dictionary that was added.
    pub dictionary: RefCell<Vec<u8>>,
}

impl State {
    fn log(&self, call: impl Into<String>) {
        self.calls.borrow_mut().push(call.into());
    }

    fn answer(&self) -> Result<(), Failure> {
        match self.failures.get() {
            Some(0) => return Ok(()),
            left => self.failures.set(left.map(|left| left - 1)),
        }
        match self.errno.get() {
            0 => Ok(()),
            errno => Err(Failure::Refused {
                errno: io::Error::from_raw_os_error(errno),
                users: self.users.get(),
            }),
        }
    }

    pub fn calls(&self) -> Vec<String> {
        self.calls.borrow().clone()
    }
}

pub struct FakeDevice(pub Rc<State>);

fn text(name: &Name) -> &str {
    agentzip_uapi::name_as_str(name).unwrap_or("-")
}

impl Device for FakeDevice {
    fn info(&self) -> Result<Info, Failure> {
        Ok(Info {
            abi_version: self.0.abi_version.get(),
            armed: self.0.armed.get(),
            enabled: self.0.enabled.get(),
            draining: self.0.draining.get(),
        })
    }

    fn arm(&self) -> Result<(), Failure> {
        self.0.log("arm");
        self.0.answer()
    }

    fn disarm(&self) -> Result<(), Failure> {
        self.0.log("disarm");
        self.0.answer()
    }

    fn template_add(&self, template: &NewTemplate) -> Result<TemplatePages, Failure> {
        let (name, domain) = (text(&template.name), text(&template.domain));
        self.0.signature.set(Some(template.signature));
        let source = match &template.source {
            Source::Process { pid, ranges } => {
                *self.0.ranges.borrow_mut() = ranges.clone();
                pid.to_string()
            }
            Source::File {
                file,
                offset,
                length,
            } => {
                let size = file.metadata().unwrap().len();
                format!("file of {size} {offset}+{length}")
            }
        };
        self.0.log(format!("template_add {source} {name} {domain}"));
        self.0.answer()?;
        Ok(TemplatePages {
            referenced: 30,
            copied: 2,
            skipped: 8,
        })
    }

    fn template_remove(&self, name: &Name) -> Result<(), Failure> {
        self.0.log(format!("template_remove {}", text(name)));
        self.0.answer()
    }

    fn sandbox_attach(&self, cgroup: &File, sandbox: &NewSandbox) -> Result<u64, Failure> {
        let (template, group) = (text(&sandbox.template), text(&sandbox.group));
        let domain = text(&sandbox.domain);
        self.0.signature.set(Some(sandbox.signature));
        let sensitive = match sandbox.sensitive {
            true => " sensitive",
            false => "",
        };
        self.0.log(format!(
            "sandbox_attach {template} {group} {domain}{sensitive}"
        ));
        self.0.answer()?;
        Ok(cgroup.metadata().unwrap().ino())
    }

    fn sandbox_ranges(&self, cgroup_id: u64, ranges: &[SandboxRange]) -> Result<(), Failure> {
        let text: Vec<String> = ranges
            .iter()
            .map(|r| format!("{:x}-{:x}@{:x}", r.start, r.end, r.offset))
            .collect();
        self.0
            .log(format!("sandbox_ranges {cgroup_id} [{}]", text.join(" ")));
        match self.0.ranges_errno.get() {
            0 => self.0.answer(),
            errno => Err(io::Error::from_raw_os_error(errno).into()),
        }
    }

    fn sandbox_detach(&self, cgroup_id: u64) -> Result<u64, Failure> {
        self.0.log(format!("sandbox_detach {cgroup_id}"));
        self.0.answer()?;
        Ok(self.0.entries.get())
    }

    fn sandbox_phase(&self, cgroup_id: u64, phase: Phase) -> Result<(), Failure> {
        self.0
            .log(format!("sandbox_phase {cgroup_id} {}", phase.name()));
        self.0.answer()
    }

    fn dictionary_add(&self, cgroup_id: u64, content: &[u8]) -> Result<u32, Failure> {
        self.0.log(format!("dictionary_add {cgroup_id}"));
        self.0.answer()?;
        *self.0.dictionary.borrow_mut() = content.to_vec();
        Ok(3)
    }

    fn dictionary_retire(&self, cgroup_id: u64) -> Result<u32, Failure> {
        self.0.log(format!("dictionary_retire {cgroup_id}"));
        self.0.answer()?;
        Ok(3)
    }

    fn dictionary_samples(
        &self,
        cgroup_id: u64,
        least: u32,
        cursor: u64,
    ) -> Result<Samples, Failure> {
        self.0
            .log(format!("dictionary_samples {cgroup_id} {least}"));
        self.0.answer()?;
        let samples = self.0.samples.borrow();
        let first = cursor as usize;
        let end = samples.len().min(first + 100);
        Ok(Samples {
            pages: samples[first..end].iter().map(|page| **page).collect(),
            next: (end < samples.len()).then_some(end as u64),
        })
    }

    fn sandbox_record(
        &self,
        cgroup_id: u64,
        records: u32,
        _: Option<BorrowedFd<'_>>,
    ) -> Result<(), Failure> {
        self.0.log(format!("sandbox_record {cgroup_id} {records}"));
        self.0.answer()
    }

    fn faults_read(&self, cgroup_id: u64, _: &mut [FaultRecord]) -> Result<FaultsTaken, Failure> {
        self.0.log(format!("faults_read {cgroup_id}"));
        self.0.answer()?;
        Ok(FaultsTaken::default())
    }

    fn prefetch(
        &self,
        cgroup_id: u64,
        pid: i32,
        ranges: &[Range],
        _: Haste,
    ) -> Result<u64, Failure> {
        self.0
            .log(format!("prefetch {cgroup_id} {pid} {}", ranges.len()));
        self.0.answer()?;
        Ok(ranges.iter().map(|r| (r.end - r.start) / 4096).sum())
    }

    fn page_states(
        &self,
        cgroup_id: u64,
        pid: i32,
        range: Range,
        _: bool,
    ) -> Result<Vec<u8>, Failure> {
        self.0.log(format!("page_states {cgroup_id} {pid}"));
        self.0.answer()?;
        Ok(vec![0; ((range.end - range.start) / 4096) as usize])
    }

    fn drain(&self) -> Result<u64, Failure> {
        self.0.log("drain");
        self.0.answer()?;
        Ok(self.0.entries.get())
    }
}

pub struct FakeHost(pub Rc<State>);

struct FakeProcess {
    pid: i32,
    state: Rc<State>,
}

impl Process for FakeProcess {
    fn alive(&self) -> bool {
        self.state.exited.get() != self.pid
    }

    /// Unlike the real one, brings the pages back at once.
    fn will_need(&self, ranges: &[Range]) -> io::Result<u64> {
        let text: Vec<String> = ranges
            .iter()
            .map(|r| format!("{:x}-{:x}", r.start, r.end))
            .collect();
        self.state
            .log(format!("will_need {} {}", self.pid, text.join(" ")));
        match self.state.will_need_errno.get() {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        let path = self
            .state
            .root
            .borrow()
            .join(format!("proc/{}/pagemap", self.pid));
        let pagemap = fs::OpenOptions::new().write(true).open(path)?;
        for range in ranges {
            for page in range.start / 4096..range.end / 4096 {
                pagemap.write_all_at(&[0; 8], page * 8)?;
            }
        }
        Ok(ranges.iter().map(|r| r.end - r.start).sum())
    }
}

impl Host for FakeHost {
    fn process(&self, pid: i32) -> io::Result<Box<dyn Process>> {
        let state = self.0.clone();
        Ok(Box::new(FakeProcess { pid, state }))
    }

    fn swap_off(&self, path: &Path) -> io::Result<()> {
        self.0.log(format!("swap_off {}", path.display()));
        fs::write(self.0.root.borrow().join("sysfs/stats/entries"), "0\n")
    }

    fn swap_on(&self, path: &Path, priority: i32) -> io::Result<()> {
        self.0.log(format!("swap_on {} {priority}", path.display()));
        match self.0.swap_on_errno.get() {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// A fake machine whose module is loaded and not armed.
pub fn machine() -> (Trees, Rc<State>, Context) {
    let trees = Trees::new();
    let state = Rc::new(State::default());
    state.abi_version.set(ABI_VERSION);
    state.enabled.set(true);
    *state.root.borrow_mut() = trees.dir.path().to_owned();
    let device = Box::new(FakeDevice(state.clone()));
    let host = Box::new(FakeHost(state.clone()));
    let context = Context::with(&trees.paths(), device, host);
    (trees, state, context)
}

pub fn name(text: &str) -> ObjectName {
    text.parse().unwrap()
}

pub fn at(path: &str) -> Selector {
    path.parse().unwrap()
}

pub fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

/// Registers a process as template `base`.
pub fn add_process(
    context: &Context,
    pid: i32,
    domain: Option<&str>,
) -> Result<template_add::Added, Error> {
    let domain = domain.map(name);
    let request = template_add::Request {
        name: &name("base"),
        domain: domain.as_ref(),
        signature: None,
    };
    template_add::from_process(context, pid, &request)
}

/// A request to attach this cgroup to template `base`, and nothing else.
pub fn plain<'a>(cgroup: &'a str, base: &'a ObjectName) -> sandbox::Request<'a> {
    sandbox::Request {
        cgroup: Path::new(cgroup),
        template: base,
        group: None,
        domain: None,
        sensitive: false,
        max_bytes: None,
        signature: None,
        ranges: ranges::Request::default(),
    }
}

#[track_caller]
pub fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Runs something in a thread of another user, who is in a group of the same number and in no other.
pub fn as_user<T: Send + 'static>(uid: u32, what: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let none = std::ptr::null::<u32>();
        // SAFETY: The system calls take numbers, and no groups. Unlike libc's functions they change this thread
        // only, which ends here.
        let results = unsafe {
            [
                libc::syscall(libc::SYS_setgroups, 0, none),
                libc::syscall(libc::SYS_setresgid, uid, uid, uid),
                libc::syscall(libc::SYS_setresuid, uid, uid, uid),
            ]
        };
        assert_eq!(results, [0; 3]);
        what()
    });
    thread.join().unwrap()
}
